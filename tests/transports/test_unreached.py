"""A server that was never reached: its name, its port or its TLS fails, and the program is told so."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests

import tidegate
from tests.ports import free_port
from tests.transports.answering import ANSWER, BODY, Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.circuit_breaker import OUTAGE_FAILURES

Ask = Callable[[RateLimitRegistry, str], str]
"""Sends one call that waits for no time; returns the text of its answer."""


def by_httpx(registry: RateLimitRegistry, url: str) -> str:
    with registry.wrap(httpx.Client(trust_env=False), max_wait=0) as client:
        return client.post(url, json=BODY).text


def by_httpx_async(registry: RateLimitRegistry, url: str) -> str:
    async def ask() -> str:
        async with registry.wrap(httpx.AsyncClient(trust_env=False), max_wait=0) as client:
            return (await client.post(url, json=BODY)).text

    return asyncio.run(ask())


def by_requests(registry: RateLimitRegistry, url: str) -> str:
    session = requests.Session()
    session.trust_env = False
    with registry.wrap(session, max_wait=0) as client:
        text: str = client.post(url, json=BODY).text
        return text


def by_aiohttp(registry: RateLimitRegistry, url: str) -> str:
    async def ask() -> str:
        session = registry.wrap(aiohttp.ClientSession(), max_wait=0)
        async with session, session.post(url, json=BODY) as response:
            return await response.text()

    return asyncio.run(ask())


@pytest.fixture(params=["name", "port", "tls"])
def unreachable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str, str]]:
    """The address of a server that cannot be reached, its host and the words of the system for that."""
    if request.param == "port":
        port = free_port()
        yield f"http://127.0.0.1:{port}/v1/chat/completions", f"127.0.0.1:{port}", "[Errno 111] Conn"
    elif request.param == "tls":
        with Server(lambda number, path: (200, {}, ANSWER)) as server:
            host = server.chat.split("/")[2]
            yield server.chat.replace("http:", "https:"), host, "SSL"
            assert not server.seen
    else:

        def unknown(*args: Any, **kwargs: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        yield "http://typo.invalid/v1/chat/completions", "typo.invalid", "Name or service not known"


@pytest.mark.parametrize("ask", [by_httpx, by_httpx_async, by_requests, by_aiohttp])
def test_errors_are_the_programs_until_one_line_names_address_and_error(
    ask: Ask, unreachable: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    url, host, words = unreachable
    # The clock stands still, so no probe of the breaker is due.
    registry = RateLimitRegistry(tidegate.Settings(), clock=lambda: 7.0)
    with caplog.at_level(logging.WARNING, "tidegate"):
        for _ in range(OUTAGE_FAILURES):
            assert not caplog.records
            with pytest.raises((httpx.ConnectError, requests.ConnectionError, aiohttp.ClientConnectionError)):
                ask(registry, url)
        assert len(caplog.records) == 1, "it comes as the breaker opens"
        given_up = [ask(registry, url) for _ in range(3)]
    (told,) = [each.getMessage() for each in caplog.records]
    assert host in told
    assert "never reached" in told
    assert words in told
    assert all(words in each for each in given_up), "a call that is given up names the last error"


def test_server_that_knows_no_path_of_it_answers_each_call_at_once() -> None:
    """Its own 404 says more than any line, and holds no call: no breaker opens."""
    registry = RateLimitRegistry(tidegate.Settings())
    with Server(lambda number, path: (404, {}, b"no such page")) as server:
        for _ in range(20):
            assert by_httpx(registry, server.chat) == "no such page"
        assert len(server.seen) == 20
    (seen,) = registry.snapshot().keys.values()
    assert (seen.breaker, seen.failed_calls, seen.given_up) == ("closed", 20, 0)
