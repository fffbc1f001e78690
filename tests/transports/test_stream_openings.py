"""Streams that fail before their content are sent again; their reader sees only the stream after the failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

import tidegate
from tests.transports.answering import BODY, Reply, Server, only
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.stream_openings import is_opening

SSE = {"content-type": "text/event-stream"}
OVERLOADED = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"Paris"},"finish_reason":null}]}\n\n'
GOOD = ROLE + PIECE + b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
FAILED = b"event: error\ndata: " + OVERLOADED + b"\n\n"
START = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
STREAMED = {**BODY, "stream": True}

Ask = Callable[[RateLimitRegistry, str], bytes]


def by_sync(registry: RateLimitRegistry, url: str) -> bytes:
    with registry.wrap(httpx.Client()) as client, client.stream("POST", url, json=STREAMED) as response:
        return b"".join(response.iter_bytes())


def by_async(registry: RateLimitRegistry, url: str) -> bytes:
    async def ask() -> bytes:
        async with registry.wrap(httpx.AsyncClient()) as client, client.stream("POST", url, json=STREAMED) as response:
            return b"".join([chunk async for chunk in response.aiter_bytes()])

    return asyncio.run(ask())


def replies(*bodies: bytes | None) -> Callable[[int, str], Reply]:
    """Answer 200 with these bodies in turn, the last one for ever; None breaks the connection before the first byte."""

    def reply(number: int, path: str) -> Reply:
        body = bodies[min(number, len(bodies)) - 1]
        if body is None:
            return 200, {**SSE, "content-length": "100"}, iter(())
        return 200, SSE, body

    return reply


stacks = pytest.mark.parametrize("ask", [by_sync, by_async])
quick = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)


@quick
@stacks
@pytest.mark.parametrize(
    "opening", [b"", START, ROLE, b": keep-alive\n\n"], ids=["nothing", "start", "role", "comment"]
)
def test_refusal_before_any_content_is_waited_out(ask: Ask, opening: bytes) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(opening + FAILED, GOOD)) as server:
        assert ask(registry, server.chat) == GOOD
        assert server.bodies[0] == server.bodies[1]
    seen = only(registry)
    assert (seen.refused, seen.absorbed, seen.answered, seen.failed_calls, seen.calls) == (1, 1, 1, 0, 1)


@quick
@stacks
def test_break_before_any_content_is_sent_again(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(None, GOOD)) as server:
        assert ask(registry, server.chat) == GOOD
    seen = only(registry)
    assert (seen.answered, seen.failed_calls, seen.calls) == (1, 0, 1)


@quick
@stacks
def test_stream_that_always_breaks_ends_with_the_clients_own_error(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(None)) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(registry, server.chat)
        assert len(server.seen) == 3
    seen = only(registry)
    assert (seen.answered, seen.failed_calls, seen.calls) == (0, 1, 1)


@stacks
def test_failure_after_content_is_the_readers(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(ROLE + PIECE + FAILED, GOOD)) as server:
        assert ask(registry, server.chat) == ROLE + PIECE + FAILED
        assert len(server.seen) == 1
    assert (only(registry).failed_calls, only(registry).calls) == (1, 1)


@stacks
def test_failure_that_no_wait_cures_is_the_readers_at_once(ask: Ask) -> None:
    invalid = b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"no"}}\n\n'
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(invalid, GOOD)) as server:
        assert ask(registry, server.chat) == invalid
        assert len(server.seen) == 1


@quick
@stacks
def test_refusals_up_to_the_deadline_show_the_events_of_the_first(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_wait=0.2))
    with Server(replies(START + FAILED)) as server:
        assert ask(registry, server.chat) == START + FAILED
    seen = only(registry)
    assert (seen.answered, seen.calls) == (0, 1)


@stacks
def test_other_streams_and_single_events_pass_at_once(ask: Ask) -> None:
    lines = b'{"response": ""}\n{"response": "Paris"}\n'
    with Server(replies(lines)) as server:
        assert ask(RateLimitRegistry(tidegate.Settings()), server.chat) == lines


def test_content_is_passed_on_before_the_next_event_comes() -> None:
    passed: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        yield PIECE
        # The server sends on only once the reader has the first piece.
        while not passed:
            pass
        yield b"data: [DONE]\n\n"

    registry = RateLimitRegistry(tidegate.Settings())
    with (
        Server(lambda number, path: (200, SSE, pieces())) as server,
        registry.wrap(httpx.Client()) as client,
        client.stream("POST", server.chat, json=STREAMED) as response,
    ):
        for chunk in response.iter_bytes():
            passed.append(chunk)
    assert b"".join(passed) == PIECE + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("seen", "opens"),
    [
        (START, True),
        (START[:20], True),
        (ROLE, True),
        (b'data: {"choices":[],"prompt_filter_results":[]}\n\n', True),
        (b'event: response.created\r\ndata: {"type":"response.created"}\r\n\r\n', True),
        (b": OPENROUTER PROCESSING\n\n", True),
        (ROLE + PIECE, False),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"role":"assistant","tool_calls":[{"id":"a"}]}}]}\n\n', False),
        (b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', False),
        (b'data: {"token": "x"}\n\n', False),
        (b"event: unknown\ndata: {}\n\n", False),
        (b"data: [DONE]\n\n", False),
        (b'[{"candidates"', False),
        (b"event: ping\n\n" * 2000, False),
    ],
)
def test_opening_is_what_comes_before_the_first_piece(seen: bytes, opens: bool) -> None:
    assert is_opening(seen) is opens
