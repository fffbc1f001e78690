"""Asks a simulated or mocked provider through real SDK clients, plain or wrapped, on threads or on a loop."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import anthropic
import openai

from tidegate.admission.registry import RateLimitRegistry

OPENAI_3 = int(openai.__version__.partition(".")[0]) >= 3

http = importlib.import_module("httpx2" if OPENAI_3 else "httpx")
anthropic_http = importlib.import_module("httpx2")

KINDS = ("openai", "async_openai", "anthropic", "async_anthropic")
OPENAI_KINDS = KINDS[:2]
MESSAGES = [{"role": "user", "content": "How high is the tide?"}]


def http_of(kind: str) -> ModuleType:
    return http if "openai" in kind else anthropic_http


def make(kind: str, url: str, **options: Any) -> Any:
    """A client of the SDK of `kind` for the server at `url` (without /v1)."""
    options.setdefault("api_key", "sk-a-secret-of-the-tests")
    if kind == "openai":
        return openai.OpenAI(base_url=f"{url}/v1", **options)
    if kind == "async_openai":
        return openai.AsyncOpenAI(base_url=f"{url}/v1", **options)
    if kind == "anthropic":
        return anthropic.Anthropic(base_url=url, **options)
    return anthropic.AsyncAnthropic(base_url=url, **options)


def mocked(kind: str, handler: Callable[[Any], Any], url: str = "https://provider.test", **options: Any) -> Any:
    """A client of the SDK of `kind` whose every request is answered by `handler`."""
    module = http_of(kind)
    client = module.AsyncClient if kind.startswith("async") else module.Client
    return make(kind, url, http_client=client(transport=module.MockTransport(handler)), **options)


def request(kind: str, client: Any, **fields: Any) -> Any:
    """One question: the answer, or a coroutine of it."""
    if "openai" in kind:
        return client.chat.completions.create(**{"model": "gpt-test", "messages": MESSAGES, **fields})
    return client.messages.create(**{"model": "claude-test", "max_tokens": 64, "messages": MESSAGES, **fields})


def ask(kind: str, client: Any, count: int = 1, **fields: Any) -> list[Any]:
    """`count` questions at once, on threads or on one loop; each result is the answer or the exception."""
    if kind.startswith("async"):
        return asyncio.run(_ask_on_loop(kind, client, count, fields))
    results: list[Any] = [None] * count

    def work(row: int) -> None:
        try:
            results[row] = request(kind, client, **fields)
        except Exception as error:
            results[row] = error

    threads = [threading.Thread(target=work, args=(row,)) for row in range(count)]
    with client:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


async def _ask_on_loop(kind: str, client: Any, count: int, fields: dict[str, Any]) -> list[Any]:
    async with client:
        return await asyncio.gather(*(request(kind, client, **fields) for _ in range(count)), return_exceptions=True)


def failures(results: list[Any]) -> list[BaseException]:
    return [result for result in results if isinstance(result, BaseException)]


def only(registry: RateLimitRegistry) -> Any:
    (key,) = registry.snapshot().keys.values()
    return key


def at_rest(registry: RateLimitRegistry) -> bool:
    snapshot = registry.snapshot()
    return (snapshot.in_flight, snapshot.waiting) == (0, 0)


def answer_body(kind: str) -> dict[str, Any]:
    """A complete answer, as the provider of `kind` sends it."""
    if "openai" in kind:
        message = {"role": "assistant", "content": "High."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "High."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }


class Script:
    """A mock provider that plays its answers in order, then repeats the last; it counts the requests."""

    def __init__(self, kind: str, *answers: tuple[int, dict[str, str], Any]) -> None:
        self.kind = kind
        self.answers = answers
        self.requests: list[Any] = []

    def __call__(self, request: Any) -> Any:
        status, headers, body = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        pairs = {"content-type": "application/json", **headers}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]
        return http_of(self.kind).Response(status, headers=raw, content=content)


def ok(kind: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    """A 200 of a script; underscores in header names become hyphens."""
    return 200, {name.replace("_", "-"): value for name, value in headers.items()}, answer_body(kind)


def refusal(kind: str, code: str = "rate_limit_exceeded", message: str = "Rate limit reached", **headers: str) -> Any:
    """A 429 of a script."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if "openai" in kind:
        return 429, fields, {"error": {"message": message, "type": code, "param": None, "code": code}}
    return 429, fields, {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
