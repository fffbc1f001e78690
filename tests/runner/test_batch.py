"""Experiments that a provider's Batch API answers: real SDK clients, and the simulator's files and batches."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

import tidegate
from tests import constants
from tests.runner.batch_scene import (
    POLL,
    SDKS,
    Faults,
    anthropic_of,
    body,
    changed,
    custom_ids,
    experiment,
    faulty_endpoints,
    has_ended,
    is_status,
    openai_of,
    ran,
    refusal,
    right,
    rows,
    said,
)
from tests.runner.scene import TOO_LONG, runner_at, stored
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli.commands import app
from tidegate.core.token_totals import added
from tidegate.core.values import Usage
from tidegate.errors import ConfigurationError
from tidegate.experiments import BatchTask, Budget, Experiment, Summary
from tidegate.experiments.commands.display import Display
from tidegate.experiments.declared import from_file
from tidegate.experiments.engine.batch import ItemSet
from tidegate.experiments.engine.batch.results import AccountKeys
from tidegate.experiments.engine.queues import Place
from tidegate.experiments.storage import ResultStatus, Status, StoredRun, claims
from tidegate.providers import ModelPrice, register_price
from tidegate.testing import Scenario, Simulator
from tidegate.testing.batches import BatchAnswer
from tidegate.testing.wire import Request


@pytest.fixture
def provider() -> Iterator[Simulator]:
    """A provider whose batches take a moment."""
    with Simulator(Scenario(batch_seconds=0.1)) as simulator:
        yield simulator


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """A provider without faults, until a test adds some."""
    return faulty_endpoints(monkeypatch)


@pytest.fixture(autouse=True)
def no_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 0.0)


HALF = ModelPrice(0.15, 0.6, batch=0.5)
"""The price of gpt-4o-mini at a server that speaks as OpenAI."""


@SDKS
def test_rows_are_answered_in_files_of_the_limit_and_judged(
    tmp_path: Path, provider: Simulator, client_of: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.providers._prices._added", {("compatible", "gpt-4o-mini"): HALF})
    ended = ran(tmp_path, client_of(provider), 7, most=3, repetitions=2)
    assert ended.summary.status is Status.COMPLETED
    assert ended.counts == {"ok": 14}
    assert [(one.evaluator, one.mean) for one in ended.summary.scores] == [("right", 1.0)]
    assert [(each.count, each.state) for each in ended.batches] == [(3, "fetched")] * 4 + [(2, "fetched")]
    ids = custom_ids(provider, kind)
    assert (len(ids), set(ids.values())) == (14, {1})
    assert all(re.fullmatch(r"tg-[0-9a-f]{32}", name) for name in ids)
    totals = ended.spend["task"]
    assert (totals.metered, totals.priced) == (14, 14 if kind == "openai" else 0)
    if kind == "openai":
        usage = Usage(totals.input_tokens, totals.output_tokens)
        assert totals.nanodollars == pytest.approx(HALF.nanodollars(usage) / 2, abs=14)


@pytest.mark.parametrize("client_of", [openai_of, anthropic_of], ids=["openai", "anthropic"])
def test_tokens_of_batches_are_counted_at_the_key_of_the_account_and_model(
    tmp_path: Path, provider: Simulator, client_of: Any
) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    client = tidegate.wrap(client_of(provider), registry=registry)
    made = experiment(client, 5)

    async def run() -> Any:
        async with client, runner_at(tmp_path, registry=registry, **POLL) as runner:
            summary = await runner.run(made)
            await made.task(rows(1)[0])
            return await runner.store.usages.spend(summary.experiment.id)

    spend = asyncio.run(asyncio.wait_for(run(), TOO_LONG))
    keys = registry.snapshot().keys
    (batches,) = [key for key in keys if key.family == "batch"]
    (single,) = [key for key in keys if key.family != "batch"]
    assert keys[batches].tokens == spend["task"]
    assert keys[batches].tokens.metered == 5
    assert keys[single].tokens.metered == 1
    assert keys[batches].calls == 0
    assert (batches.provider, batches.credential) == (single.provider, single.credential)
    assert single.base_url.startswith(batches.base_url)
    assert batches.scope == "gpt-4o-mini"


def test_key_of_batches_has_the_credential_of_single_calls_at_openai() -> None:
    registry = RateLimitRegistry(tidegate.Settings())

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    for given in ({}, {"organization": "o", "project": "p"}):
        http = httpx.Client(transport=httpx.MockTransport(answer))
        with tidegate.wrap(openai.OpenAI(api_key="any", http_client=http, **given), registry=registry) as client:
            client.post("/chat/completions", body=body({"n": 1}), cast_to=object)
            for _ in range(2):
                AccountKeys(client, "openai", registry).count("gpt-4o-mini", Usage(1, 1), None)
    keys = registry.snapshot().keys
    single = {key for key in keys if not key.family}
    assert {key._replace(family="") for key in keys if key.family} == single
    assert len(single) == 2


@pytest.mark.parametrize(
    ("client_of", "model"),
    [(openai_of, "gpt-4o-mini"), (anthropic_of, "claude-haiku-4-5")],
    ids=["openai", "anthropic"],
)
def test_batches_of_another_server_have_no_price_of_the_table(
    tmp_path: Path, provider: Simulator, client_of: Any, model: str
) -> None:
    """As single calls of the same client: nothing is guessed."""
    dataset = [{"n": n, "model": model} for n in range(2)]
    ended = ran(tmp_path, client_of(provider), dataset=dataset)
    totals = ended.spend["task"]
    assert (totals.metered, totals.priced) == (2, 0)


def test_alias_that_answers_as_another_model_has_its_own_price(
    tmp_path: Path, provider: Simulator, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.providers._prices._added", {("compatible", "ours"): HALF})

    def other(request: Request, answer: BatchAnswer) -> BatchAnswer:
        is_output = request.path.endswith("/content")
        return answer._replace(content=answer.content.replace(b'"ours"', b'"theirs"')) if is_output else answer

    faults.after = other
    ended = ran(tmp_path, openai_of(provider), dataset=[{"n": n, "model": "ours"} for n in range(2)])
    totals = ended.spend["task"]
    usage = Usage(totals.input_tokens, totals.output_tokens)
    assert (totals.metered, totals.priced) == (2, 2)
    assert totals.nanodollars == pytest.approx(HALF.nanodollars(usage) / 2, abs=2)


def test_price_and_model_of_a_batch_are_those_of_the_request(
    tmp_path: Path, provider: Simulator, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment of Azure has a name of the user's choice, and answers as the model behind it."""
    monkeypatch.setattr("tidegate.providers._prices._added", {})
    register_price("mine", ModelPrice(10.0, 20.0, batch=0.5), "azure")

    def other(request: Request, answer: BatchAnswer) -> BatchAnswer:
        is_output = request.path.endswith("/content")
        return answer._replace(content=answer.content.replace(b'"mine"', b'"gpt-4o-mini"')) if is_output else answer

    faults.after = other
    client = openai.AsyncAzureOpenAI(azure_endpoint=provider.url, api_key="any", api_version="2024-10-21")
    ended = ran(tmp_path, client, build=lambda row: {**body(row), "model": "mine"})
    totals = ended.spend["task"]
    assert {each.usages["task"].model for each in ended.runs} == {"mine"}
    assert totals.nanodollars == 5_000 * totals.input_tokens + 10_000 * totals.output_tokens > 0


def test_azure_batches_have_its_paths(tmp_path: Path, provider: Simulator) -> None:
    client = openai.AsyncAzureOpenAI(azure_endpoint=provider.url, api_key="any", api_version="2024-10-21")
    ended = ran(tmp_path, client, 4, most=2)
    assert ended.counts == {"ok": 4}
    assert {each.provider for each in ended.batches} == {"azure"}
    with openai.OpenAI(base_url=provider.openai_url, api_key="any") as plain:
        assert {each.endpoint for each in plain.batches.list()} == {"/chat/completions"}


def test_files_have_one_model_each(tmp_path: Path, provider: Simulator) -> None:
    dataset = [{"n": n, "model": f"m{n % 2}"} for n in range(6)]
    ended = ran(tmp_path, openai_of(provider), dataset=dataset)
    assert [each.items for each in ended.batches] == [
        tuple((1, n, n + 1) for n in range(first, 6, 2)) for first in (0, 1)
    ]
    assert ended.counts == {"ok": 6}


def test_row_that_the_provider_refuses_ends_with_its_reason(tmp_path: Path, provider: Simulator) -> None:
    def build(row: Any) -> dict[str, Any]:
        return body(row) if row["n"] != 2 else {"model": "gpt-4o-mini"}

    ended = ran(tmp_path, openai_of(provider), build=build)
    assert ended.counts == {"ok": 4, "error": 1}
    (bad,) = [each for each in ended.runs if each.status is ResultStatus.ERROR]
    assert (bad.ordinal, bad.error_kind, bool(bad.error)) == (2, "status 400", True)
    assert ended.summary.status is Status.COMPLETED


def test_row_that_is_not_built_fails_and_the_others_are_sent(tmp_path: Path, provider: Simulator) -> None:
    ended = ran(tmp_path, openai_of(provider), build=lambda row: body(row) if row["n"] else row["missing"])
    assert ended.counts == {"ok": 4, "error": 1}
    assert sum(custom_ids(provider).values()) == 4


def test_rows_of_an_expired_batch_go_back(tmp_path: Path, provider: Simulator, faults: Faults) -> None:
    def half(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if has_ended(request, answer) and not ended_early:
            return changed(answer, status="expired", request_counts={"total": 5, "completed": 3, "failed": 0})
        if request.path.endswith("/content") and not ended_early:
            ended_early.append(request.path)
            return answer._replace(content=b"".join(answer.content.splitlines(keepends=True)[:3]))
        return answer

    ended_early: list[str] = []
    faults.after = half
    ended = ran(tmp_path, openai_of(provider))
    assert ended.counts == {"ok": 5}
    assert [(each.count, each.detail) for each in ended.batches] == [(5, "expired"), (2, "completed")]
    assert Counter(each.attempts for each in ended.runs) == {1: 3, 2: 2}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_rows_of_a_batch_that_is_cancelled_elsewhere_go_back(tmp_path: Path, kind: str) -> None:
    with Simulator(Scenario(batch_seconds=1e6)) as provider:

        async def cancel(runner: Any) -> None:
            while not any(each.provider_id for each in await runner.store.batches.of(1)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            provider.configure(batch_seconds=0.05)
            (record,) = await runner.store.batches.of(1)
            client: Any = openai_of(provider) if kind == "openai" else anthropic_of(provider)
            async with client:
                await (client if kind == "openai" else client.messages).batches.cancel(record.provider_id)

        client = openai_of(provider) if kind == "openai" else anthropic_of(provider)
        ended = ran(tmp_path, client, during=cancel)
        assert ended.counts == {"ok": 5}
        assert [each.state for each in ended.batches] == ["fetched", "fetched"]
        assert str(ended.batches[0].detail).startswith("cancelled")
        assert {each.attempts for each in ended.runs} == {1}


@SDKS
@pytest.mark.parametrize("part", ["batch", "results"])
def test_batch_that_the_provider_has_deleted_is_given_up_by_the_second_resume(
    tmp_path: Path, provider: Simulator, faults: Faults, client_of: Any, kind: str, part: str
) -> None:
    first: list[str] = []

    def deleted(request: Request) -> BatchAnswer | None:
        looked = request.path.endswith(("/content", "/results")) if part == "results" else is_look(request)
        if request.method == "GET" and looked:
            first[:1] = first[:1] or [request.path]
            return refusal(404, "No such object") if request.path == first[0] else None
        return None

    def is_look(request: Request) -> bool:
        return request.path.startswith(("/v1/batches/", "/v1/messages/batches/"))

    faults.before = deleted
    creations = [("POST", "/v1/batches"), ("POST", "/v1/messages/batches")]

    def created() -> int:
        return sum(map(faults.asked.count, creations))

    ended = ran(tmp_path, client_of(provider))
    assert (ended.summary.status, ended.counts, created()) == (Status.ERROR, {}, 1)
    assert "is not at the provider (404)" in str(ended.summary.experiment.last_error)
    assert [each.state == "fetched" for each in ended.batches] == [False]
    # With the right account it is found again, and nothing is paid twice.
    faults.before = lambda request: None
    other = tmp_path / "other"
    other.mkdir()
    (other / "runs.db").write_bytes((tmp_path / "runs.db").read_bytes())
    ended = ran(other, client_of(provider), resume=True)
    assert (ended.counts, created()) == ({"ok": 5}, 1)
    faults.before = deleted
    ended = ran(tmp_path, client_of(provider), resume=True)
    assert (ended.summary.status, ended.counts, created()) == (Status.COMPLETED, {"ok": 5}, 2)
    assert [str(each.state) for each in ended.batches] == ["fetched", "fetched"]


def test_batches_are_shown_and_listed_with_their_state(tmp_path: Path, provider: Simulator, faults: Faults) -> None:
    faults.after = lambda request, answer: changed(answer, status="paused") if is_status(request) else answer
    (record,) = ran(tmp_path, openai_of(provider)).batches
    place = ["--db", str(tmp_path / "runs.db")]
    said = CliRunner().invoke(app, ["experiment", "show", "e", *place]).output
    assert f"batches: 1 submitted\n  1: submitted, 5 rows, openai {record.provider_id}: batch 1 failed: " in said
    facts = json.loads(CliRunner().invoke(app, ["experiment", "show", "e", *place, "--json"]).output)
    assert facts["batches"] == [
        {"batch": 1, "provider": "openai", "id": record.provider_id, "state": "submitted", "rows": 5,
         "detail": record.detail}
    ]  # fmt: skip
    listed = json.loads(CliRunner().invoke(app, ["experiment", "show", *place, "--json"]).output)
    assert listed["batches"] == {"submitted": 1}
    faults.after = lambda request, answer: answer
    ran(tmp_path, openai_of(provider), resume=True)
    assert "batches: 1 fetched\n" in CliRunner().invoke(app, ["experiment", "show", "e", *place]).output


YAML = """
name: e
dataset: rows.jsonl
task: {{provider: {kind}, model: gpt-4o-mini, base_url: "{url}", system: Be short., prompt: "q{{n}}"}}
batch: {batch}
{more}
"""


def declared(
    path: Path, provider: Simulator, kind: str, batch: str = "{max_requests: 3}", more: str = ""
) -> Experiment:
    """The experiment of a file."""
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(5)))
    url = provider.url if kind == "anthropic" else provider.openai_url
    (path / "experiment.yaml").write_text(YAML.format(kind=kind, url=url, batch=batch, more=more))
    return from_file(path / "experiment.yaml")


@pytest.mark.parametrize("kind", ["openai", "azure", "anthropic"])
def test_declared_experiment_is_answered_in_batches(
    tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")

    async def run() -> tuple[Summary, list[StoredRun]]:
        async with runner_at(tmp_path, **POLL) as runner:
            summary = await runner.run(declared(tmp_path, provider, kind))
            return summary, await stored(runner.store, summary.experiment.id)

    summary, runs = asyncio.run(run())
    assert [each.count for each in summary.batches] == [3, 2]
    assert [each.output for each in runs] == [f"You said: q{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("kind", "batch", "more", "told"),
    [
        ("google", "{}", "", "line 5, batch.*only openai, azure"),
        ("openai", "{}", "spread: true", "spread.*no spread beside `batch`"),
        ("openai", "{}", "budget: {tokens: 5}", "budget.*no budget beside `batch`"),
        ("openai", "{max_requests: 0}", "", "batch.max_requests"),
        ("openai", "true", "", "line 5, batch"),
    ],
)
def test_wrong_declaration_is_refused(
    tmp_path: Path, provider: Simulator, kind: str, batch: str, more: str, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        declared(tmp_path, provider, kind, batch, more)


def test_rate_limits_of_the_batch_endpoints_are_waited_for(tmp_path: Path, provider: Simulator, faults: Faults) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def limited(request: Request) -> BatchAnswer | None:
        seen[request.method, request.path] += 1
        return refusal(429, "slow down") if seen[request.method, request.path] == 1 else None

    faults.before = limited
    client = openai.AsyncOpenAI(base_url=provider.openai_url, api_key="any", max_retries=0)
    ended = ran(tmp_path, client, 4, most=2)
    assert ended.counts == {"ok": 4}
    assert set(custom_ids(provider).values()) == {1}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_batch_whose_creation_was_not_answered_is_found(
    tmp_path: Path, provider: Simulator, faults: Faults, kind: str
) -> None:
    lost: list[str] = []

    def unanswered(request: Request, answer: BatchAnswer) -> BatchAnswer:
        if request.method == "POST" and request.path.endswith("/batches") and len(lost) < 2:
            lost.append(request.path)
            return refusal(500, "lost")
        return answer

    faults.after = unanswered
    client: Any = openai_of(provider) if kind == "openai" else anthropic_of(provider)
    ended = ran(tmp_path, client, 4, most=2)
    assert (ended.counts, len(lost)) == ({"ok": 4}, 2)
    assert set(custom_ids(provider, kind).values()) == {1}
    assert len({each.provider_id for each in ended.batches}) == 2


def test_batch_that_the_provider_rejects_ends_the_run_with_its_reason(
    tmp_path: Path, provider: Simulator, faults: Faults
) -> None:
    error = {"code": "model_not_found", "message": "The model m has no batches", "line": 1, "param": None}
    failed = {"status": "failed", "errors": {"object": "list", "data": [error]}, "output_file_id": None}
    faults.after = lambda request, answer: changed(answer, **failed) if is_status(request) else answer
    ended = ran(tmp_path, openai_of(provider))
    assert (ended.summary.status, ended.counts, len(ended.batches)) == (Status.ERROR, {}, 1)
    assert "The model m has no batches" in str(ended.summary.experiment.last_error)
    faults.after = lambda request, answer: answer
    assert ran(tmp_path, openai_of(provider), resume=True).counts == {"ok": 5}


def test_answers_stay_at_the_provider_while_parse_is_wrong(tmp_path: Path, provider: Simulator) -> None:
    ended = ran(tmp_path, openai_of(provider), 8, parse=lambda answer: answer["no such key"])
    assert ended.summary.status is Status.ERROR
    assert [each.state for each in ended.batches] == ["ended"]
    ended = ran(tmp_path, openai_of(provider), 8, resume=True)
    assert (ended.counts, len(ended.batches)) == ({"ok": 8}, 1)
    assert set(custom_ids(provider).values()) == {1}
    # What is read again was paid for once.
    assert ended.spend["task"].metered == 8
    assert added(each.usages["task"].tokens for each in ended.runs) == ended.spend["task"]


def test_rows_in_batches_are_not_called_one_by_one(
    tmp_path: Path, provider: Simulator, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.after = lambda request, answer: changed(answer, status="paused") if is_status(request) else answer
    ran(tmp_path, openai_of(provider))

    async def again() -> Summary:
        made = Experiment("e", rows(5), lambda row: "called")
        async with runner_at(tmp_path, restore=lambda spec: made) as runner:
            await runner.resume("e")
            return await runner.wait("e")

    summary = asyncio.run(again())
    assert summary.status is Status.ERROR
    assert "1 of its batches are not fetched" in str(summary.experiment.last_error)
    assert "Traceback" not in caplog.text
    assert not summary.counts.runs.get(ResultStatus.OK)


@SDKS
def test_task_runs_row_by_row_without_batch(tmp_path: Path, provider: Simulator, client_of: Any, kind: str) -> None:
    client = client_of(provider)

    async def run() -> Summary:
        made = Experiment("e", rows(3), BatchTask(body, said, client=client), [right])
        async with runner_at(tmp_path) as runner:
            summary = await runner.run(made)
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed
        return summary

    assert dict(asyncio.run(run()).counts.runs) == {ResultStatus.OK: 3}
    assert custom_ids(provider, kind) == {}


def test_other_functions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="BatchTask"):
        Experiment("e", rows(1), lambda row: row, batch=True)
    task = BatchTask(body, said, client=object())
    with pytest.raises(ConfigurationError, match="without spread"):
        Experiment("e", rows(1), task, batch=True, spread=True)
    with pytest.raises(ConfigurationError, match="without a budget"):
        Experiment("e", rows(1), task, batch=True, budget=Budget(tokens=1))


@pytest.mark.parametrize("option", [["--budget-usd", "1"], ["--budget-tokens", "10"]])
def test_budget_of_a_command_is_refused_and_changes_nothing(
    tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    declared(tmp_path, provider, "compatible")
    place = ["--db", str(tmp_path / "runs.db")]
    source = str(tmp_path / "experiment.yaml")
    refused = CliRunner().invoke(app, ["experiment", "run", source, *option, *place])
    assert CliRunner().invoke(app, ["experiment", "show", *place, "--json"]).output == ""
    assert CliRunner().invoke(app, ["experiment", "run", source, *place]).exit_code == 0
    again = CliRunner().invoke(app, ["experiment", "run", "e", *option, *place])
    for each in (refused, again):
        assert each.exit_code == 2
        assert each.output.endswith("none for an experiment with batch=True: a whole file is paid for at once\n")
    listed = json.loads(CliRunner().invoke(app, ["experiment", "show", *place, "--json"]).output)
    assert listed["status"] == "COMPLETED"


def test_resume_of_a_batch_experiment_with_a_budget_is_refused_and_changes_nothing(
    tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    experiment = declared(tmp_path, provider, "compatible")

    async def run() -> Status:
        async with runner_at(tmp_path, **POLL) as runner:
            await runner.run(experiment)
        async with runner_at(tmp_path, restore=lambda spec: experiment, budget_usd=1.0, **POLL) as runner:
            with pytest.raises(ConfigurationError, match="none for an experiment with batch=True"):
                await runner.resume("e")
            row = await runner.store.experiments.find("e")
            assert row is not None
            return row.status

    assert asyncio.run(run()) is Status.COMPLETED


def test_display_of_a_run_says_how_many_rows_are_in_batches(
    tmp_path: Path, provider: Simulator, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    constants.replace(**POLL)
    update, notes = Display.update, []

    def seen(self: Display, *given: Any) -> None:
        notes.append(self.note)
        update(self, *given)

    monkeypatch.setattr(Display, "update", seen)
    note = "5 rows are in batches of the provider"
    looks = iter(range(500))

    def unfinished(request: Request, answer: Any) -> Any:
        # The batch lasts until the display has told of it, and not for ever where it never does.
        held = is_status(request) and note not in notes and next(looks, None) is not None
        return changed(answer, status="in_progress") if held else answer

    faults.after = unfinished
    declared(tmp_path, provider, "compatible", "{}")
    done = CliRunner().invoke(
        app, ["experiment", "run", str(tmp_path / "experiment.yaml"), "--db", str(tmp_path / "runs.db")]
    )
    assert done.exit_code == 0
    assert note in notes


def test_comparison_has_no_time_of_a_batch_and_the_known_part_of_its_cost(
    tmp_path: Path, provider: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.providers._prices._added", {("compatible", "gpt-4o-mini"): HALF})
    ran(tmp_path, openai_of(provider), dataset=[{"n": 1}, {"n": 2}, {"n": 3, "model": "other"}])
    place = ["--db", str(tmp_path / "runs.db")]
    told = CliRunner().invoke(app, ["experiment", "compare", "e", "e", *place]).output
    (line,) = [each for each in told.splitlines() if each.startswith("A  ")]
    words = line.split()
    assert words[:5] == ["A", "e", "3", "0", "–"]
    assert words[-2] == "≥"
    assert f" ≥ {words[-1]} " in CliRunner().invoke(app, ["experiment", "show", *place]).output


def test_items_of_a_batch_are_kept_as_ranges() -> None:
    items = ItemSet()
    places = [Place(ordinal, repetition) for ordinal in (0, 1, 2, 5, 6) for repetition in (1, 2)]
    for place in places:
        items.add(place)
    assert items.ranges == ((1, 0, 3), (1, 5, 7), (2, 0, 3), (2, 5, 7))
    again = ItemSet(items.ranges)
    assert (sorted(again), len(again), again.first, again.end) == (places, 10, 0, 7)
    assert [Place(n, 1) in again for n in range(8)] == [True, True, True, False, False, True, True, False]
    assert Place(0, 3) not in again
