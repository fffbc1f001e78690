"""Errors that were to be streamed and break off, never end, or cannot be decompressed: as plain clients see them."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import trio

import tidegate
from tests.transports.answering import ANSWER, BODY, Reply, Server, only
from tests.transports.sessions import Gate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports import bodies

# httpcore leaves the generators of a body that is not read to its end to the collector; trio says so, also without us.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

NOPE = b'{"error":{"message":"nope","code":"invalid_api_key"}}'
DAY = b'{"error":{"message":"Rate limit reached on requests per day (RPD)","code":"rate_limit_exceeded"}}'
SPENT = b'{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}'
SHORT = {"content-type": "application/json", "content-length": "999"}
GARBLED = {"content-type": "application/json", "content-encoding": "gzip"}
BROKEN = {"short": SHORT, "gzip": GARBLED}
UNREADABLE = (
    *(each for module in (httpx, httpx2) for each in (module.RemoteProtocolError, module.DecodingError)),
    requests.RequestException,
    aiohttp.ClientPayloadError,
)
"""What plain clients raise at such a body."""


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(params=["sync", "asyncio", "trio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


class EndlessBody:
    """A body that never ends by itself; `sent` counts its bytes, `open` lets it end with what follows."""

    def __init__(self, piece: bytes) -> None:
        self.piece = piece
        self.sent = 0
        self._closed = threading.Event()

    def stop(self) -> None:
        self._closed.set()

    def __iter__(self) -> Iterator[bytes]:
        while not self._closed.is_set():
            self.sent += len(self.piece)
            yield self.piece


def streamed(module: ModuleType, colour: str, client: Any, url: str, read: bool = True) -> tuple[Any, Any]:
    """The status of a streamed answer, and its body or the type of what its reading raised; None where not read."""

    async def over_a_loop() -> tuple[Any, Any]:
        async with client, client.stream("POST", url, json=BODY) as response:
            try:
                return response.status_code, (await response.aread() if read else None)
            except Exception as error:
                return response.status_code, type(error)

    if colour == "asyncio":
        return asyncio.run(over_a_loop())
    if colour == "trio":
        return trio.run(over_a_loop)
    with client, client.stream("POST", url, json=BODY) as response:
        try:
            return response.status_code, (response.read() if read else None)
        except Exception as error:
            return response.status_code, type(error)


def client_of(module: ModuleType, colour: str, **options: Any) -> Any:
    return (module.Client if colour == "sync" else module.AsyncClient)(timeout=20, **options)


def streamed_by_requests(session: requests.Session, url: str, read: bool = True) -> tuple[int, Any]:
    with session.post(url, json=BODY, stream=True, timeout=20) as response:
        try:
            return response.status_code, (response.content if read else None)
        except Exception as error:
            return response.status_code, type(error)


def streamed_by_aiohttp(registry: Any, url: str, read: bool = True) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            if registry is not None:
                registry.wrap(session)
            async with session.post(url, json=BODY) as response:
                try:
                    return response.status, (await response.read() if read else None)
                except Exception as error:
                    return response.status, type(error)

    return asyncio.run(main())


Ask = Callable[..., tuple[Any, Any]]
"""Function of a URL: asks it through one connection, of a client that a registry governs, or of a plain one."""
STACKS = [f"{module}-{colour}" for module in ("httpx", "httpx2") for colour in ("sync", "asyncio", "trio")]


@pytest.fixture(params=[*STACKS, "requests", "aiohttp"])
def ask(request: pytest.FixtureRequest) -> Ask:
    def asked(url: str, registry: Any = None, read: bool = True) -> tuple[Any, Any]:
        if request.param == "aiohttp":
            return streamed_by_aiohttp(registry, url, read)
        if request.param == "requests":
            session = requests.Session()
            return streamed_by_requests(session if registry is None else registry.wrap(session), url, read)
        name, colour = request.param.split("-")
        module = {"httpx": httpx, "httpx2": httpx2}[name]
        client = client_of(module, colour, limits=module.Limits(max_connections=1))
        return streamed(module, colour, client if registry is None else registry.wrap(client), url, read)

    return asked


def impatient() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_wait=0))


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("status", [400, 429, 503])
def test_broken_error_body_gives_the_plain_clients_exception(ask: Ask, status: int, headers: dict[str, str]) -> None:
    registry = impatient()
    with Server(lambda number, path: (status, headers, NOPE)) as server:
        plain = ask(server.chat)
        assert ask(server.chat, registry) == plain
        assert len(server.seen) == 2
    assert plain[0] == status
    assert issubclass(plain[1], UNREADABLE)
    assert only(registry).in_flight == 0


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
def test_429_with_a_broken_body_is_waited_for(ask: Ask, headers: dict[str, str], registry: Any) -> None:
    def reply(number: int, path: str) -> Reply:
        return (429, {**headers, "retry-after-ms": "5"}, NOPE) if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        assert ask(server.chat, registry) == (200, ANSWER)
        assert len(server.seen) == 2
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (1, 0, 1)


def test_compressed_error_body_is_judged_and_handed_on_as_sent(ask: Ask, registry: Any) -> None:
    with Server(lambda number, path: (429, GARBLED, gzip.compress(SPENT))) as server:
        assert ask(server.chat, registry) == (429, SPENT)
        assert len(server.seen) == 1, "spent money is nothing to wait for"


def test_raw_bytes_of_a_compressed_error_are_replayed(module: ModuleType, registry: Any) -> None:
    raw = gzip.compress(SPENT)
    with (
        Server(lambda number, path: (429, GARBLED, raw)) as server,
        registry.wrap(module.Client()) as client,
        client.stream("POST", server.chat, json=BODY) as response,
    ):
        assert b"".join(response.iter_raw()) == raw
        assert response.elapsed.total_seconds() >= 0


def test_endless_error_body_hands_the_status_on(ask: Ask) -> None:
    endless = EndlessBody(b"x" * 4096)
    registry = impatient()
    with Server(lambda number, path: (429, {}, endless)) as server:
        assert ask(server.chat, registry, read=False) == (429, None)
        endless.stop()
    assert only(registry).in_flight == 0


def test_dripping_error_body_hands_the_status_on(
    module: ModuleType, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_READ_SECONDS", 0.0)
    endless = EndlessBody(b"{")
    registry = impatient()
    with Server(lambda number, path: (503, {}, endless)) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat, read=False)
        endless.stop()
    assert answer == (503, None)
    assert only(registry).in_flight == 0


def test_error_body_over_the_bound_is_still_read_whole(ask: Ask) -> None:
    whole = bytes(range(256)) * 8192
    with Server(lambda number, path: (429, {}, whole)) as server:
        assert ask(server.chat, impatient()) == (429, whole)
        assert len(server.seen) == 1


def test_error_over_the_bound_that_is_waited_for_frees_its_connection(ask: Ask, registry: Any) -> None:
    endless = EndlessBody(b"x" * 65536)

    def reply(number: int, path: str) -> Reply:
        return (429, {"retry-after-ms": "5"}, endless) if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        assert ask(server.chat, registry) == (200, ANSWER)
        endless.stop()


def test_day_limit_that_is_waited_for_frees_its_connection(
    module: ModuleType, colour: str, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_ERROR_BYTES", len(DAY))
    endless = EndlessBody(b" " * 65536)

    def reply(number: int, path: str) -> Reply:
        return (429, {"retry-after-ms": "5"}, chain([DAY], endless)) if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        client = registry.wrap(client_of(module, colour, limits=module.Limits(max_connections=1)))
        answer = streamed(module, colour, client, server.chat)
        endless.stop()
    assert answer == (200, ANSWER)
    assert only(registry).retried == 1


def test_bomb_is_decompressed_no_further_than_the_bound(module: ModuleType, colour: str) -> None:
    packed = zlib.compressobj(wbits=31)
    bomb = b"".join([packed.compress(bytes(1 << 20)) for _ in range(64)]) + packed.flush()
    seen: list[int] = []

    original = bodies.decoded
    registry = impatient()

    def counted(pieces: Any) -> bytes:
        body = original(pieces)
        seen.append(len(body))
        return body

    with (
        Server(lambda number, path: (429, GARBLED, bomb)) as server,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr("tidegate.transports.httpx.decoded", counted)
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat, read=False)
    assert answer == (429, None)
    assert len(seen) == 1
    assert seen[0] <= bodies.MAX_ERROR_BYTES + (1 << 15)


def test_answer_that_a_hook_has_closed_passes_through(module: ModuleType, registry: Any) -> None:
    client = module.Client(event_hooks={"response": [lambda response: response.close()]})
    with Server(lambda number, path: (400, {}, NOPE)) as server, registry.wrap(client):
        response = client.send(client.build_request("POST", server.chat, json=BODY), stream=True)
    assert (response.status_code, response.is_closed) == (400, True)


@pytest.mark.parametrize("packed", [False, True])
def test_error_body_is_read_whole_by_requests(packed: bool) -> None:
    whole = bytes(range(256)) * 4096
    registry = impatient()
    headers, sent = (GARBLED, gzip.compress(whole, 0)) if packed else ({}, whole)
    with Server(lambda number, path: (400, headers, sent)) as server:
        session = registry.wrap(requests.Session())
        assert streamed_by_requests(session, server.chat) == (400, whole)
        with session.post(server.chat, json=BODY, stream=True) as response:
            assert b"".join(response.iter_content(1000)) == whole
        with session.post(server.chat, json=BODY, stream=True) as response:
            assert response.raw.read() == sent


def test_streamed_error_of_requests_has_the_raw_of_a_plain_one() -> None:
    def seen(session: requests.Session, url: str) -> tuple[Any, ...]:
        with session, session.post(url, json=BODY, stream=True) as response:
            raw = response.raw
            return raw.read1(5), raw.geturl(), type(raw.retries), raw.read()

    with Server(lambda number, path: (400, {}, NOPE)) as server:
        plain = seen(requests.Session(), server.chat)
        assert seen(impatient().wrap(requests.Session()), server.chat) == plain


def test_stalled_error_body_hands_the_status_on_to_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_READ_SECONDS", 0.02)
    gate = Gate(b"{", b"}")
    registry = impatient()

    async def main(url: str) -> tuple[int, bytes]:
        async with registry.wrap(aiohttp.ClientSession()) as session, session.post(url, json=BODY) as response:
            assert only(registry).in_flight == 0
            gate.open()
            return response.status, await response.read()

    with Server(lambda number, path: (503, {}, gate)) as server:
        assert asyncio.run(main(server.chat)) == (503, b"{}")


def test_stalled_error_body_hands_the_status_on(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_READ_SECONDS", 0.02)
    gate = Gate(b"{", b"}")
    registry = impatient()

    async def main(url: str) -> tuple[int, bytes]:
        client = registry.wrap(module.AsyncClient(timeout=None))
        async with client, client.stream("POST", url, json=BODY) as response:
            assert only(registry).in_flight == 0
            gate.open()
            return response.status_code, await response.aread()

    with Server(lambda number, path: (503, {}, gate)) as server:
        assert asyncio.run(main(server.chat)) == (503, b"{}")


def test_stalled_error_body_that_nobody_reads_is_closed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_READ_SECONDS", 0.02)
    gate = Gate(b"{", b"}")
    registry = impatient()

    async def main(url: str) -> int:
        async with registry.wrap(module.AsyncClient(timeout=None)) as client:
            async with client.stream("POST", url, json=BODY) as response:
                status: int = response.status_code
            assert len(asyncio.all_tasks()) == 1
            return status

    with Server(lambda number, path: (503, {}, gate)) as server:
        assert asyncio.run(main(server.chat)) == 503
        gate.open()


def test_call_that_is_cancelled_in_a_stalled_error_body_leaves_nothing(module: ModuleType) -> None:
    arrived = threading.Event()
    gate = Gate(b"{", b"}")
    registry = impatient()

    def reply(number: int, path: str) -> Reply:
        arrived.set()
        return 503, {}, gate

    async def main(url: str) -> None:
        async with registry.wrap(module.AsyncClient(timeout=None)) as client:
            call = asyncio.create_task(client.send(client.build_request("POST", url, json=BODY), stream=True))
            await asyncio.to_thread(arrived.wait, 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert len(asyncio.all_tasks()) == 1

    with Server(reply) as server:
        asyncio.run(main(server.chat))
        gate.open()
    assert only(registry).in_flight == 0
