"""Tokens and costs of a run: of every attempt, by stage, over all claims, in the summary and in an export."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
import pytest

import tidegate
from tests.cli.experiment.commands import Place
from tests.runner.scene import in_loop, ran, rows, runner_at
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals, dollars, tokens_text
from tidegate.experiments import Budget, Experiment


def answering(registry: RateLimitRegistry, refused: int = 0) -> httpx.AsyncClient:
    """Return a governed client of OpenAI, whose first requests are refused, then answered with their row's tokens."""
    left = [refused]

    def answer(request: httpx.Request) -> httpx.Response:
        if left[0]:
            left[0] -= 1
            return httpx.Response(429, json={"error": {"message": "slow down"}}, headers={"retry-after": "0"})
        row = json.loads(json.loads(request.content)["messages"][0]["content"])
        usage = {"prompt_tokens": 100, "completion_tokens": 10 * (row["n"] + 1),
                 "completion_tokens_details": {"reasoning_tokens": 3}}  # fmt: skip
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": usage}, headers={"x-request-id": f"r{row['n']}"})

    return registry.wrap(httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.openai.com"))


async def ask(client: httpx.AsyncClient, row: Any, model: str) -> str:
    """Ask about a row; return the answer's text, or raise for a bad status."""
    body = {"model": model, "messages": [{"role": "user", "content": json.dumps(row)}]}
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
@in_loop
async def test_summary_has_tokens_and_costs_by_stage(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    client = answering(registry, refused=1)

    async def task(row: Any) -> str:
        return await ask(client, row, "gpt-4o-mini")

    async def judge(row: Any, output: str) -> float:
        await ask(client, row, "gpt-5")
        return 1.0

    async with client, runner_at(tmp_path, registry=registry, audit="all") as runner:
        summary = await runner.run(Experiment("e", rows(3), task, [judge]))
        (first, *_) = await runner.store.reports.results(summary.experiment.id, after=None, limit=10)
        attempts = await runner.store.reports.attempts(summary.experiment.id, after=None, limit=10)
    told = {(each["status"], each["cached_tokens"], each["reasoning_tokens"]) for each in attempts}
    assert told == {("capacity_retry", None, None), ("success", 0, 3)}
    # 300 of input and 10 + 20 + 30 of output, at .15 and .6, then at 1.25 and 10 for a million.
    assert summary.spend == {
        "judge": TokenTotals(3, 300, 60, 0, 0, 9, 3, 975_000),
        "task": TokenTotals(3, 300, 60, 0, 0, 9, 3, 81_000),
    }
    assert summary.tokens.cost == pytest.approx(0.001056)
    assert summary.stats.tokens == summary.tokens
    usage = first.usages["task"]
    assert (usage.model, usage.finish_reason, usage.request_id) == ("gpt-4o-mini", "stop", "r0")


@in_loop
async def test_progress_has_the_tokens_of_all_claims_and_the_budget(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    client = answering(registry)
    seen: list[tuple[int, str]] = []

    async with client, runner_at(tmp_path, registry=registry, max_concurrency=1) as runner:

        async def task(row: Any) -> str:
            (progress,) = filter(None, [runner.progress("e")])
            seen.append((progress.tokens.metered, progress.budget))
            return await ask(client, row, "gpt-4o-mini")

        experiment = Experiment("e", rows(4), task, budget=Budget(tokens=100_000))
        await runner.run(experiment, limit=2)
        await runner.run(experiment)
    assert seen == [(count, "100000 tokens") for count in range(4)]


@in_loop
async def test_a_function_without_governed_calls_costs_nothing(tmp_path: Path) -> None:
    async def task(row: Any) -> int:
        return 1

    summary, _ = await ran(tmp_path, Experiment("e", rows(3), task))
    assert summary.spend == {}
    assert summary.tokens.cost is None


@in_loop
async def test_failed_attempts_of_an_item_are_counted_with_its_answer(tmp_path: Path) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    client = answering(registry)
    tries: list[int] = []

    async def task(row: Any) -> str:
        text = await ask(client, row, "gpt-4o-mini")
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError("what was paid for is paid")
        return text

    async with client, runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows(1), task))
    assert summary.answered == 1
    assert summary.spend["task"] == TokenTotals(3, 300, 30, 0, 0, 9, 3, 3 * 21_000)


CALLING = """
import httpx, json
import tidegate
from tidegate.experiments import Experiment

def answer(request):
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
    return httpx.Response(200, json={"choices": [choice], "usage": usage}, headers={"x-request-id": "r"})

client = tidegate.wrap(httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.openai.com"))

async def task(row):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "x"}]}
    return (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"]

experiment = Experiment("called", [{"id": "a"}, {"id": "b"}], task)
"""


def test_export_has_tokens_cost_and_facts_of_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(tmp_path)
    place.write("my_eval.py", CALLING)
    done = place.process("run", "my_eval.py")
    assert done.code == 0, done.err
    assert "200 input + 20 output tokens, $0.000042" in done.out + done.err
    shown = place.shown("called")
    assert shown["cost"] == pytest.approx(0.000042)
    assert shown["spend"]["task"]["metered"] == 2
    listed = place.run("show").out
    assert "cost" in listed
    assert "$0.000042" in listed
    (one,) = map(json.loads, place.run("show", "--json").out.splitlines())
    assert (one["cost"], one["spend"]["metered"]) == (pytest.approx(0.000042), 2)
    for form in ("jsonl", "csv", "parquet"):
        assert place.run("export", "called", "--output", f"out.{form}").code == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    told = [json.loads(line)["usage"]["task"] for line in lines]
    told += csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    told += pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(told) == 3 * 2
    for row in told:
        assert (int(row["input_tokens"]), int(row["output_tokens"])) == (100, 10)
        assert float(row["cost"]) == pytest.approx(0.000021)
        assert (row["model"], row["finish_reason"], row["request_id"]) == ("gpt-4o-mini", "length", "r")
        assert float(row["waited"]) >= 0.0


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.0, "$0.00"),
        (1234.5, "$1,234.50"),
        (0.999, "$1.00"),
        (0.042, "$0.042"),
        (0.000021, "$0.000021"),
        (5.0, "$5.00"),
    ],
)
def test_amounts_have_two_digits_that_count(amount: float, text: str) -> None:
    assert dollars(amount) == text


def test_a_cost_of_a_part_is_a_lower_bound() -> None:
    assert tokens_text(TokenTotals(2, 10, 5, 0, 0, 0, 1, 2_000_000_000)) == "10 input + 5 output tokens, at least $2.00"
    assert tokens_text(TokenTotals(2, 10, 5)) == "10 input + 5 output tokens"
    assert tokens_text(TokenTotals()) == ""
