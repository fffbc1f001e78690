"""Answers under a 200 that nobody can read: each is asked for again, through the real SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.raw_server import RawServer, Reply
from tests.runner.scene import in_loop, ran, rows, runner_at, stored
from tests.sdk.asking import make, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment
from tidegate.experiments.storage import ResultStatus, Status

OPENAI = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
}  # fmt: skip
ANTHROPIC = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "fine"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "fine"}]}, "finishReason": "STOP"}]}
BEDROCK = {
    "output": {"message": {"role": "assistant", "content": [{"text": "fine"}]}}, "stopReason": "end_turn",
    "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}, "metrics": {"latencyMs": 1},
}  # fmt: skip


def asking_openai(url: str, registry: RateLimitRegistry) -> Callable[[Any], Any]:
    client = registry.wrap(make("async_openai", url))

    async def ask(row: Any) -> str:
        return str((await request("async_openai", client)).choices[0].message.content)

    return ask


def asking_anthropic(url: str, registry: RateLimitRegistry) -> Callable[[Any], Any]:
    client = registry.wrap(make("async_anthropic", url))

    async def ask(row: Any) -> str:
        return str((await request("async_anthropic", client)).content[0].text)

    return ask


def asking_gemini(url: str, registry: RateLimitRegistry) -> Callable[[Any], Any]:
    from google import genai

    client = registry.wrap(genai.Client(api_key="AIza-test", http_options={"base_url": url}))

    async def ask(row: Any) -> str:
        answer = await client.aio.models.generate_content(model="gemini-test", contents="how high?")
        return str(answer.candidates[0].content.parts[0].text)

    return ask


def asking_bedrock(url: str, registry: RateLimitRegistry) -> Callable[[Any], Any]:
    import boto3

    client = registry.wrap(
        boto3.client(
            "bedrock-runtime", region_name="us-east-1", endpoint_url=url,
            aws_access_key_id="AKIATEST", aws_secret_access_key="test",
        )
    )  # fmt: skip

    def ask(row: Any) -> str:
        answer = client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "how high?"}]}])
        return str(answer["output"]["message"]["content"][0]["text"])

    return ask


CLIENTS = {
    "openai": (asking_openai, OPENAI),
    "anthropic": (asking_anthropic, ANTHROPIC),
    "gemini": (asking_gemini, GEMINI),
    "bedrock": (asking_bedrock, BEDROCK),
}


def cut(whole: bytes) -> Reply:
    return Reply(body=whole[: len(whole) // 2])


def page(whole: bytes) -> Reply:
    return Reply(body=b"<html>gateway</html>", kind="text/html")


def mislabelled(whole: bytes) -> Reply:
    return Reply(body=b"<html>gateway</html>")


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
@pytest.mark.parametrize("garbled", [cut, page, mislabelled])
@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_answer_that_is_garbled_is_asked_for_again(
    tmp_path: Path, client: str, garbled: Callable[[bytes], Reply]
) -> None:
    asking, document = CLIENTS[client]
    whole = json.dumps(document).encode()
    # Three attempts are spent, by whatever rows come first.
    with RawServer(lambda number: garbled(whole) if number <= 3 else Reply(body=whole)) as server:
        registry = RateLimitRegistry(tidegate.Settings())
        async with runner_at(tmp_path, registry=registry, max_concurrency=1, attempts=9) as runner:
            experiment = Experiment("e", rows(3), asking(server.url, registry))
            summary = await runner.run(experiment)
            runs = await stored(runner.store, summary.experiment.id)
    assert [(run.status, run.output, run.error) for run in runs] == [(ResultStatus.OK, "fine", None)] * 3
    assert sum(run.attempts for run in runs) == 6


@in_loop
async def test_answers_that_are_always_garbled_are_errors_after_all_attempts(tmp_path: Path) -> None:
    with RawServer(lambda _: cut(b'{"choices": []}')) as server:
        registry = RateLimitRegistry(tidegate.Settings())
        summary, runs = await ran(
            tmp_path,
            Experiment("e", rows(2), asking_openai(server.url, registry)),
            registry=registry,
            max_concurrency=1,
        )
    assert [(run.status, run.attempts) for run in runs] == [(ResultStatus.ERROR, 3)] * 2
    assert summary.status is Status.COMPLETED


@in_loop
async def test_bug_of_the_function_after_a_whole_answer_has_one_attempt(tmp_path: Path) -> None:
    with RawServer(lambda _: Reply(body=json.dumps(OPENAI).encode())) as server:
        registry = RateLimitRegistry(tidegate.Settings())
        ask = asking_openai(server.url, registry)

        async def broken(row: Any) -> Any:
            return (await ask(row)).no_such_thing  # type: ignore[attr-defined]

        _, runs = await ran(tmp_path, Experiment("e", rows(2), broken), registry=registry)
    assert [(run.status, run.attempts) for run in runs] == [(ResultStatus.ERROR, 1)] * 2
