"""Files, batches and token counts of the simulator, through the SDKs that read their real forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Scenario, Simulator

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def jsonl(*bodies: Any, url: str = "/v1/chat/completions") -> bytes:
    rows = [{"custom_id": f"r{n}", "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def instant() -> Any:
    with Simulator(Scenario(batch_seconds=0.0)) as simulator:
        yield simulator


@pytest.fixture
def endless() -> Any:
    with Simulator(Scenario(batch_seconds=1e6)) as simulator:
        yield simulator


opened: list[openai.OpenAI | anthropic.Anthropic] = []


@pytest.fixture(autouse=True)
def closes_clients() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def openai_of(simulator: Simulator) -> openai.OpenAI:
    client = openai.OpenAI(base_url=simulator.openai_url, api_key="any", max_retries=0)
    opened.append(client)
    return client


def anthropic_of(simulator: Simulator) -> anthropic.Anthropic:
    client = anthropic.Anthropic(base_url=simulator.url, api_key="any", max_retries=0)
    opened.append(client)
    return client


def test_openai_batch_is_uploaded_created_and_its_output_read(instant: Simulator) -> None:
    client = openai_of(instant)
    stored = client.files.create(file=("in.jsonl", jsonl(QUESTION, {"model": "m"})), purpose="batch")
    assert (stored.filename, stored.purpose) == ("in.jsonl", "batch")
    made = client.batches.create(
        input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    batch = client.batches.retrieve(made.id)
    assert (batch.status, batch.metadata) == ("completed", {"a": "b"})
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    (line,) = [json.loads(each) for each in client.files.content(batch.output_file_id).text.splitlines()]
    assert (line["custom_id"], line["error"], line["response"]["status_code"]) == ("r0", None, 200)
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "You said: hi"
    (bad,) = [json.loads(each) for each in client.files.content(batch.error_file_id).text.splitlines()]
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("r1", 400)
    assert [each.id for each in client.batches.list()] == [made.id]
    assert client.files.retrieve(stored.id) == stored
    assert client.files.delete(stored.id).deleted


def test_openai_batch_is_cancelled_before_its_end(endless: Simulator) -> None:
    client = openai_of(endless)
    stored = client.files.create(file=jsonl(QUESTION), purpose="batch")
    made = client.batches.create(input_file_id=stored.id, endpoint="/v1/embeddings", completion_window="24h")
    assert (made.status, made.output_file_id) == ("in_progress", None)
    assert client.batches.cancel(made.id).status == "cancelling"
    ended = client.batches.retrieve(made.id)
    assert (ended.status, ended.output_file_id, ended.completed_at) == ("cancelled", None, None)


def test_anthropic_batch_is_created_and_its_results_read(instant: Simulator) -> None:
    client = anthropic_of(instant)
    good: Any = {"custom_id": "a", "params": {**QUESTION, "max_tokens": 9}}
    bad: Any = {"custom_id": "b", "params": QUESTION}
    made = client.messages.batches.create(requests=[good, bad])
    batch = client.messages.batches.retrieve(made.id)
    assert (batch.processing_status, batch.request_counts.succeeded, batch.request_counts.errored) == ("ended", 1, 1)
    results = {each.custom_id: each.result for each in client.messages.batches.results(made.id)}
    assert results["a"].type == "succeeded"
    assert results["a"].message.content[0].text == "You said: hi"  # type: ignore[union-attr]
    assert results["b"].type == "errored"
    assert "max_tokens" in results["b"].error.error.message
    assert [each.id for each in client.messages.batches.list()] == [made.id]
    assert client.messages.batches.delete(made.id).type == "message_batch_deleted"


def test_batches_and_files_pass_a_wrapped_client_without_a_queue(instant: Simulator) -> None:
    registry = RateLimitRegistry()
    client = registry.wrap(openai_of(instant))
    stored = client.files.create(file=jsonl(QUESTION), purpose="batch")
    client.batches.create(input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert registry.snapshot().keys == {}
