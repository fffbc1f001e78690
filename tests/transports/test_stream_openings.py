"""Streams that begin with a failure are sent again; their reader sees only the stream after the failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest

import tidegate
from tests.transports.answering import BODY, Reply, Server, only
from tidegate.admission.registry import RateLimitRegistry

SSE = {"content-type": "text/event-stream"}
OVERLOADED = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"Paris"},"finish_reason":null}]}\n\n'
GOOD = ROLE + PIECE + b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\ndata: [DONE]\n\n'
FAILED = b"event: error\ndata: " + OVERLOADED + b"\n\n"
TEXT = b'event: error\ndata: {"text": "You have exceeded your rate limit.", "error_type": "rate"}\n\n'
"""Poe names its error's text as others name a piece of an answer."""
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


def replies(*bodies: bytes | list[bytes]) -> Callable[[int, str], Reply]:
    """Answer 200 with these bodies in turn, the last one for ever; a list is sent piece by piece."""
    return lambda number, path: (200, SSE, bodies[min(number, len(bodies)) - 1])


stacks = pytest.mark.parametrize("ask", [by_sync, by_async])
quick = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)


@quick
@stacks
@pytest.mark.parametrize("comment", [b"", b": keep-alive\n\n", b":\n: x\r\n\r\n"])
def test_refusal_in_the_first_event_is_waited_out(ask: Ask, comment: bytes) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(comment + FAILED, FAILED, GOOD)) as server:
        assert ask(registry, server.chat) in (GOOD, comment + GOOD)
        assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    seen = only(registry)
    assert (seen.refused, seen.absorbed, seen.answered, seen.failed_calls, seen.calls) == (2, 2, 1, 0, 1)


@quick
@stacks
def test_text_of_an_error_is_no_content(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(TEXT, GOOD)) as server:
        assert ask(registry, server.chat) == GOOD
    assert (only(registry).refused, only(registry).answered) == (1, 1)


@quick
@stacks
@pytest.mark.parametrize("cut", [1, 6, 14, 30, len(FAILED) - 1])
def test_first_event_may_come_in_parts(ask: Ask, cut: int) -> None:
    with Server(replies([FAILED[:cut], FAILED[cut:]], GOOD)) as server:
        assert ask(RateLimitRegistry(tidegate.Settings()), server.chat) == GOOD


@stacks
@pytest.mark.parametrize("before", [START, ROLE, ROLE + PIECE], ids=["start", "role", "content"])
def test_failure_after_an_event_is_the_readers(ask: Ask, before: bytes) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(before + FAILED, GOOD)) as server:
        assert ask(registry, server.chat) == before + FAILED
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
def test_failure_of_the_providers_own_is_tried_twice_again(ask: Ask) -> None:
    failed = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Internal error"}}\n\n'
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(failed)) as server:
        assert ask(registry, server.chat) == failed
        assert len(server.seen) == 3
    assert (only(registry).answered, only(registry).failed_calls, only(registry).calls) == (0, 1, 1)


@quick
@stacks
def test_refusals_up_to_the_deadline_are_the_readers(ask: Ask) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_wait=0.2))
    with Server(replies(FAILED)) as server:
        assert ask(registry, server.chat) == FAILED
    seen = only(registry)
    assert (seen.answered, seen.given_up, seen.calls) == (0, 1, 1)


@quick
@stacks
def test_reader_gets_the_first_failure_where_its_repetition_fails_otherwise(ask: Ask) -> None:
    """The SDK then raises its own error about the stream, and no other class."""

    def reply(number: int, path: str) -> Reply:
        return (200, SSE, FAILED) if number == 1 else (401, {"content-type": "application/json"}, b"{}")

    registry = RateLimitRegistry(tidegate.Settings())
    with Server(reply) as server:
        assert ask(registry, server.chat) == FAILED
    assert (only(registry).calls, only(registry).in_flight) == (1, 0)


@quick
def test_stream_that_is_closed_while_its_call_waits_again_holds_nothing() -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    closing: list[httpx.Response] = []

    def reply(number: int, path: str) -> Reply:
        if number == 1:
            return 200, SSE, FAILED
        # As a stop button: another thread closes the response, before the repeated call is answered.
        closing[0].close()
        return 200, SSE, GOOD

    client = httpx.Client(limits=httpx.Limits(max_connections=1))
    with Server(reply) as server, registry.wrap(client):
        with client.stream("POST", server.chat, json=STREAMED) as response:
            closing.append(response)
            assert b"".join(response.iter_raw()) in (b"", FAILED)
        assert only(registry).in_flight == 0
        # The only connection is free again.
        assert client.post(server.chat, json=STREAMED).content == GOOD


def test_interrupt_before_a_call_goes_on_leaves_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*facts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.transports.httpx_streams.drive", interrupted)
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(replies(FAILED)) as server, pytest.raises(KeyboardInterrupt):
        by_sync(registry, server.chat)
    assert only(registry).in_flight == 0


@stacks
def test_other_streams_pass_as_they_are(ask: Ask) -> None:
    lines = b'{"response": ""}\n{"response": "Paris"}\n'
    with Server(replies(lines)) as server:
        assert ask(RateLimitRegistry(tidegate.Settings()), server.chat) == lines


def test_each_event_is_passed_on_before_the_next_one_comes() -> None:
    passed: list[bytes] = []
    events = [b": ping\n\n", START, ROLE, PIECE, b"data: [DONE]\n\n"]

    def pieces() -> Iterator[bytes]:
        for number, event in enumerate(events):
            # The server sends on only once the reader has the event before.
            while len(b"".join(passed)) < len(b"".join(events[:number])):
                pass
            yield event

    registry = RateLimitRegistry(tidegate.Settings())
    with (
        Server(lambda number, path: (200, SSE, pieces())) as server,
        registry.wrap(httpx.Client()) as client,
        client.stream("POST", server.chat, json=STREAMED) as response,
    ):
        for chunk in response.iter_bytes():
            passed.append(chunk)
    assert b"".join(passed) == b"".join(events)


class Pieces(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield GOOD


class OwnTransport(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=SSE, stream=Pieces())


def test_stream_of_a_closed_loop_is_closed_by_another_loop() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    loop, client = asyncio.new_event_loop(), registry.wrap(httpx.AsyncClient(transport=OwnTransport()))
    request = client.build_request("POST", "https://p.test/v1/chat/completions", json=STREAMED)
    response = loop.run_until_complete(client.send(request, stream=True))
    loop.close()
    assert only(registry).in_flight == 1

    async def ask() -> None:
        assert await (await client.send(request, stream=True)).aread() == GOOD
        await response.aclose()

    asyncio.run(ask())
    assert only(registry).in_flight == 0
