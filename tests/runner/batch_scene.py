"""Experiments that a provider's Batch API answers, the clients that ask it, and faults of its endpoints."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.runner.scene import TOO_LONG, runner_at, stored
from tidegate.experiments import BatchTask, Experiment, Summary
from tidegate.experiments.storage import BatchRecord, StoredRun
from tidegate.testing import Simulator
from tidegate.testing.batches import BatchAnswer, BatchApi
from tidegate.testing.wire import Request

POLL = {
    "POLL_SECONDS": 0.02,
    "SEARCH_SECONDS": 0.1,
    "SETTLE_SECONDS": 0.02,
    "FIRST_BACKOFF_SECONDS": 0.01,
    "MAX_BACKOFF_SECONDS": 0.05,
}
"""Constants that look at batches often, and believe soon that a request without an answer had no effect."""


class Faults:
    """Faults of the provider's batch endpoints: `before` may answer a request, `after` may change an answer.

    `asked` are the requests that the endpoints got, and `send` makes one of another client.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.send: Callable[[Request], BatchAnswer | None]
        self.before: Callable[[Request], BatchAnswer | None] = lambda request: None
        self.after: Callable[[Request, BatchAnswer], BatchAnswer] = lambda request, answer: answer


def faulty_endpoints(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """A provider without faults, until a test adds some."""
    made, handle = Faults(), BatchApi.handle

    def faulty(self: BatchApi, request: Request) -> BatchAnswer | None:
        made.asked.append((request.method, request.path))
        made.send = partial(handle, self)
        answer = made.before(request)
        if answer is not None:
            return answer
        answer = handle(self, request)
        return None if answer is None else made.after(request, answer)

    monkeypatch.setattr(BatchApi, "handle", faulty)
    return made


def refusal(status: int, message: str) -> BatchAnswer:
    content = json.dumps({"error": {"message": message, "type": "t", "code": None}}).encode()
    return BatchAnswer(status, content, "application/json")


def changed(answer: BatchAnswer, **changes: Any) -> BatchAnswer:
    """An answer whose object has other values."""
    return answer._replace(content=json.dumps({**json.loads(answer.content), **changes}).encode())


def is_status(request: Request) -> bool:
    return request.method == "GET" and request.path.startswith("/v1/batches/")


def has_ended(request: Request, answer: BatchAnswer) -> bool:
    """Whether this is the status of a batch that is complete."""
    return is_status(request) and json.loads(answer.content)["status"] == "completed"


def openai_of(provider: Simulator) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=provider.openai_url, api_key="any")


def anthropic_of(provider: Simulator) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=provider.url, api_key="any")


def body(row: Any) -> dict[str, Any]:
    return {
        "model": row.get("model", "gpt-4o-mini"),
        "max_tokens": 9,
        "messages": [{"role": "user", "content": f"q{row['n']}"}],
    }


def said(answer: Any) -> str:
    """The text of an answer of either provider."""
    return str(answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"][0]["text"])


def rows(count: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(count)]


def right(row: Any, output: Any) -> bool:
    return bool(output == f"You said: q{row['n']}")


def experiment(client: Any, count: int = 5, **given: Any) -> Experiment:
    task = BatchTask(
        given.pop("build", body), given.pop("parse", said), client=client, max_requests=given.pop("most", None)
    )
    return Experiment(given.pop("name", "e"), given.pop("dataset", rows(count)), task, [right], batch=True, **given)


def custom_ids(provider: Simulator, kind: str = "openai") -> Counter[str]:
    """How often each id is in a batch at the provider."""
    if kind == "anthropic":
        with anthropic.Anthropic(base_url=provider.url, api_key="any") as client:
            batches = [client.messages.batches.results(each.id) for each in client.messages.batches.list()]
            return Counter(line.custom_id for batch in batches for line in batch)
    with openai.OpenAI(base_url=provider.openai_url, api_key="any") as client:
        files = [client.files.content(each.input_file_id).text for each in client.batches.list()]
        return Counter(json.loads(line)["custom_id"] for text in files for line in text.splitlines())


SDKS = pytest.mark.parametrize(
    ("client_of", "kind"),
    [(openai_of, "openai"), (anthropic_of, "anthropic"),
     (lambda p: openai.OpenAI(base_url=p.openai_url, api_key="any"), "openai"),
     (lambda p: anthropic.Anthropic(base_url=p.url, api_key="any"), "anthropic")],
    ids=["openai", "anthropic", "openai-sync", "anthropic-sync"],
)  # fmt: skip


class Ended:
    """An experiment after a run: its summary, its batches, its runs."""

    def __init__(self, summary: Summary, batches: list[BatchRecord], runs: list[StoredRun], spend: Any) -> None:
        self.summary = summary
        self.batches = batches
        self.runs = runs
        self.spend = spend

    @property
    def counts(self) -> dict[str, int]:
        return {str(status): count for status, count in self.summary.counts.runs.items() if count}


def ran(path: Path, client: Any, *args: Any, resume: bool = False, during: Any = None, **given: Any) -> Ended:
    """Run an experiment to its end in a loop of its own."""

    async def run() -> Ended:
        made = experiment(client, *args, **given)
        async with runner_at(path, restore=lambda spec: made, **POLL) as runner:
            if resume:
                await runner.resume("e")
            else:
                await runner.start(made)
            beside = asyncio.create_task(during(runner)) if during else None
            summary = await runner.wait("e")
            if beside is not None:
                await beside
            number = summary.experiment.id
            ended = Ended(
                summary, await runner.store.batches.of(number), await stored(runner.store, number),
                await runner.store.usages.spend(number),
            )  # fmt: skip
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed
        return ended

    return asyncio.run(asyncio.wait_for(run(), TOO_LONG))
