"""Transport for httpx and httpx2: class patches on the public `Client.send` and `AsyncClient.send`.

Theory of operation. One factory serves both modules, which come from `sys.modules` and are never imported here. Without
`stream`, a response is complete when `send` returns. With `stream`, a byte stream around the response's own holds the
permit. It returns the permit at the end, at `close`, at an error, or when the response is garbage-collected.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from operator import itemgetter
from types import ModuleType
from typing import Any

from tidegate.admission import redaction
from tidegate.admission.context import AttemptScope, current_scope
from tidegate.admission.drive import adrive, drive
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Outcome, new
from tidegate.providers import Current
from tidegate.transports import bearer, gateway_url, sigv4
from tidegate.transports.bodies import AsyncErrorStream, ErrorBody, SyncErrorStream, decoded
from tidegate.transports.call import UNREAL, HttpCall, success_outcome, take_token
from tidegate.transports.governance import (
    BINDING,
    Binding,
    binding_of,
    count_refusal,
    counts_refusals,
    provider_elsewhere,
    provider_of,
)
from tidegate.transports.httpx_streams import stream_types
from tidegate.transports.own_answers import TOO_MANY_REQUESTS_STATUS
from tidegate.transports.patches import LOOK_FROM_CALLS, Clients, note_httpx, unreadable
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, account_of
from tidegate.transports.streams import StreamWatch, ends_of

OWN_STREAMS = frozenset(
    {"ByteStream", "IteratorByteStream", "AsyncIteratorByteStream", "ResponseStream", "AsyncResponseStream"}
)
"""Stream classes that httpx 0.28 and httpx2 2.16 make: of a body given to a response, or in their connection pool."""

SENDING = ("handle_request", "handle_async_request")
"""The sending methods of the two transports, and of httpcore's pools. Mocks of the whole library replace them."""

PIECE_BYTES = 1 << 9
"""Bytes of a good answer decompressed at a time: half a kilobyte of gzip is half a megabyte at most."""

MAX_WRAPPERS = 3
"""Number of transports that may wrap the one that sends, at most. Chosen: pydantic-ai and hishel have one each."""

_stacks: dict[type, HttpxModule] = {}


class HttpxCall(HttpCall):
    """One `send` of a client."""

    __slots__ = ("direct", "signer", "stack")

    direct: bool
    signer: sigv4.BotocoreSigner | None
    stack: HttpxModule

    def send(self, permit: Permit) -> AttemptResult:
        """Send once, inside an attempt scope if another governed client may be below."""
        if self.direct:
            return self._send(permit)
        with AttemptScope(permit):
            return self._send(permit)

    def asend(self, permit: Permit) -> Awaitable[AttemptResult]:
        return self._asend(permit) if self.direct else self._within(permit)

    async def _within(self, permit: Permit) -> AttemptResult:
        with AttemptScope(permit):
            return await self._asend(permit)

    def _send(self, permit: Permit) -> AttemptResult:
        """Send the request once; read an error's body only as far as needed to judge it."""
        try:
            waited = permit.sent_at - self.started_at
            if waited > bearer.LOOK_AFTER_SECONDS:
                if (renewal := bearer.due(self.request.headers, waited, False)) is not None:
                    take_token(self, renewal, renewal.renew())
                if waited > sigv4.STALE_AFTER_SECONDS:
                    sigv4.renew(self.request, self.signer)
            if permit.in_flight >= LOOK_FROM_CALLS:
                self._note_pool(permit)
            response = self.wrapped(*self.args, **self.kwargs)
        except Exception as error:
            return AttemptResult(self.error_outcome(permit, error), error=error)
        mocked, error_stream = not self.mocks and _made_up(response), None
        if self.stream and not mocked and _is_unread_error(response):
            error_stream = response.stream = self.stack.sync_error(response.stream)
            error_stream.begin(self.now)
        attempt = self._received(permit, response, error_stream, None if mocked else self.stack.sync_stream)
        if error_stream is not None and self.will_retry(permit, attempt.outcome):
            error_stream.cut()
        return attempt

    async def _asend(self, permit: Permit) -> AttemptResult:
        try:
            waited = permit.sent_at - self.started_at
            if waited > bearer.LOOK_AFTER_SECONDS:
                if (renewal := bearer.due(self.request.headers, waited, True)) is not None:
                    take_token(self, renewal, await renewal.arenew())
                if waited > sigv4.STALE_AFTER_SECONDS:
                    await sigv4.arenew(self.request, self.signer)
            if permit.in_flight >= LOOK_FROM_CALLS:
                self._note_pool(permit)
            response = await self.wrapped(*self.args, **self.kwargs)
        except Exception as error:
            return AttemptResult(self.error_outcome(permit, error), error=error)
        mocked, error_stream = not self.mocks and _made_up(response), None
        if self.stream and not mocked and _is_unread_error(response):
            error_stream = response.stream = self.stack.async_error(response.stream)
            await error_stream.begin(self.now, "network_stream" in response.extensions)
        attempt = self._received(permit, response, error_stream, None if mocked else self.stack.async_stream)
        if error_stream is not None and self.will_retry(permit, attempt.outcome):
            await error_stream.cut()
        return attempt

    def _note_pool(self, permit: Permit) -> None:
        client = self.wrapped.__self__  # type: ignore[attr-defined]
        note_httpx(self.registry, permit, client, self.request.url)

    def credentials(self) -> Iterator[str]:
        yield from super().credentials()
        signer = self.request.extensions.get(sigv4.SIGNER)
        if signer is not None:
            yield from redaction.in_client(signer.owner())

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        response = self.stack.module.Response(status, headers=headers, json=body, request=self.request)
        response.elapsed = timedelta()
        return response

    def _received(self, permit: Permit, response: Any, error_stream: Any, stream: type | None) -> AttemptResult:
        """Return the result of an attempt. `stream` is the class for a streaming body, None for a mock's answer."""
        if stream is None:
            return AttemptResult(
                UNREAL if response.status_code >= 400 else success_outcome(response.status_code), response=response
            )
        body = self._body(response, error_stream)
        outcome = self.outcome(permit, response.status_code, response, body)
        if body is not None:
            return new(AttemptResult, (outcome, response, None, False))
        watch = StreamWatch(self, permit, outcome)
        encoding = response.headers.get("content-encoding")
        if encoding is not None:
            watch.decode = partial(self._decoded, encoding)
        response.stream = stream(response.stream, watch)
        return AttemptResult(outcome, response=response, streaming=True)

    def _body(self, response: Any, error_stream: Any) -> bytes | None:
        """Return the body to judge, decompressed; None while a good answer streams."""
        if error_stream is None:
            if self.stream and response.status_code < 400 and not response.is_closed:
                return None
            content: bytes = getattr(response, "_content", b"")  # a hook may have closed it unread
            return content
        body: ErrorBody = error_stream.body
        encoding = response.headers.get("content-encoding")
        if encoding is None:
            return b"".join(body.chunks)
        return decoded(self._decompressed(encoding, body.pieces()))

    def _decoded(self, encoding: str, seen: bytes) -> bytes:
        """Return the beginning and the end of what the bytes of a good answer stand for."""
        pieces = (seen[at : at + PIECE_BYTES] for at in range(0, len(seen), PIECE_BYTES))
        return ends_of(self._decompressed(encoding, pieces))

    def _decompressed(self, encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        answer = self.stack.module.Response(200, headers={"content-encoding": encoding}, content=pieces)
        decompressed: Iterator[bytes] = answer.iter_bytes()
        return decompressed

    def judge_error(self, error: Exception) -> Outcome:
        """Return the outcome of an exception; `UNREAL` if it does not come from below the HTTP library."""
        # httpx translates network errors and sets their cause. A mock raises httpx's own exceptions directly.
        return super().judge_error(error) if self.mocks or error.__cause__ is not None else UNREAL

    def is_from_provider(self, response: Any) -> bool:
        return not _made_up(response)

    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        return _headers(response.headers)


class HttpxModule:
    """One of the two modules: its classes, and the wrappers made for them."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.sync_stream, self.async_stream = stream_types(module)
        # Streams that replay the beginning of an error's body and then continue.
        self.sync_error: Any = type("SyncErrorStream", (SyncErrorStream, module.SyncByteStream), {})
        self.async_error: Any = type("AsyncErrorStream", (AsyncErrorStream, module.AsyncByteStream), {})
        self.whole, self.multipart = module.ByteStream, module._multipart.MultipartStream
        self.client_default = module.USE_CLIENT_DEFAULT
        self.networks = (module.HTTPTransport, module.AsyncHTTPTransport)
        self.bases = (module.BaseTransport, module.AsyncBaseTransport)

    def put(self) -> None:
        TRANSPORT.patches.put(self.module.Client, "send", self.send)
        TRANSPORT.patches.put(self.module.AsyncClient, "send", self.asend)

    def send(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        """Run `Client.send`, governed if the client or the process is."""
        call = self._call(wrapped, client, args, kwargs)
        if call is not None:
            return drive(call)
        response = wrapped(*args, **kwargs)
        if counts_refusals():
            count_refusal(client, response.status_code, partial(_target, response))
        return response

    def asend(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        call = self._call(wrapped, client, args, kwargs)
        if call is not None:
            return adrive(call)
        return _counted(wrapped, client, args, kwargs) if counts_refusals() else wrapped(*args, **kwargs)

    def _call(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> HttpxCall | None:
        try:
            binding: Binding | None = getattr(client, BINDING, None)
            if binding is None or binding.registry.disabled or current_scope() is not None:
                binding = binding_of(client)
            request = args[0] if args else kwargs.get("request")
            if gateway_url.GatewayRoot.value and gateway_url.leaves(binding is not None):
                self._leave_gateway(request)
            if binding is None:
                return None
            if request is None or request.method != "POST":
                return None
            url = request.url
            parts = getattr(url, "_uri_reference", None)  # its properties encode on each access
            facts: tuple[object, ...] = ()
            if parts is not None and len(parts) == ADDRESS_FIELDS:
                facts = (_ADDRESS(parts), Current.tables, binding[3:])
            route: RequestRoute | None = binding.registry.routes.get(facts)
            if route is None and (route := self._find_route(binding, client, request, facts)) is None:
                return None
            stream, body, replayable, model = request.stream, None, True, ""
            if isinstance(stream, self.whole):
                body = request.content
            else:
                replayable, model = isinstance(stream, self.multipart), _form_model(stream)
            query = url.query if route.provider.query_credential else b""
            auth = kwargs.get("auth", self.client_default)
            if auth is self.client_default:
                auth = client.auth
            if auth is not None:
                account = account_of(auth)
            else:
                account = parts.userinfo if parts is not None else url.userinfo.decode("latin-1")
            direct = _direct(client, self.networks)
            headers = _headers(request.headers)
            given = route, headers, body, replayable, model, query, account, auth is not None
            call = HttpxCall(binding, new(OutgoingRequest, given), wrapped, args, kwargs, bool(kwargs.get("stream")))
            call.stack, call.direct, call.signer = self, direct, None
            if route.provider.credential_part is not None:
                call.signer = sigv4.signed_by(call, request.headers, body, sigv4.SIGNER in request.extensions)
        except Exception:
            unreadable()
            return None
        return call

    def _leave_gateway(self, request: Any) -> None:
        """Address a request below the gateway's root to its real server."""
        real = gateway_url.real_url(str(request.url)) if request is not None else None
        if real is not None:
            request.url = self.module.URL(real)
            request.headers["host"] = request.url.netloc.decode("ascii")

    def _find_route(
        self, binding: Binding, client: Any, request: Any, facts: tuple[object, ...]
    ) -> RequestRoute | None:
        """Return the route of a request whose `facts` name none yet; None if the request is not governed."""
        url = request.url
        host, path = url.host, url.path
        provider = provider_of(binding, host, path)
        if provider is None:
            provider = provider_elsewhere(
                binding, host, path, lambda: _headers(request.headers), lambda: self._networked(client, url)
            )
            if provider is None:
                return None
            # The headers decided, which another request to this address may not have.
            facts = (url.scheme, host, url.port, path, Current.tables, provider)
        route: RequestRoute | None = binding.registry.routes.get(facts)
        if route is None:
            route = RequestRoute(provider, url.scheme, host, url.port, path)
            if facts:
                binding.registry.keep_route(facts, route)
        return route

    def _networked(self, client: Any, url: Any) -> bool:
        """Return whether the client sends over a network, as far as this can be known before it sends."""
        return _reaches_network(client._transport_for_url(url), self.networks, self.bases, MAX_WRAPPERS)


async def _counted(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    response = await wrapped(*args, **kwargs)
    count_refusal(client, response.status_code, partial(_target, response))
    return response


def _target(response: Any) -> tuple[str, str, Iterable[tuple[bytes, bytes]]]:
    request = response.request
    return request.url.host, request.url.path, _headers(request.headers)


def stack_of(module: ModuleType) -> HttpxModule:
    """Return the `HttpxModule` of a module, made once, also if the module has several names."""
    if module.Client not in _stacks:
        _stacks[module.Client] = HttpxModule(module)
    return _stacks[module.Client]


def put(module: ModuleType) -> None:
    """Patch httpx or httpx2 once, also if the module has several names (httpx2 can replace httpx)."""
    stack_of(module).put()
    sigv4.watch(TRANSPORT.patches)


TRANSPORT = Clients(("httpx", "httpx2"), ("Client", "AsyncClient"), put)


def _headers(headers: Any) -> Iterable[tuple[bytes, bytes]]:
    # `raw` builds a list in Python on each access, which is most of the cost of finding a credential or a quota.
    known = getattr(headers, "_list", None)
    return map(_LOWER_AND_VALUE, known) if known is not None else headers.raw


_ADDRESS = itemgetter(0, 2, 3, 4)
"""Pick scheme, host, port and path from a URL's parts (httpx 0.28 and httpx2 2.16), without user, query or fragment."""

ADDRESS_FIELDS = 7
"""Parts of such a URL. The five of httpx 0.23 have host and port in one, so its routes are looked up anew."""

_LOWER_AND_VALUE = itemgetter(1, 2)
"""Pick (lower-case name, value) from a header of httpx 0.28 and httpx2 2.16; its first field is the name as sent."""


def _direct(client: Any, networks: tuple[type, ...]) -> bool:
    # The library's own transport without hooks or mounts: nothing governed is below it.
    try:
        hooks = client._event_hooks
        own = type(client._transport) in networks and not client._mounts
        return own and not (hooks["request"] or hooks["response"])
    except (AttributeError, KeyError):
        return False


def _own_network(transport: Any, networks: tuple[type, ...]) -> bool | None:
    """Return True for the library's own transport, False if a mock replaced its methods, None for any other."""
    for own, name in zip(networks, SENDING, strict=True):
        if isinstance(transport, own):
            pool = type(getattr(transport, "_pool", None))
            replaced = pool.__module__.startswith("httpcore") and not _is_of(getattr(pool, name), "httpcore")
            return not replaced and _is_of(getattr(own, name), "httpx")
    return None


def _reaches_network(transport: Any, networks: tuple[type, ...], bases: tuple[type, ...], depth: int) -> bool:
    """Return whether a transport is the library's own or runs over aiohttp, or holds a transport that does."""
    own = _own_network(transport, networks)
    if own is not None:
        return own
    if any(each.__name__ == "AiohttpTransport" for each in type(transport).__mro__):
        return True
    # Follow transports only: an application under test may hold separate HTTP clients.
    held = [each for each in getattr(transport, "__dict__", {}).values() if isinstance(each, bases)]
    return depth > 0 and any(_reaches_network(each, networks, bases, depth - 1) for each in held)


@lru_cache(maxsize=64)
def _is_of(method: Any, library: str) -> bool:
    """Return whether a method is a library's own: pytest-httpx replaces the transport's, respx the pool's."""
    module: str = inspect.unwrap(method).__module__
    return module.startswith(library)


def _is_unread_error(response: Any) -> bool:
    return response.status_code >= 400 and not (response.is_closed or response.is_stream_consumed)


def _made_up(response: Any) -> bool:
    # A response from a connection names it in its documented extensions. Without one, a response is a mock's if its
    # stream is the library's own. Transports of other libraries, and applications called in this process, have other
    # streams.
    extensions, stream = getattr(response, "extensions", None), getattr(response, "stream", None)
    if not isinstance(extensions, dict) or "network_stream" in extensions:
        return False
    kind = type(getattr(stream, "_stream", stream))
    return kind.__name__ in OWN_STREAMS and kind.__module__.partition(".")[0] in TRANSPORT.MODULES


def _form_model(stream: Any) -> str:
    for field in getattr(stream, "fields", ()):
        if getattr(field, "name", None) == "model":
            value = getattr(field, "value", "")
            return value if isinstance(value, str) else ""
    return ""
