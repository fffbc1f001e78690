"""What a session of aiohttp sends: the same bytes again after a refusal, or once where there is no second time."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

import tidegate
from tests.transports.answering import BODY, Server, only, refused_at_first
from tests.transports.sessions import ask, run
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.sdk_hooks import is_given_up


def test_a_refusal_is_waited_out_below_the_session(registry: RateLimitRegistry) -> None:
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
    registry: RateLimitRegistry, options: dict[str, Any]
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


def test_json_is_serialised_once_and_by_the_sessions_own_function(registry: RateLimitRegistry) -> None:
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
    registry: RateLimitRegistry, body: Callable[[], Any], scope: str
) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, data=body()) as response:
                assert (response.status, await response.text()) == (429, "{}")
                assert not is_given_up(response)

        run(registry, test)
        assert len(server.seen) == 1
    assert only(registry).key.scope == scope


@pytest.mark.skipif(not hasattr(aiohttp, "UploadTracker"), reason="new in aiohttp 3.14")
def test_a_request_whose_upload_is_tracked_is_sent_once(registry: RateLimitRegistry) -> None:
    with Server(refused_at_first) as server:

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post(server.chat, json=BODY, upload_tracker=aiohttp.UploadTracker()) as response:
                assert response.status == 429

        run(registry, test)
    assert (only(registry).refused, only(registry).in_flight) == (1, 0)
