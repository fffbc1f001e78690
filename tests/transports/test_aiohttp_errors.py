"""Answers of aiohttp that are errors: handed back readable, raised where the caller wants them raised."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import aiohttp
import pytest

import tidegate
from tests.transports.answering import ANSWER, BODY, Server, fine, only, refused_at_first
from tests.transports.sessions import BUSY, READS, ask, impatient, refusing, run
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.aiohttp import TRANSPORT
from tidegate.transports.sdk_hooks import is_given_up


@pytest.mark.parametrize("read", READS)
def test_an_error_that_is_handed_back_can_be_read_in_every_way(
    read: Callable[[aiohttp.ClientResponse], Awaitable[bytes]],
) -> None:
    registry = impatient()
    with Server(refusing) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY) as response:
                assert (response.status, response.ok) == (429, False)
                assert response.headers["Content-Type"] == "application/json"
                assert is_given_up(response)
                assert response.headers["x-tidegate-waited"] == "0.0"
                assert "it waited 0.0 s of max_wait = " in response.headers["x-tidegate-reason"]
                assert await read(response) == BUSY

        run(registry, test)
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


def test_an_error_whose_body_breaks_off_still_has_its_status(registry: RateLimitRegistry) -> None:
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
    registry: RateLimitRegistry, check: Any, error: type[Exception], where: str
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
            assert " given up: it waited 0.0 s of max_wait = " in raised.value.__notes__[0]
            if isinstance(raised.value, aiohttp.ClientResponseError):
                assert (raised.value.status, raised.value.message) == (429, "Too Many Requests")
            else:
                assert raised.value.args == (BUSY.decode(),)

        run(registry, test, raise_for_status=check)
        assert len(server.seen) == 1
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)


def test_a_call_may_keep_its_sessions_check_off(registry: RateLimitRegistry) -> None:
    with Server(lambda number, path: (400, {}, b"{}")) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY, raise_for_status=False) as response:
                assert response.status == 400
            with pytest.raises(aiohttp.ClientResponseError):
                await ask(session, server.chat)

        run(registry, test, raise_for_status=True)
    assert only(registry).in_flight == 0


def test_what_the_callers_check_raises_of_a_good_answer_is_no_failure_of_the_provider(
    registry: RateLimitRegistry,
) -> None:
    async def picky(response: aiohttp.ClientResponse) -> None:
        raise ZeroDivisionError

    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            with pytest.raises(ZeroDivisionError):
                await session.post(server.chat, json=BODY, raise_for_status=picky)

        run(registry, test)
    assert (only(registry).answered, only(registry).in_flight) == (1, 0)


class FakeResponse:
    """A response as a mock might give it: its content is its own."""

    raw_headers = ((b"Content-Type", b"application/json"),)
    content = property(lambda self: io.BytesIO(ANSWER))

    def __init__(self, status: int) -> None:
        self.status = status

    async def read(self) -> bytes:
        return ANSWER


@pytest.mark.parametrize("status", [200, 400])
def test_the_responses_of_a_mock_pass_as_they_are(registry: RateLimitRegistry, status: int) -> None:
    given = FakeResponse(status)

    async def answer(self: object, method: str, url: str, **options: object) -> FakeResponse:
        return given

    async def test() -> None:
        async with aiohttp.ClientSession() as session:
            assert await registry.wrap(session).post("http://provider.test/v1/chat/completions", json=BODY) is given

    with mock.patch.object(aiohttp.ClientSession, "_request", answer):
        asyncio.run(test())
        TRANSPORT.patches.remove()
    assert (only(registry).attempts, only(registry).in_flight) == (1, 0)


@pytest.mark.parametrize(("check", "error"), CHECKS.values(), ids=CHECKS)
def test_the_429_of_our_own_is_raised_where_the_caller_wants_refusals_raised(
    check: Any, error: type[Exception]
) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1, max_wait=0))
    with Server(fine) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            await ask(session, server.chat)
            assert registry.try_admit(only(registry).key)
            with pytest.raises(error):
                await ask(session, server.chat)

        run(registry, test, raise_for_status=check)
