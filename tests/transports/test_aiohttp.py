"""Sessions of aiohttp, against the simulator and a server that answers as it is told."""

from __future__ import annotations

import asyncio
import gc
import inspect
import io
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any
from unittest import mock

import aiohttp
import pytest

import tidegate
from tests.transports.answering import ANSWER, BODY, EVENTS, Reply, Server, fine, only, refused_at_first
from tidegate.core.events import RequestFailed
from tidegate.core.vocabulary import Cause
from tidegate.testing import Limit, Scenario, Simulator
from tidegate.transports.aiohttp import TRANSPORT
from tidegate.transports.govern import GAVE_UP

Test = Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]

BUSY = b'{"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "slow down"}}'


def run(registry: tidegate.RateLimitRegistry, test: Test, **options: Any) -> None:
    """Runs a test with a wrapped session."""

    async def main() -> None:
        async with aiohttp.ClientSession(**options) as session:
            await test(registry.wrap(session))

    asyncio.run(main())


async def ask(session: aiohttp.ClientSession, url: Any, **options: Any) -> bytes:
    """The body of an answer."""
    async with session.post(url, **{"json": BODY, **options}) as response:
        return await response.read()


class Gate:
    """A body whose first piece is there at once, and whose rest comes when it is opened."""

    def __init__(self, first: bytes = EVENTS[:24], rest: bytes = EVENTS[24:]) -> None:
        self.pieces = (first, rest)
        self._open = threading.Event()

    def open(self) -> None:
        """Lets the rest go, or the connection end."""
        self._open.set()

    def __iter__(self) -> Iterator[bytes]:
        yield self.pieces[0]
        self._open.wait(20)
        yield self.pieces[1]

    def reply(self, number: int, path: str) -> Reply:
        return 200, {"content-type": "text/event-stream"}, self


def refusing(number: int, path: str) -> Reply:
    return 429, {"retry-after": "0.01", "content-type": "application/json"}, BUSY


def impatient() -> tidegate.RateLimitRegistry:
    return tidegate.RateLimitRegistry(tidegate.Settings(max_wait=0))


def test_a_wrapped_session_answers_every_row_at_its_providers_limit(registry: tidegate.RateLimitRegistry) -> None:
    async def evaluate(session: aiohttp.ClientSession, url: str) -> Any:
        async with session.post(url, json=BODY, headers={"authorization": "Bearer k"}) as response:
            if not response.ok:
                await response.text()
            response.raise_for_status()
            return await response.json()

    with Simulator(Scenario(limiters=(Limit(limit=1200, window=60.0),))) as provider:

        async def test(session: aiohttp.ClientSession) -> None:
            url = f"{provider.openai_url}/chat/completions"
            answers = await asyncio.gather(*(evaluate(session, url) for _ in range(40)))
            assert {answer["object"] for answer in answers} == {"chat.completion"}

        async def main() -> None:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as session:
                await test(registry.wrap(session))

        asyncio.run(main())
        assert provider.truth().total.refusals == 0
    seen = only(registry)
    assert (seen.answered, seen.in_flight, seen.quotas[0].limit) == (40, 0, 1200)
    assert seen.mean_output < 256


def test_its_key_is_that_of_every_other_stack(registry: tidegate.RateLimitRegistry) -> None:
    import httpx2

    with Server(fine) as server, registry.wrap(httpx2.Client()) as other:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)

        other.post(server.chat, json=BODY, headers={"Authorization": "Bearer k"})
        run(registry, test, headers={"authorization": "Bearer k"})
    assert only(registry).attempts == 2


def test_a_credential_counts_wherever_it_is_given(registry: tidegate.RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            for headers in ({}, {"Authorization": "Bearer b"}, {}):
                await ask(session, "/v1/chat/completions", headers=headers)

        run(registry, test, base_url=server.chat.partition("v1/")[0], headers={"authorization": "Bearer a"})
        assert [headers["authorization"] for headers in server.headers] == ["Bearer a", "Bearer b", "Bearer a"]
    assert sorted(key.attempts for key in registry.snapshot().keys.values()) == [1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_name_and_a_password_are_credentials(registry: tidegate.RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            for name in "aab":
                await ask(session, server.chat, auth=aiohttp.BasicAuth(name, "p"))

        run(registry, test)
    assert sorted(key.attempts for key in registry.snapshot().keys.values()) == [1, 2]


def test_a_refusal_is_waited_out_below_the_session(registry: tidegate.RateLimitRegistry) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert (await response.json(content_type=None))["choices"] == []

        run(registry, test)
        assert server.bodies == [json.dumps(BODY).encode()] * 2
        assert {headers["content-type"] for headers in server.headers} == {"application/json"}
    assert (only(registry).refused, only(registry).answered) == (1, 1)


BODIES: dict[str, dict[str, Any]] = {
    "json": {"json": BODY},
    "json with a type of its own": {"json": BODY, "headers": {"Content-Type": "application/problem+json"}},
    "str": {"data": json.dumps(BODY)},
    "bytes": {"data": json.dumps(BODY).encode()},
    "fields": {"data": {"model": "m", "temperature": 1}},
    "pairs": {"data": [("model", "m"), ("n", "2")]},
}


@pytest.mark.parametrize("options", BODIES.values(), ids=BODIES)
def test_a_body_is_sent_again_as_it_would_have_been_sent_without_us(
    registry: tidegate.RateLimitRegistry, options: dict[str, Any]
) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, **options) as response:
                assert response.status == 200
            with tidegate.disabled():
                async with session.post(server.chat, **options) as response:
                    assert response.status == 200

        run(registry, test)
        assert len(server.bodies) == 3
        assert server.bodies[0] == server.bodies[1] == server.bodies[2]
        assert server.headers[0] == server.headers[1] == server.headers[2]
    assert only(registry).key.scope == "m"


def test_json_is_serialised_once_and_by_the_sessions_own_function(registry: tidegate.RateLimitRegistry) -> None:
    seen: list[object] = []

    def dumps(value: object) -> str:
        seen.append(value)
        return json.dumps(value, indent=1)

    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)

        run(registry, test, json_serialize=dumps)
        assert server.bodies == [json.dumps(BODY, indent=1).encode()] * 2
    assert seen == [BODY]


async def pieces() -> AsyncIterator[bytes]:
    yield json.dumps(BODY).encode()


def form() -> aiohttp.FormData:
    made = aiohttp.FormData({"model": "m"})
    made.add_field("file", io.BytesIO(b"sound"), filename="sound.wav")
    return made


ONCE: dict[str, tuple[Callable[[], Any], str]] = {
    "pieces": (pieces, ""),
    "file": (lambda: io.BytesIO(json.dumps(BODY).encode()), ""),
    "form": (form, "m"),
    "fields with a file": (lambda: {"model": "m", "file": io.BytesIO(b"sound")}, "m"),
}


@pytest.mark.parametrize(("body", "scope"), ONCE.values(), ids=ONCE)
def test_a_body_that_can_be_sent_only_once_is_handed_back(
    registry: tidegate.RateLimitRegistry, body: Callable[[], Any], scope: str
) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, data=body()) as response:
                assert (response.status, await response.text()) == (429, "{}")
                assert not hasattr(response, GAVE_UP)

        run(registry, test)
        assert len(server.seen) == 1
    assert only(registry).key.scope == scope


@pytest.mark.skipif(not hasattr(aiohttp, "UploadTracker"), reason="new in aiohttp 3.14")
def test_a_request_whose_upload_is_tracked_is_sent_once(registry: tidegate.RateLimitRegistry) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY, upload_tracker=aiohttp.UploadTracker()) as response:
                assert response.status == 429

        run(registry, test)
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


async def read_text(response: aiohttp.ClientResponse) -> bytes:
    return (await response.text()).encode()


async def read_lines(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([line async for line in response.content])


async def read_chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in response.content.iter_chunked(5)])


async def read_any(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk in response.content.iter_any()])


async def read_http_chunks(response: aiohttp.ClientResponse) -> bytes:
    return b"".join([chunk async for chunk, _ in response.content.iter_chunks()])


async def read_exactly(response: aiohttp.ClientResponse) -> bytes:
    return await response.content.readexactly(9) + await response.content.read()


READS = [aiohttp.ClientResponse.read, read_text, read_lines, read_chunks, read_any, read_http_chunks, read_exactly]


@pytest.mark.parametrize("read", READS)
def test_a_stream_is_read_in_every_way_and_its_slot_comes_back_when_the_provider_has_finished(
    registry: tidegate.RateLimitRegistry, read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]]
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
    registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1, max_concurrency=1))
    opened = Gate()
    opened.open()
    with Server(opened.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            responses = await asyncio.gather(*(session.post(server.chat, json=BODY) for _ in range(5)))
            assert [await response.read() for response in responses] == [EVENTS] * 5

        run(registry, test)
    assert (only(registry).answered, only(registry).in_flight) == (5, 0)


async def close(response: aiohttp.ClientResponse) -> None:
    response.close()


async def release(response: aiohttp.ClientResponse) -> None:
    response.release()


async def leave(response: aiohttp.ClientResponse) -> None:
    async with response:
        pass


@pytest.mark.parametrize("end", [close, release, leave])
def test_a_stream_that_is_closed_early_gives_its_slot_back(
    registry: tidegate.RateLimitRegistry, end: Callable[[aiohttp.ClientResponse], Awaitable[None]]
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


def test_a_stream_that_is_cancelled_gives_its_slot_back(registry: tidegate.RateLimitRegistry) -> None:
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
    registry: tidegate.RateLimitRegistry,
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(number: int, path: str) -> Reply:
        asked.set()
        answer.wait(20)
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


def test_a_stream_that_breaks_gives_its_slot_back_and_is_no_answer(registry: tidegate.RateLimitRegistry) -> None:
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
def test_a_forgotten_stream_gives_its_slot_back_when_it_is_collected(registry: tidegate.RateLimitRegistry) -> None:
    gate = Gate()
    with Server(lambda number, path: (200, {"content-length": "1000"}, gate)) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await session.post(server.chat, json=BODY)
            assert only(registry).in_flight == 1

        run(registry, test)
        gc.collect()
        assert (only(registry).in_flight, only(registry).abandoned) == (0, 1)
        gate.open()


def test_an_error_event_in_mid_stream_teaches_the_controller(registry: tidegate.RateLimitRegistry) -> None:
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
    registry: tidegate.RateLimitRegistry, good: int
) -> None:
    failing = b'data: {"choices": []}\n\n' * good + b"event: error\ndata: " + BUSY + b"\n\n"

    def reply(number: int, path: str) -> Reply:
        return 200, {"content-type": "text/event-stream"}, failing if number == 1 else EVENTS

    with Server(reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            assert await ask(session, server.chat) == EVENTS

        run(registry, test)
    assert (only(registry).refused, only(registry).answered) == (1, 1)


def test_the_usage_at_the_end_of_a_stream_teaches_the_estimate(registry: tidegate.RateLimitRegistry) -> None:
    gate = Gate(rest=b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\n')
    with Server(gate.reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                gate.open()
                await response.read()

        run(registry, test)
    assert only(registry).mean_output < 256


@pytest.mark.parametrize("read", READS)
def test_an_error_that_is_handed_back_can_be_read_in_every_way(
    read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]],
) -> None:
    registry = impatient()
    with Server(refusing) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert (response.status, response.ok) == (429, False)
                assert getattr(response, GAVE_UP) is True
                assert await read(response) == BUSY

        run(registry, test)
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


def test_an_error_whose_body_breaks_off_still_has_its_status(registry: tidegate.RateLimitRegistry) -> None:
    with Server(lambda number, path: (500, {"content-length": "1000"}, b"half")) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert response.status == 500
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()

        run(registry, test)
    assert (only(registry).failed, only(registry).in_flight) == (1, 0)


async def refuse(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise ZeroDivisionError(await response.text())


CHECKS: dict[str, tuple[Any, type[Exception]]] = {
    "aiohttp's": (True, aiohttp.ClientResponseError),
    "the caller's": (refuse, ZeroDivisionError),
}


@pytest.mark.parametrize("where", ["session", "call"])
@pytest.mark.parametrize(("check", "error"), CHECKS.values(), ids=CHECKS)
def test_a_refusal_that_the_caller_wants_raised_is_waited_out(
    registry: tidegate.RateLimitRegistry, check: Any, error: type[Exception], where: str
) -> None:
    option = {"raise_for_status": check}
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY, **({} if where == "session" else option)) as response:
                assert await response.read() == ANSWER

        run(registry, test, **(option if where == "session" else {}))
        assert len(server.seen) == 2
    assert (only(registry).refused, only(registry).answered) == (1, 1)


@pytest.mark.parametrize(("check", "error"), CHECKS.values(), ids=CHECKS)
def test_a_refusal_that_is_given_up_is_raised_as_before(check: Any, error: type[Exception]) -> None:
    registry = impatient()
    with Server(refusing) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            with pytest.raises(error) as raised:
                await ask(session, server.chat)
            if isinstance(raised.value, aiohttp.ClientResponseError):
                assert (raised.value.status, raised.value.message) == (429, "Too Many Requests")
            else:
                assert raised.value.args == (BUSY.decode(),)

        run(registry, test, raise_for_status=check)
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


def test_a_call_may_keep_its_sessions_check_off(registry: tidegate.RateLimitRegistry) -> None:
    with Server(lambda number, path: (400, {}, b"{}")) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY, raise_for_status=False) as response:
                assert response.status == 400
            with pytest.raises(aiohttp.ClientResponseError):
                await ask(session, server.chat)

        run(registry, test, raise_for_status=True)
    assert only(registry).in_flight == 0


def test_what_the_callers_check_raises_of_a_good_answer_is_no_failure_of_the_provider(
    registry: tidegate.RateLimitRegistry,
) -> None:
    async def picky(response: aiohttp.ClientResponse) -> None:
        raise ZeroDivisionError

    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            with pytest.raises(ZeroDivisionError):
                await session.post(server.chat, json=BODY, raise_for_status=picky)

        run(registry, test)
    assert (only(registry).answered, only(registry).in_flight) == (1, 0)


class StandIn:
    """A response as a mock might give it: its content is its own."""

    raw_headers = ((b"Content-Type", b"application/json"),)
    content = property(lambda self: io.BytesIO(ANSWER))

    def __init__(self, status: int) -> None:
        self.status = status

    async def read(self) -> bytes:
        return ANSWER


@pytest.mark.parametrize("status", [200, 400])
def test_the_responses_of_a_mock_pass_as_they_are(registry: tidegate.RateLimitRegistry, status: int) -> None:
    given = StandIn(status)

    async def answer(self: object, method: str, url: str, **options: object) -> StandIn:
        return given

    async def test() -> None:
        async with aiohttp.ClientSession() as session:
            assert await registry.wrap(session).post("http://provider.test/v1/chat/completions", json=BODY) is given

    with mock.patch.object(aiohttp.ClientSession, "_request", answer):
        asyncio.run(test())
        TRANSPORT.patches.remove()
    assert (only(registry).attempts, only(registry).in_flight) == (1, 0)


def test_redirects_are_followed_under_one_slot(registry: tidegate.RateLimitRegistry) -> None:
    def reply(number: int, path: str) -> Reply:
        return (307, {"location": "/v1/completions"}, b"") if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert (response.status, len(response.history)) == (200, 1)

        run(registry, test)
        assert server.seen == ["/v1/chat/completions", "/v1/completions"]
    assert only(registry).attempts == 1


class OwnResponse(aiohttp.ClientResponse):
    """A class of responses of the caller's."""


@pytest.mark.parametrize("response_class", [aiohttp.ClientResponse, OwnResponse])
def test_without_an_answer_before_the_deadline_there_is_a_429_of_its_own_kind(response_class: type) -> None:
    registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1, max_concurrency=1, max_wait=0))
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)
            assert registry.try_admit(only(registry).key)
            async with session.post(server.chat, json=BODY, params={"a": "b"}) as response:
                assert (type(response), response.status, response.ok) == (response_class, 429, False)
                assert response.headers["X-Should-Retry"] == "false"
                assert getattr(response, GAVE_UP) is True
                assert str(response.url) == f"{server.chat}?a=b"
                assert (await response.json())["error"]["code"] == "queue_deadline"
                assert "max_wait" in await response.text()
                assert "429 Too Many Requests" in repr(response)
                with pytest.raises(aiohttp.ClientResponseError, match="429") as raised:
                    response.raise_for_status()
                assert raised.value.request_info.method == "POST"
            unread = await session.post(server.chat, json=BODY)
            assert b"".join([line async for line in unread.content]).startswith(b'{"type": "error"')

        run(registry, test, response_class=response_class)
        assert len(server.seen) == 1


@pytest.mark.parametrize(("check", "error"), CHECKS.values(), ids=CHECKS)
def test_the_429_of_our_own_is_raised_where_the_caller_wants_refusals_raised(
    check: Any, error: type[Exception]
) -> None:
    registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1, max_concurrency=1, max_wait=0))
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)
            assert registry.try_admit(only(registry).key)
            with pytest.raises(error):
                await ask(session, server.chat)

        run(registry, test, raise_for_status=check)


@pytest.mark.parametrize(
    ("url", "options", "error", "failed"),
    [
        ("http://127.0.0.1:9/v1/chat/completions", {}, aiohttp.ClientConnectorError, 1),
        ("nonsense://provider.test/v1/chat/completions", {}, (aiohttp.ClientError, AssertionError, ValueError), 0),
        ("http://127.0.0.1:9/v1/chat/completions", {"data": b"", "json": {}}, ValueError, 0),
    ],
    ids=["refused connection", "wrong scheme", "two bodies"],
)
def test_exceptions_come_through_unchanged_and_only_outages_count(
    registry: tidegate.RateLimitRegistry, url: str, options: dict[str, Any], error: Any, failed: int
) -> None:
    async def test(session: aiohttp.ClientSession) -> None:
        with pytest.raises(error):
            await session.post(url, **{"json": BODY, **options})

    run(registry, test)
    assert (only(registry).in_flight, only(registry).failed) == (0, failed)


def test_a_timeout_is_the_callers_own_and_waiting_in_the_queue_is_no_part_of_it() -> None:
    registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1, max_concurrency=1))
    asked, hold, timeout = threading.Event(), threading.Event(), aiohttp.ClientTimeout(total=0.05)

    def slow(number: int, path: str) -> Reply:
        if number == 1:
            asked.set()
            hold.wait(20)
        return fine(number, path)

    causes: list[Cause] = []
    registry.subscribe(lambda event: causes.append(event.cause) if isinstance(event, RequestFailed) else None)
    with Server(slow) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            first = asyncio.ensure_future(session.post(server.chat, json=BODY))
            second = asyncio.ensure_future(session.post(server.chat, json=BODY, timeout=aiohttp.ClientTimeout(10)))
            await asyncio.to_thread(asked.wait, 20)
            assert only(registry).waiting == 1
            with pytest.raises(asyncio.TimeoutError):
                await first
            hold.set()
            assert await (await second).read() == ANSWER

        run(registry, test, timeout=timeout)
    assert (only(registry).failed, only(registry).answered, only(registry).in_flight) == (1, 1, 0)
    assert causes == [Cause.NONE]


def test_other_requests_of_a_wrapped_session_pass_through(registry: tidegate.RateLimitRegistry) -> None:
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat.replace("chat/completions", "files"))
            with tidegate.disabled():
                await ask(session, server.chat)

        run(registry, test)
        assert len(server.seen) == 2
    assert registry.snapshot().keys == {}


def test_a_method_and_a_url_count_in_every_form(registry: tidegate.RateLimitRegistry) -> None:
    from yarl import URL

    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await (await session.request("post", server.chat, json=BODY)).read()
            await (await session.request(method="POST", url=URL(server.chat), json=BODY)).read()
            await (await session._request(method="POST", str_or_url=server.chat, json=BODY)).read()

        run(registry, test)
    assert only(registry).attempts == 3


def test_a_session_is_wrapped_without_a_warning_in_development_mode() -> None:
    code = """
        import asyncio, aiohttp, tidegate
        from tidegate.transports.marks import MARK
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 60
            async with aiohttp.ClientSession() as session:
                assert tidegate.wrap(session) is session
                print(hasattr(session, MARK))
        asyncio.run(main())
    """
    assert output(code, "-X", "dev", "-W", "error") == b"True\n"


def test_install_governs_every_session_and_uninstall_restores_them(registry: tidegate.RateLimitRegistry) -> None:
    original = aiohttp.ClientSession._request

    async def main(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            assert "aiohttp" in tidegate.install(registry)
            assert inspect.iscoroutinefunction(aiohttp.ClientSession._request)
            assert inspect.signature(aiohttp.ClientSession._request) == inspect.signature(original)
            await ask(session, url)
            await asyncio.to_thread(asyncio.run, elsewhere(url))
            tidegate.uninstall()
            await ask(session, url)

    async def elsewhere(url: str) -> None:
        async with aiohttp.request("POST", url, json=BODY) as response:
            assert response.status == 200

    with Server(fine) as server:
        asyncio.run(main(server.chat))
        assert len(server.seen) == 3
    assert only(registry).attempts == 2
    assert aiohttp.ClientSession._request is original


def test_install_leaves_unknown_hosts_alone(registry: tidegate.RateLimitRegistry) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            tidegate.install(registry)
            with pytest.raises(aiohttp.ClientError):
                await session.post("http://unknown.invalid/v1/chat/completions", json=BODY)

    asyncio.run(main())
    assert registry.snapshot().keys == {}


def test_install_governs_what_is_imported_later_and_imports_nothing() -> None:
    code = """
        import sys, tidegate
        tidegate.install()
        assert "aiohttp" not in sys.modules
        import aiohttp
        print(hasattr(aiohttp.ClientSession._request, "__wrapped__"))
    """
    assert output(code) == b"True\n"


def output(code: str, *options: str) -> bytes:
    lines = inspect.cleandoc(code)
    return subprocess.run([sys.executable, *options, "-c", lines], check=True, capture_output=True).stdout
