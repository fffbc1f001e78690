"""Transport for http.client, and so for urllib.request, urllib3 and every vendored copy of it: one class patch.

Theory of operation. A program writes a request in parts: `putrequest`, its headers, and `send` for head and body. Where
method, host and path may be those of a governed call, the `send` of that one connection keeps the bytes. `getresponse`
makes a response, by the `response_class` of that connection: there the bytes are sent as a governed call. So also a
body from an iterator or a file can be sent again. The connection is opened, and fails to open, where it would be
without tidegate. Requests inside an attempt of requests or botocore pass through.

A request is sent again only where its answer refused it, over a new connection. A connection that broke may have
delivered it, so the program gets that error. Errors and documents are read before they are judged, and can be read
anew. Any other answer streams: the file of its connection is watched. The module is never imported here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from http import HTTPStatus
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tidegate import providers
from tidegate.admission.context import AttemptScope, current_scope
from tidegate.admission.drive import drive
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.providers.classification import UNREACHED, connection_failure
from tidegate.transports import bodies, gateway_url, sigv4
from tidegate.transports.call import HttpCall, is_stream
from tidegate.transports.governance import Binding, binding_of, provider_elsewhere, provider_of
from tidegate.transports.own_answers import NO_RETRY, RETRYABLE, TOO_MANY_REQUESTS_STATUS
from tidegate.transports.patches import MOCKS, Clients, unreadable
from tidegate.transports.request_key import OutgoingRequest, RequestRoute
from tidegate.transports.streams import StreamWatch, WatchedFile


class KeptRequest:
    """A request as it is written. Until `detach` it stands for its connection's `send` and `response_class`."""

    def __init__(self, binding: Binding, connection: Any, target: SplitResult) -> None:
        self.binding, self.connection, self.target, self.url = binding, connection, target, target.geturl()
        self.headers: dict[str, str] = {}
        self.is_sent = False
        self._write, self._respond = connection.send, connection.response_class
        self._pieces: list[bytes] = []
        # urllib3 changes the timeout once the request is written, and forgets its tunnel where it closes.
        self._opening = {name: value for name, value in vars(connection).items() if name.startswith("_tunnel")}
        self._opening["timeout"] = connection.timeout
        self._attach()

    def _attach(self) -> None:
        self.connection.send, self.connection.response_class = self, self.answer

    def detach(self) -> None:
        for name in ("send", "response_class"):
            vars(self.connection).pop(name, None)

    def __call__(self, data: Any) -> None:
        if self.connection.sock is None and self.connection.auto_open:
            self.detach()
            self.connection.connect()
            self._attach()
        try:
            self._pieces.append(data if type(data) is bytes else bytes(memoryview(data)))
        except TypeError:
            # A program that calls `send` itself may give it a file: such a request passes through.
            self.detach()
            self.transmit()
            self._write(data)

    def answer(self, sock: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the response to the request, which `getresponse` asks for as a new one."""
        self.detach()
        make = self._respond
        self._respond = lambda sock: make(sock, *args, **kwargs)
        call = self._call()
        if call is not None:
            return drive(call)
        self.transmit()
        return self._respond(sock)

    def transmit(self) -> None:
        self.is_sent = True
        # The server may have answered before it closed: reading tells.
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in self._pieces:
                self._write(piece)

    def receive(self, sock: Any = None) -> Any:
        response = self._respond(self.connection.sock if sock is None else sock)
        try:
            response.begin()
        except BaseException as error:
            response.close()
            if isinstance(error, ConnectionError):
                self.connection.close()
            raise
        return response

    def reopen(self, timeout: float | None) -> None:
        """Open the connection anew; `timeout` is that of reading."""
        connection, present = self.connection, self.connection.timeout
        if sock := connection.sock:
            connection.sock = None
            sock.close()
        vars(connection).update(self._opening)
        connection.connect()
        connection.timeout = present
        connection.sock.settimeout(timeout)

    def _call(self) -> HttpClientCall | None:
        """Return the governed call; None for a request that passes through."""
        try:
            binding, url = self.binding, self.target
            host = url.hostname or ""
            head, _, body = b"".join(self._pieces).partition(b"\r\n\r\n")
            lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
            pairs = [(name, value.strip()) for name, _, value in lines]
            lower = {name.lower(): value for name, value in pairs}
            networked = partial(_networked, self.connection)
            provider = provider_of(binding, host, url.path) or provider_elsewhere(
                binding, host, url.path, lower.items, networked
            )
            if provider is None or not (binding.any_host or networked()):
                return None
            if b"chunked" in lower.get(b"transfer-encoding", b""):
                # An answer is framed in the same way.
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                body = self.receive(bodies.WrittenMessage(head + body)).read()
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lower.items()}
            route = RequestRoute(provider, url.scheme, host, url.port, url.path)
            outgoing = OutgoingRequest(route, pairs, body, True, query=url.query.encode())
            call = HttpClientCall(binding, outgoing, self.receive, (self,), {}, False)
            call.timeout = self.connection.sock.gettimeout()
            if provider.credential_part is not None:
                sigv4.signed_by(call, self.headers, None)
        except Exception:
            unreadable()
            return None
        return call


class HttpClientCall(HttpCall):
    """One `getresponse` of a connection whose request was kept."""

    __slots__ = ("timeout",)

    timeout: float | None

    def send(self, permit: Permit) -> AttemptResult:
        kept: KeptRequest = self.request
        try:
            with AttemptScope(permit):
                if kept.is_sent or self.was_queued:
                    # A server closes a connection that idles, and may close one that it refused.
                    kept.reopen(self.timeout)
                kept.transmit()
                response = self.wrapped()
        except Exception as error:
            return AttemptResult(self.unanswered_outcome(error), error=error)
        is_encoded = "content-encoding" in response.headers
        kind, facts = response.headers.get("content-type", "").lower(), self.request_facts
        is_document = not facts.stream and not is_stream(self, response) and ("json" in kind or "html" in kind)
        if is_document or response.status >= 400 or response.length == 0:
            body = bodies.read_anew(response)
            outcome = self.outcome(permit, response.status, response, bodies.decompressed(body) if is_encoded else body)
            return AttemptResult(outcome, response=response)
        outcome = self.outcome(permit, response.status, response, None)
        watch = StreamWatch(self, permit, outcome)
        watch.decode = bodies.decompressed if is_encoded else None
        response.fp = WatchedFile(response.fp, watch, response.chunked)
        return AttemptResult(outcome, response=response, streaming=True)

    def judge_error(self, error: Exception) -> Outcome:
        """Return the outcome of an exception. Only a request that did not reach a server is sent again."""
        found = connection_failure(error)
        if found is not None and found.row == UNREACHED:
            return found
        kind = Kind.TRANSIENT if found is not None or isinstance(error, OSError) else Kind.ABANDONED
        return Outcome(kind, Cause.NONE, row="exception")

    def stop_retries(self, response: Any) -> None:
        if response.status in RETRYABLE:
            self.add_headers(response, {NO_RETRY: "false"})

    def add_headers(self, response: Any, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            del response.headers[name]
            response.headers[name] = value

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        content = json.dumps(body).encode()
        # Its request is not sent, or another answer came: the connection is not used further.
        own = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
        lines = [f"{name}: {value}" for name, value in {**headers, **own}.items()]
        head = "\r\n".join((f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""))
        kept: KeptRequest = self.request
        return kept.receive(bodies.WrittenMessage(head.encode("latin-1") + content))


def putrequest(wrapped: Callable[..., Any], connection: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    last = connection.__dict__.get("send")
    if last is not None and type(last) is KeptRequest:
        # The last request failed while it was written.
        last.detach()
    scope = current_scope()
    if (args[0] if args else kwargs["method"]) != "POST" or (scope is not None and scope.open):
        return result
    try:
        tunnel = getattr(connection, "_tunnel_host", None)
        host, port = (tunnel, connection._tunnel_port) if tunnel else (connection.host, connection.port)
        host, path, url = _target(connection.default_port, host, port, args[1] if args[1:] else kwargs["url"])
        if providers.generates(host, path) and "response_class" not in vars(connection):
            binding = binding_of(connection)
            # The gateway of this process governs what it gets.
            if binding is not None and not gateway_url.real_url(url.geturl()):
                KeptRequest(binding, connection, url)
    except Exception:
        unreadable()
    return result


@lru_cache(maxsize=1024)
def _target(default_port: int, host: str, port: int, line: str) -> tuple[str, str, SplitResult]:
    """Return host, path and URL of a request, also of one through a proxy."""
    if line.startswith(("http://", "https://")):
        url = urlsplit(line)
    else:
        scheme = "https" if default_port == gateway_url.PORTS["https"] else "http"
        named = f"[{host}]" if ":" in host else host
        url = urlsplit(f"{scheme}://{named}{'' if port == default_port else f':{port}'}{line}")
    return url.hostname or "", url.path, url


def _networked(connection: Any) -> bool:
    """Return whether a connection has a socket of the system; mocks have their own."""
    number = connection.sock.fileno() if hasattr(connection.sock, "fileno") else None
    return type(number) is int and type(connection.sock).__module__.partition(".")[0] not in MOCKS


def put(module: ModuleType) -> None:
    TRANSPORT.patches.put(module.HTTPConnection, "putrequest", putrequest)


TRANSPORT = Clients(("http.client",), ("HTTPConnection",), put)
