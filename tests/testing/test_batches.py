"""Files, batches and token counts of the simulator, through the SDKs that read their real forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Scenario, Simulator
from tidegate.testing.batches import BatchApi
from tidegate.testing.server import LoggedRequest
from tidegate.testing.wire import Request

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


def test_openai_batch_ends_after_its_time() -> None:
    now = 0.0
    api = BatchApi(lambda path, body: (200, {}), lambda: Scenario(batch_seconds=60.0), lambda: now)

    def ask(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        answer = api.handle(Request(method, path, {"content-type": kind}, body))
        assert answer is not None
        return json.loads(answer[1])

    form = httpx.Request("POST", "http://any", files={"file": jsonl(QUESTION)}, data={"purpose": "batch"})
    stored = ask("POST", "/v1/files", form.read(), form.headers["content-type"])
    order = {"input_file_id": stored["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = ask("POST", "/v1/batches", json.dumps(order).encode())
    now = 59.0
    assert ask("GET", f"/v1/batches/{made['id']}")["status"] == "in_progress"
    now = 60.0
    assert ask("GET", f"/v1/batches/{made['id']}")["status"] == "completed"


def test_unknown_file_or_batch_is_the_providers_error(instant: Simulator) -> None:
    client = openai_of(instant)
    with pytest.raises(openai.BadRequestError, match="Invalid 'input_file_id'"):
        client.batches.create(input_file_id="file-0", endpoint="/v1/embeddings", completion_window="24h")
    for look in (client.files.retrieve, client.batches.retrieve, client.batches.cancel, client.files.content):
        with pytest.raises(openai.NotFoundError):
            look("none")


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


def test_anthropic_batch_is_cancelled_before_its_end(endless: Simulator) -> None:
    client = anthropic_of(endless)
    made = client.messages.batches.create(requests=[{"custom_id": "a", "params": {**QUESTION, "max_tokens": 9}}])  # type: ignore[typeddict-item]
    assert (made.processing_status, made.request_counts.processing, made.results_url) == ("in_progress", 1, None)
    assert client.messages.batches.cancel(made.id).processing_status == "canceling"
    ended = client.messages.batches.retrieve(made.id)
    assert (ended.processing_status, ended.request_counts.canceled) == ("ended", 1)
    assert [each.result.type for each in client.messages.batches.results(made.id)] == ["canceled"]


def test_anthropic_tokens_are_counted(instant: Simulator) -> None:
    counted = anthropic_of(instant).messages.count_tokens(model="m", messages=[{"role": "user", "content": "x" * 400}])
    assert counted.input_tokens == 100


def test_batches_and_files_pass_a_wrapped_client_without_a_queue(instant: Simulator) -> None:
    registry = RateLimitRegistry()
    client = registry.wrap(openai_of(instant))
    stored = client.files.create(file=jsonl(QUESTION), purpose="batch")
    client.batches.create(input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert registry.snapshot().keys == {}


def test_request_log_has_one_entry_for_each_answer() -> None:
    logged: list[LoggedRequest] = []
    with Simulator(Scenario(), log=logged.append) as simulator:
        httpx.post(f"{simulator.url}/v1/chat/completions", json=QUESTION)
        httpx.post(f"{simulator.url}/v1/chat/completions", json={**QUESTION, "stream": True})
        httpx.get(f"{simulator.url}/nowhere")
        httpx.get(f"{simulator.url}/_tidegate/truth")
    assert [(each.method, each.path, each.status) for each in logged] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/nowhere", 404),
    ]
    assert str(logged[0]).split()[1:4] == ["200", "POST", "/v1/chat/completions"]
