"""Streams of aiohttp: read in every way, left in every way, and the slot that comes back."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

import tidegate
from tests.transports.answering import BODY, EVENTS, Reply, Server, fine, only
from tests.transports.sessions import BUSY, READS, Gate, ask, run
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.request_key import OutgoingRequest


@pytest.mark.parametrize("read", READS)
def test_a_stream_is_read_in_every_way_and_its_slot_comes_back_when_the_provider_has_finished(
    registry: RateLimitRegistry, read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]]
) -> None:
    gate = Gate()
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert only(registry).in_flight == 1
                assert isinstance(response.content, aiohttp.StreamReader)
                gate.open()
                assert await read(response) == EVENTS
                assert (only(registry).in_flight, only(registry).answered) == (0, 1)
                assert type(response.content) is aiohttp.StreamReader

        run(registry, test)


def test_responses_that_are_fetched_before_the_first_is_read_do_not_wait_for_each_other() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    opened = Gate()
    opened.open()
    with Server(opened.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            responses = await asyncio.gather(*(session.post(server.chat, json=BODY) for _ in range(5)))
            assert [await response.read() for response in responses] == [EVENTS] * 5

        run(registry, test)
    assert (only(registry).answered, only(registry).in_flight) == (5, 0)


def test_a_streaming_answer_keeps_no_body_of_its_request(registry: RateLimitRegistry) -> None:
    gate = Gate()
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                gc.collect()
                assert not [each for each in gc.get_objects() if isinstance(each, OutgoingRequest)]
                gate.open()
                assert await response.read() == EVENTS

        run(registry, test)


async def close(response: aiohttp.ClientResponse) -> None:
    response.close()


async def release(response: aiohttp.ClientResponse) -> None:
    response.release()


async def leave(response: aiohttp.ClientResponse) -> None:
    async with response:
        pass


@pytest.mark.parametrize("end", [close, release, leave])
def test_a_stream_that_is_closed_early_gives_its_slot_back(
    registry: RateLimitRegistry, end: Callable[[aiohttp.ClientResponse], Awaitable[None]]
) -> None:
    gate = Gate()
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            response = await session.post(server.chat, json=BODY)
            assert only(registry).in_flight == 1
            await end(response)
            assert (only(registry).in_flight, only(registry).answered) == (0, 1)
            gate.open()

        run(registry, test)


def test_a_stream_that_is_cancelled_gives_its_slot_back(registry: RateLimitRegistry) -> None:
    gate = Gate()
    with Server(gate.reply) as server:

        async def read(session: aiohttp.ClientSession, begun: asyncio.Event) -> None:
            async with session.post(server.chat, json=BODY) as response:
                begun.set()
                await response.read()

        async def test(session: aiohttp.ClientSession) -> None:
            begun = asyncio.Event()
            task = asyncio.create_task(read(session, begun))
            await begun.wait()
            assert only(registry).in_flight == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert only(registry).in_flight == 0
            gate.open()

        run(registry, test)


def test_a_call_that_is_cancelled_before_it_is_answered_gives_its_slot_back(
    registry: RateLimitRegistry,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(number: int, path: str) -> Reply:
        asked.set()
        answer.wait(300)
        return fine(number, path)

    with Server(slow) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            task = asyncio.ensure_future(session.post(server.chat, json=BODY))
            await asyncio.to_thread(asked.wait, 20)
            assert only(registry).in_flight == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (only(registry).in_flight, only(registry).abandoned) == (0, 1)
            answer.set()

        run(registry, test)


def test_a_stream_that_breaks_gives_its_slot_back_and_is_no_answer(registry: RateLimitRegistry) -> None:
    gate = Gate(rest=b"")

    def cut(number: int, path: str) -> Reply:
        return 200, {"content-length": "1000"}, gate

    with Server(cut) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            response = await session.post(server.chat, json=BODY)
            gate.open()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
            assert (only(registry).in_flight, only(registry).failed) == (0, 1)

        run(registry, test)


@pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")
def test_a_forgotten_stream_gives_its_slot_back_when_it_is_collected(registry: RateLimitRegistry) -> None:
    gate = Gate()
    with Server(lambda number, path: (200, {"content-length": "1000"}, gate)) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await session.post(server.chat, json=BODY)
            assert only(registry).in_flight == 1

        run(registry, test)
        gc.collect()
        assert (only(registry).in_flight, only(registry).abandoned) == (0, 1)
        gate.open()


def test_an_error_event_in_mid_stream_teaches_the_controller(registry: RateLimitRegistry) -> None:
    gate = Gate(b"event: message\n", EVENTS[:22] + b"\nevent: error\ndata: " + BUSY + b"\n\n")
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                gate.open()
                assert await response.read() == b"".join(gate.pieces)

        run(registry, test)
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).answered, only(registry).in_flight) == (1, 0, 0)


@pytest.mark.parametrize("good", [0, 300], ids=["at once", "after a long beginning"])
def test_a_stream_that_is_there_at_once_and_ends_with_an_error_is_asked_for_again(
    registry: RateLimitRegistry, good: int
) -> None:
    failing = b'data: {"choices": []}\n\n' * good + b"event: error\ndata: " + BUSY + b"\n\n"

    def reply(number: int, path: str) -> Reply:
        return 200, {"content-type": "text/event-stream"}, failing if number == 1 else EVENTS

    with Server(reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            assert await ask(session, server.chat) == EVENTS

        run(registry, test)
    assert (only(registry).refused, only(registry).answered) == (1, 1)


def test_the_usage_at_the_end_of_a_stream_teaches_the_estimate(registry: RateLimitRegistry) -> None:
    gate = Gate(rest=b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\n')
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                gate.open()
                await response.read()

        run(registry, test)
    assert only(registry).mean_output < 256
