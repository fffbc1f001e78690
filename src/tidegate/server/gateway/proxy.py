"""ASGI application of the gateway: it forwards each request to its server, and the answer back, piece by piece.

Theory of operation. The client's request becomes a request of an HTTP client that tidegate governs like any other. So
queue, retries and the answer of a call that is given up are those of a governed process. Status, headers and bytes pass
unchanged, apart from the headers of a single connection. The end of the client's connection cancels its call, which
frees its place in the queue or at the provider.

Any web page can send requests to a local port. So a request must name this server in `Host`, must not come from a page,
and must have the token of this start as the first part of its path: programs cannot be told to send another header.

Only a whole body can be priced, and sent again after a refusal. So a body of at most `MAX_BODY` bytes is read before it
is sent. All bodies together hold at most `MAX_BODIES` bytes; a request beyond that waits, in order of arrival, before
any of its body is read. A longer body passes through in pieces. Such a call waits for its turn, too, but its refusal
goes to the program.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

import tidegate.admission.log_redaction  # noqa: F401  # its filter precedes every record
from tidegate import providers
from tidegate.admission.context import AttemptScope
from tidegate.errors import ConfigurationError
from tidegate.server.access_policy import forgery_of
from tidegate.transports.gateway_url import PORTS, RealServer, address_of, real_server

ADDED_VERSIONS = {("api.anthropic.com", "/messages"): "/v1/messages"}
"""Paths that a server does not have, with those that are meant.

@ai-sdk/anthropic 3.0.140 appends `/messages` to `ANTHROPIC_BASE_URL`, and the SDK of Anthropic `/v1/messages`
(https://github.com/vercel/ai/issues/15542).
"""


class Upstreams:
    """Set of the servers that a gateway may reach; raises `ConfigurationError` for a URL that names none.

    `urls` are base URLs of servers beside the known providers, and `hosts` further ones. Both `hosts` and known
    providers are reached by TLS at its usual port.
    """

    def __init__(self, urls: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._named = frozenset(self._server(url) for url in urls)
        self._hosts = frozenset(host.lower() for host in hosts)

    def allows(self, server: RealServer) -> bool:
        if (server.scheme, server.address) in self._named:
            return True
        return self._by_tls(server) and (server.host in self._hosts or self.is_known(server))

    def refusal(self, server: RealServer) -> str:
        """Return why a server is not reached, and the settings that allow it."""
        url = f"{server.scheme}://{server.address}"
        by_host = f", or set TIDEGATE_HOSTS={server.host}" if self._by_tls(server) else ""
        return (
            f"{url} is neither a known provider nor a server that you named; start `tidegate gateway --upstream {url}`"
            f"{by_host}; for `tidegate run`, set the program's base-URL variable to it before the run{by_host}"
        )

    def is_known(self, server: RealServer) -> bool:
        """Return whether a server is that of a known provider, which cannot be another gateway."""
        return providers.table_of(server.host) is not None

    @staticmethod
    def path_at(server: RealServer) -> str:
        return ADDED_VERSIONS.get((server.address, server.path), server.path)

    @staticmethod
    def _by_tls(server: RealServer) -> bool:
        return server.scheme == "https" and server.address == server.host

    @staticmethod
    def _server(url: str) -> tuple[str, str]:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigurationError("upstream", url, str(error)) from None
        address = address_of(parts.scheme, parts.netloc) if parts.scheme in PORTS else ""
        if not address:
            raise ConfigurationError("upstream", url, "it must be an ASCII URL such as https://llm.example/v1")
        return parts.scheme, address


MAX_BODY = 32 << 20
"""Bytes up to which a body is held. Derived from `providers._request._MAX_BODY`, above which no body is parsed."""

MAX_BODIES = 512 << 20
"""Bytes that all held bodies have in total. Chosen: 1,000 calls of half a megabyte."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class BodyBudget:
    """Number of bytes that may be held, given out in order of arrival. It belongs to one event loop."""

    def __init__(self, size: int = MAX_BODIES) -> None:
        self._free = size
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()

    async def take(self, size: int) -> None:
        """Take this many bytes, and wait where they are not free."""
        async with self._turn:
            while self._free < size:
                self._given.clear()
                await self._given.wait()
            self._free -= size

    def give(self, size: int) -> None:
        self._free += size
        self._given.set()


class RequestBody:
    """Body of one request, as the server receives it; `length` is the stated one, None if there is none.

    After `read`, `whole` is the body, or None for one that is too long, which `pieces` yields. `release` gives the
    memory back; call it once the body is not needed any more.
    """

    def __init__(self, receive: Receive, length: int | None, budget: BodyBudget) -> None:
        self.whole: bytes | None = None
        self._receive = receive
        self._length = length
        self._budget = budget
        self._taken = 0
        self._begun: list[bytes] = []
        self._ended = False

    async def read(self) -> None:
        """Read the body, unless it is too long; raise `ClientGone` where the client closes before its end."""
        if self._length is not None and self._length > MAX_BODY:
            return
        size = MAX_BODY if self._length is None else self._length
        await self._budget.take(size)
        self._taken = size
        read = 0
        while not self._ended and read <= MAX_BODY:
            read += len(await self._next())
        if self._ended:
            self.whole = b"".join(self._begun)
            self._begun = []
            self._budget.give(self._taken - len(self.whole))
            self._taken = len(self.whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._begun or not self._ended:
            piece = self._begun.pop(0) if self._begun else await self._next(kept=False)
            if piece:
                yield piece

    def release(self) -> None:
        taken, self._taken = self._taken, 0
        self._budget.give(taken)

    async def _next(self, kept: bool = True) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        self._ended = not message.get("more_body", False)
        if kept and piece:
            self._begun.append(piece)
        return piece


logger = logging.getLogger("tidegate")

HOP = b"x-tidegate-hop"
"""Header with the numbers of the gateways that a request has passed. Known providers do not get it."""

MAX_HOPS = 4
"""Gateways that a request may pass. Chosen: a run inside a run has two."""

CONNECTION_HEADERS = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection, which a proxy does not pass on (RFC 9110 section 7.6.1)."""

NOT_SENT = CONNECTION_HEADERS | {b"host", b"expect", HOP}
"""Headers of a request that are new for each connection. The server of the gateway answers `Expect` itself."""

REMAINING = frozenset({b"x-ratelimit-remaining", b"x-ratelimit-remaining-requests", b"x-ratelimit-remaining-tokens"})
"""Headers of which a good answer passes 1 in place of 0.

promptfoo throws a good answer away that states 0, waits, and sends the call again. After five such answers it gives the
row up (promptfoo 0.121.20 `isRateLimited`). The gateway itself paces the calls, and has read the true number.
"""

Pairs = Iterable[tuple[bytes, bytes]]


class BrokenAnswer(Exception):
    """The server's answer broke off; the client's connection must break off, too."""


class Target(NamedTuple):
    """Server of a request, and the URL at it."""

    server: RealServer
    url: httpx.URL


class GatewayProxy:
    """ASGI application for one start of a gateway; its `token` is the first segment of every path.

    `hosts` are the values of `Host` that name the server. `client` must send no header of its own.
    """

    def __init__(self, *, hosts: Collection[str], token: str, upstreams: Upstreams, client: httpx.AsyncClient) -> None:
        self._hosts = frozenset(hosts)
        self._prefix = f"/{token}".encode()
        self._upstreams = upstreams
        self._client = client
        self._number = secrets.token_hex(8).encode()
        self._budget = BodyBudget()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it; connections that are no HTTP requests are closed."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        target = self._target(scope)
        if isinstance(target, Target):
            await self._forward(scope, receive, send, target)
        else:
            await _refuse(send, *target)

    def _target(self, scope: Scope) -> Target | tuple[int, str]:
        """Return where a request goes, or status and reason of its refusal."""
        forged = forgery_of(Headers(scope=scope), self._hosts)
        if forged is not None:
            return forged
        path: bytes = scope["raw_path"]
        token, rest = path[: len(self._prefix)], path[len(self._prefix) :]
        if not hmac.compare_digest(token, self._prefix) or not rest.startswith(b"/"):
            return 403, "request refused: its path does not begin with the token of this gateway"
        server = real_server(rest.decode("latin-1"))
        if server is None:
            return 404, "request refused: its path names no server; it must be /TOKEN/HOST/PATH"
        if not self._upstreams.allows(server):
            return 403, f"request refused: {self._upstreams.refusal(server)}"
        passed = _passed(scope["headers"])
        if self._number in passed or len(passed) >= MAX_HOPS:
            return 508, "request refused: it has passed this gateway already; its base URL leads back to the gateway"
        given = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= given:
            return 400, "request refused: it has both Content-Length and Transfer-Encoding, so its end is not certain"
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        try:
            url = httpx.URL(f"{server.scheme}://{server.address}{self._upstreams.path_at(server)}{query}")
            # A host whose Punycode cannot be decoded raises UnicodeError here.
            is_same = bool(url.host) and (url.scheme, url.netloc.decode()) == (server.scheme, server.address)
        except (httpx.InvalidURL, UnicodeError) as error:
            return 400, f"request refused: its URL is invalid ({error})"
        # The HTTP client must connect to the very server that was compared.
        if not is_same or url.fragment:
            return 400, "request refused: its URL is invalid (it can be read in two ways)"
        return Target(server, url)

    async def _forward(self, scope: Scope, receive: Receive, send: Send, target: Target) -> None:
        """Send a request on, unless its client closes the connection before the end of the answer."""
        # A gateway before this one has governed the call already.
        governed = self._is_inference(scope, target.server) and not _passed(scope["headers"])
        task = asyncio.current_task()
        assert task is not None, "the server runs each request in a task"
        body, watcher, gone = self._body(scope, receive), None, False

        async def cancel_at_end() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                continue
            gone = True
            task.cancel()

        try:
            if body is not None and governed:
                await body.read()
            content: Any = b""
            if body is not None:
                content = body.whole if body.whole is not None else body.pieces()
            # While pieces are read, the body itself tells of the end of the connection.
            if isinstance(content, bytes):
                watcher = asyncio.ensure_future(cancel_at_end())
            await self._answer(self._request(scope, target, content), governed, send)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            if watcher is not None:
                watcher.cancel()
            if body is not None:
                body.release()

    def _body(self, scope: Scope, receive: Receive) -> RequestBody | None:
        given = dict(scope["headers"])
        length = given.get(b"content-length", b"")
        if b"transfer-encoding" not in given and length in (b"", b"0"):
            return None
        return RequestBody(receive, int(length) if length.isdigit() else None, self._budget)

    def _is_inference(self, scope: Scope, server: RealServer) -> bool:
        return scope["method"] == "POST" and providers.generates(server.host, self._upstreams.path_at(server))

    def _request(self, scope: Scope, target: Target, content: Any) -> httpx.Request:
        headers = _passed_on(scope["headers"], NOT_SENT)
        headers.insert(0, (b"host", target.url.netloc))
        if not self._upstreams.is_known(target.server):
            headers.append((HOP, b",".join([*_passed(scope["headers"]), self._number])))
        return httpx.Request(scope["method"], target.url, headers=headers, content=content)

    async def _answer(self, request: httpx.Request, governed: bool, send: Send) -> None:
        try:
            with nullcontext() if governed else AttemptScope():
                response = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            await _refuse(send, *_unreachable(error, request.url.host))
            return
        try:
            headers = [(name.lower(), value) for name, value in response.headers.raw]
            passing = _passed_on(headers, CONNECTION_HEADERS)
            if response.is_success and governed:
                passing = [(name, b"1" if value == b"0" and name in REMAINING else value) for name, value in passing]
            await send({"type": "http.response.start", "status": response.status_code, "headers": passing})
            if response.is_stream_consumed:
                await send({"type": "http.response.body", "body": response.content})
                return
            try:
                async for piece in response.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except httpx.HTTPError as error:
                # A clean end would look like a whole answer.
                raise BrokenAnswer(type(error).__name__) from None
            await send({"type": "http.response.body"})
        finally:
            with suppress(httpx.HTTPError):
                await response.aclose()


def _passed(headers: Pairs) -> list[bytes]:
    return [number.strip() for name, value in headers if name == HOP for number in value.split(b",")]


def _passed_on(headers: Pairs, dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of the connection, also those that `connection` names."""
    pairs = list(headers)
    named = {each.strip().lower() for name, value in pairs if name == b"connection" for each in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in dropped and name not in named]


def _unreachable(error: httpx.HTTPError, host: str) -> tuple[int, str]:
    if isinstance(error, httpx.TimeoutException):
        return 504, f"request not answered: {host} sent nothing in time ({type(error).__name__})"
    return 502, f"request not answered: the connection to {host} failed ({type(error).__name__}: {error})"


async def _refuse(send: Send, status: int, reason: str) -> None:
    """Answer with an error object of the form that the SDKs of OpenAI and Anthropic show."""
    error = {"type": "error", "error": {"type": "tidegate_gateway", "message": f"tidegate gateway: {reason}"}}
    body = json.dumps(error).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-tidegate", b"gateway"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
