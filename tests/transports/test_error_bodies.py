"""Errors that were to be streamed and break off, never end, or cannot be decompressed: as plain clients see them."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Iterator
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


def impatient() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_wait=0))


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
def test_broken_error_body_gives_the_plain_clients_exception(
    module: ModuleType, colour: str, status: int, headers: dict[str, str]
) -> None:
    def reply(number: int, path: str) -> Reply:
        return status, headers, NOPE

    with Server(reply) as server:
        plain = streamed(module, colour, client_of(module, colour), server.chat)
        registry = impatient()
        wrapped = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat)
        assert len(server.seen) == 2
    assert plain[0] == status
    assert issubclass(plain[1], (module.RemoteProtocolError, module.DecodingError))
    assert wrapped == plain
    assert only(registry).in_flight == 0


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
def test_429_with_a_broken_body_is_waited_for(
    module: ModuleType, colour: str, headers: dict[str, str], registry: Any
) -> None:
    def reply(number: int, path: str) -> Reply:
        return (429, {**headers, "retry-after-ms": "5"}, NOPE) if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat)
        assert len(server.seen) == 2
    assert answer == (200, ANSWER)
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (1, 0, 1)


def test_compressed_error_body_is_judged_and_handed_on_as_sent(module: ModuleType, colour: str, registry: Any) -> None:
    def reply(number: int, path: str) -> Reply:
        return 429, GARBLED, gzip.compress(SPENT)

    with Server(reply) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat)
        assert len(server.seen) == 1, "spent money is nothing to wait for"
    assert answer == (429, SPENT)


def test_raw_bytes_of_a_compressed_error_are_replayed(module: ModuleType, registry: Any) -> None:
    raw = gzip.compress(SPENT)
    with (
        Server(lambda number, path: (429, GARBLED, raw)) as server,
        registry.wrap(module.Client()) as client,
        client.stream("POST", server.chat, json=BODY) as response,
    ):
        assert b"".join(response.iter_raw()) == raw
        assert response.elapsed.total_seconds() >= 0


def test_endless_error_body_hands_the_status_on(module: ModuleType, colour: str) -> None:
    endless = EndlessBody(b"x" * 4096)
    registry = impatient()
    with Server(lambda number, path: (429, {}, endless)) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat, read=False)
        endless.stop()
    assert answer == (429, None)
    assert only(registry).in_flight == 0


def test_dripping_error_body_hands_the_status_on(
    module: ModuleType, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_SECONDS", 0.0)
    endless = EndlessBody(b"{")
    registry = impatient()
    with Server(lambda number, path: (503, {}, endless)) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat, read=False)
        endless.stop()
    assert answer == (503, None)
    assert only(registry).in_flight == 0


def test_error_body_over_the_bound_is_still_read_whole(module: ModuleType, colour: str) -> None:
    whole = bytes(range(256)) * 8192
    registry = impatient()
    with Server(lambda number, path: (429, {}, whole)) as server:
        answer = streamed(module, colour, registry.wrap(client_of(module, colour)), server.chat)
        assert len(server.seen) == 1
    assert answer == (429, whole)


def test_error_over_the_bound_that_is_waited_for_frees_its_connection(
    module: ModuleType, colour: str, registry: Any
) -> None:
    endless = EndlessBody(b"x" * 65536)

    def reply(number: int, path: str) -> Reply:
        return (429, {"retry-after-ms": "5"}, endless) if number == 1 else (200, {}, ANSWER)

    limits = module.Limits(max_connections=1)
    with Server(reply) as server:
        client = registry.wrap(client_of(module, colour, limits=limits))
        answer = streamed(module, colour, client, server.chat)
        endless.stop()
    assert answer == (200, ANSWER)


def test_day_limit_that_is_waited_for_frees_its_connection(
    module: ModuleType, colour: str, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BYTES", len(DAY))
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
    assert seen[0] <= bodies.MAX_BYTES + (1 << 15)


def test_answer_that_a_hook_has_closed_passes_through(module: ModuleType, registry: Any) -> None:
    client = module.Client(event_hooks={"response": [lambda response: response.close()]})
    with Server(lambda number, path: (400, {}, NOPE)) as server, registry.wrap(client):
        response = client.send(client.build_request("POST", server.chat, json=BODY), stream=True)
    assert (response.status_code, response.is_closed) == (400, True)


def streamed_by_requests(session: requests.Session, url: str, read: bool = True) -> tuple[int, Any]:
    with session.post(url, json=BODY, stream=True, timeout=20) as response:
        try:
            return response.status_code, (response.content if read else None)
        except Exception as error:
            return response.status_code, type(error)


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("status", [400, 429, 503])
def test_broken_error_body_gives_the_exception_of_plain_requests(status: int, headers: dict[str, str]) -> None:
    registry = impatient()
    with Server(lambda number, path: (status, headers, NOPE)) as server:
        plain = streamed_by_requests(requests.Session(), server.chat)
        wrapped = streamed_by_requests(registry.wrap(requests.Session()), server.chat)
        assert len(server.seen) == 2
    assert plain[0] == status
    assert issubclass(plain[1], requests.RequestException)
    assert wrapped == plain
    assert only(registry).in_flight == 0


@pytest.mark.parametrize("headers", BROKEN.values(), ids=BROKEN)
def test_429_with_a_broken_body_is_waited_for_by_requests(headers: dict[str, str], registry: Any) -> None:
    def reply(number: int, path: str) -> Reply:
        return (429, {**headers, "retry-after-ms": "5"}, NOPE) if number == 1 else (200, {}, ANSWER)

    with Server(reply) as server:
        assert streamed_by_requests(registry.wrap(requests.Session()), server.chat) == (200, ANSWER)
    assert (only(registry).refused, only(registry).failed, only(registry).answered) == (1, 0, 1)


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


def test_compressed_error_is_judged_for_requests(registry: Any) -> None:
    with Server(lambda number, path: (429, GARBLED, gzip.compress(SPENT))) as server:
        assert streamed_by_requests(registry.wrap(requests.Session()), server.chat) == (429, SPENT)
        assert len(server.seen) == 1


def test_streamed_error_of_requests_has_the_raw_of_a_plain_one() -> None:
    def seen(session: requests.Session, url: str) -> tuple[Any, ...]:
        with session, session.post(url, json=BODY, stream=True) as response:
            raw = response.raw
            return raw.read1(5), raw.geturl(), type(raw.retries), raw.read()

    with Server(lambda number, path: (400, {}, NOPE)) as server:
        plain = seen(requests.Session(), server.chat)
        assert seen(impatient().wrap(requests.Session()), server.chat) == plain


def test_endless_error_body_hands_the_status_on_to_requests() -> None:
    endless = EndlessBody(b"x" * 4096)
    registry = impatient()
    with Server(lambda number, path: (429, {}, endless)) as server:
        answer = streamed_by_requests(registry.wrap(requests.Session()), server.chat, read=False)
        endless.stop()
    assert answer == (429, None)
    assert only(registry).in_flight == 0


def streamed_by_aiohttp(registry: Any, url: str, read: bool = True) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session:
            if registry is not None:
                registry.wrap(session)
            async with session.post(url, json=BODY) as response:
                try:
                    return response.status, (await response.read() if read else None)
                except Exception as error:
                    return response.status, type(error)

    return asyncio.run(main())


@pytest.mark.parametrize("status", [400, 429, 503])
def test_broken_error_body_gives_the_exception_of_plain_aiohttp(status: int) -> None:
    registry = impatient()
    with Server(lambda number, path: (status, SHORT, NOPE)) as server:
        plain = streamed_by_aiohttp(None, server.chat)
        wrapped = streamed_by_aiohttp(registry, server.chat)
        assert len(server.seen) == 2
    assert plain == (status, aiohttp.ClientPayloadError)
    assert wrapped == plain


def test_error_body_over_the_bound_is_still_read_whole_by_aiohttp() -> None:
    whole = bytes(range(256)) * 8192
    with Server(lambda number, path: (429, {}, whole)) as server:
        assert streamed_by_aiohttp(impatient(), server.chat) == (429, whole)


def test_endless_error_body_hands_the_status_on_to_aiohttp() -> None:
    endless = EndlessBody(b"x" * 4096)
    registry = impatient()
    with Server(lambda number, path: (429, {}, endless)) as server:
        assert streamed_by_aiohttp(registry, server.chat, read=False) == (429, None)
        endless.stop()
    assert only(registry).in_flight == 0


def test_stalled_error_body_hands_the_status_on_to_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_SECONDS", 0.02)
    gate = Gate(b"{", b"}")
    registry = impatient()

    async def main(url: str) -> tuple[int, bytes]:
        async with registry.wrap(aiohttp.ClientSession()) as session, session.post(url, json=BODY) as response:
            assert only(registry).in_flight == 0
            gate.open()
            return response.status, await response.read()

    with Server(lambda number, path: (503, {}, gate)) as server:
        assert asyncio.run(main(server.chat)) == (503, b"{}")


def test_error_over_the_bound_that_is_waited_for_frees_its_aiohttp_connection(registry: Any) -> None:
    endless = EndlessBody(b"x" * 65536)

    def reply(number: int, path: str) -> Reply:
        return (429, {"retry-after-ms": "5"}, endless) if number == 1 else (200, {}, ANSWER)

    async def main(url: str) -> bytes:
        connector = aiohttp.TCPConnector(limit=1)
        session = registry.wrap(aiohttp.ClientSession(connector=connector))
        async with session, session.post(url, json=BODY) as response:
            return await response.read()

    with Server(reply) as server:
        assert asyncio.run(main(server.chat)) == ANSWER
        endless.stop()


def test_stalled_error_body_hands_the_status_on(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_SECONDS", 0.02)
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
    monkeypatch.setattr(bodies, "MAX_SECONDS", 0.02)
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
