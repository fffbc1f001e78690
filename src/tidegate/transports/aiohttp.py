"""Transport for aiohttp: a class patch on `ClientSession._request`, which follows redirects and checks the status.

Theory of operation. `_request` returns when the headers have arrived. An error's body is read before it is judged, and
the caller can read it again. If a good body has arrived by then, it is complete and the permit returns at once. Any
other body is watched in aiohttp's stream reader, where the network writes to it. The permit thus returns when the
provider has finished, even if the caller never reads the body. Many programs fetch all responses before they read the
first. The module is never imported here: it comes from `sys.modules`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from tidegate import providers
from tidegate.admission import redaction
from tidegate.admission.context import AttemptScope
from tidegate.admission.drive import adrive
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome
from tidegate.transports import bearer, gateway_url, sigv4
from tidegate.transports.bodies import ErrorBody
from tidegate.transports.call import MAX_CHECKED_BYTES, HttpCall, is_stream, take_token
from tidegate.transports.governance import binding_of, count_refusal, counts_refusals, provider_elsewhere, provider_of
from tidegate.transports.own_answers import NO_RETRY, RETRYABLE, TOO_MANY_REQUESTS_STATUS
from tidegate.transports.patches import LOOK_FROM_CALLS, Clients, note_aiohttp, unreadable
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, accounts_of
from tidegate.transports.streams import Readers, StreamWatch, arrived, begun, put_back

PLAIN = (str, bytes, int, float)
"""Types of form values that are the same each time they are sent."""


class AiohttpCall(HttpCall):
    """One `_request` of a session; `check` is the caller's `raise_for_status`: True, a function, or falsy."""

    __slots__ = ("check", "received", "session", "stack", "unread", "url")

    check: Any
    received: tuple[Any, bytes | None] | None
    session: Any
    stack: AiohttpModule
    unread: tuple[Any, bytes] | None
    url: Any

    async def asend(self, permit: Permit) -> AttemptResult:
        self.received = self.unread = None
        try:
            waited = permit.sent_at - self.started_at
            aged = waited > bearer.LOOK_AFTER_SECONDS
            if aged and (renewal := bearer.due(self.sent_headers(), waited, True)) is not None:
                take_token(self, renewal, await renewal.arenew())
            if permit.in_flight >= LOOK_FROM_CALLS:
                note_aiohttp(self.registry, permit, self.session)
            with AttemptScope(permit):
                response = await self.wrapped(*self.args, **self.kwargs)
                _, body = self.received or await self.receive(response)
        except Exception as error:
            outcome = self._judge_raised(permit, error)
            self._cut(permit, outcome)
            return AttemptResult(outcome, error=error)
        outcome = self.outcome(permit, response.status, response, body)
        self._cut(permit, outcome)
        if body is not None or outcome.kind is not Kind.OK:
            return AttemptResult(outcome, response=response)
        if not self.stack.readers.follow(response.content, StreamWatch(self, permit, outcome)):
            return AttemptResult(outcome, response=response)
        # Nothing more is sent, so a streaming answer keeps neither the session nor the request.
        self.received = None
        del self.wrapped, self.args, self.kwargs, self.session, self.sending
        return AttemptResult(outcome, response=response, streaming=True)

    async def receive(self, response: Any) -> tuple[Any, bytes | None]:
        """Receive a response. Read its body if that is complete or an error's; the caller can still read it."""
        content, body = response.content, None
        fed = self.stack.readers.holds(content)
        if response.status >= 400:
            try:
                body = await (self._begun(response) if fed else response.read())
            except Exception:
                # The status is known. The caller's own reading will raise the failure.
                response.close()
                body = b""
            except BaseException:
                response.close()
                raise
        elif fed and content.is_eof():
            body = arrived(content)
        self.received = response, body
        return self.received

    async def _begun(self, response: Any) -> bytes:
        """Return the bytes to judge an error by; the caller can read them again, and what follows."""
        read = ErrorBody()
        await begun(response.content, read)
        body = b"".join(read.chunks)
        if read.error is not None:
            response.close()
        elif not read.ended:
            put_back(response.content, body)
            self.unread = response, body
        elif body:
            response.content = self.stack.readers.whole(body)
        return body

    def _cut(self, permit: Permit, outcome: Outcome) -> None:
        """End a body after the part that was read, and close its connection, before its call is sent again."""
        if self.unread is not None and self.will_retry(permit, outcome):
            response, body = self.unread
            response.close()
            response.content = self.stack.readers.whole(body)
        self.unread = None

    async def examine(self, response: Any) -> None:
        """Replace the caller's check of the status, so that an exception from it does not hide the response."""
        await self.receive(response)
        await self.apply(response)

    async def apply(self, response: Any) -> None:
        """Run the caller's check, which may raise (aiohttp 3.14 `client.py`, "check response status")."""
        if callable(self.check):
            await self.check(response)
        else:
            response.raise_for_status()

    async def checked(self) -> Any:
        """Return the response of a call with a status check; run the check on a response that tidegate made."""
        response = await adrive(self)
        if self.received is None and response.status >= 400:
            await self.apply(response)
        return response

    def outcome(self, permit: Permit, status: int, response: Any, body: bytes | None) -> Outcome:
        outcome = super().outcome(permit, status, response, body)
        if outcome.kind is Kind.OK and body is not None:
            failure = providers.judge_event(self.provider, body[-MAX_CHECKED_BYTES:], not is_stream(self, response))
            return outcome if failure is None else failure._replace(status=status)
        return outcome

    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        pairs: tuple[tuple[bytes, bytes], ...] = response.raw_headers
        return pairs

    def credentials(self) -> Iterator[str]:
        pairs = _pairs(self.session, self.kwargs)
        yield from redaction.in_headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
        yield from (cookie.value for cookie in self.session.cookie_jar.filter_cookies(self.url).values())
        yield from redaction.in_address(str(self.url))

    def sent_headers(self) -> Mapping[str, Any]:
        headers: Mapping[str, Any] = self.session._prepare_headers(self.kwargs.get("headers"))
        return headers

    def write_header(self, name: str, value: str) -> None:
        headers = self.session._prepare_headers(self.kwargs.get("headers"))
        headers[name] = value
        self.kwargs = {**self.kwargs, "headers": headers}

    def stop_retries(self, response: Any) -> None:
        """Mark the response; `sdk_hooks.is_given_up` reads the mark."""
        if response.status in RETRYABLE:
            self.add_headers(response, {NO_RETRY: "false"})

    def add_headers(self, response: Any, headers: dict[str, str]) -> None:
        """Replace the headers by those with `headers` added, and forget the view of them that aiohttp has cached."""
        response._headers = _proxy([*response._headers.items(), *headers.items()])
        response._cache.pop("headers", None)

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        self.received = None
        return self.stack.response(self.session, self.url, self.kwargs, headers, body, status)

    def _judge_raised(self, permit: Permit, error: Exception) -> Outcome:
        outcome = self.unanswered_outcome(error)
        if outcome.kind is Kind.ABANDONED and self.received is not None:
            # The caller's check rejected the answer: the outcome is that of the answer.
            response, body = self.received
            return self.outcome(permit, response.status, response, body)
        return outcome


class AiohttpModule:
    """The module, and the helpers made from its classes."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.readers = Readers(module)
        self.constructor = frozenset(inspect.signature(module.ClientResponse.__init__).parameters)

    def put(self) -> None:
        TRANSPORT.patches.put(self.module.ClientSession, "_request", self.request)

    def request(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        """Run `ClientSession._request`, governed if the session or the process is; return an awaitable."""
        if gateway_url.GatewayRoot.value:
            args, kwargs = _without_gateway(session, args, kwargs)
        call = self._call(wrapped, session, args, kwargs)
        if call is None:
            return _counted(wrapped, session, args, kwargs) if counts_refusals() else wrapped(*args, **kwargs)
        return call.checked() if call.check else adrive(call)

    def response(self, session: Any, url: Any, options: Any, headers: Any, body: Any, status: int) -> Any:
        raw = json.dumps(body).encode()
        sent = _proxy(session._prepare_headers(options.get("headers")))
        facts = {
            "writer": None,
            "continue100": None,
            "timer": None,
            "request_info": self.module.RequestInfo(url, "POST", sent, url),
            "traces": [],
            "loop": asyncio.get_running_loop(),
            "session": session,
            "stream_writer": SimpleNamespace(output_size=0),
        }
        facts = {name: value for name, value in facts.items() if name in self.constructor}
        response = session._response_class("POST", url, **facts)
        pairs = {**headers, "Content-Type": "application/json", "Content-Length": str(len(raw))}
        response.version, response.status = self.module.HttpVersion11, status
        response.reason = HTTPStatus(status).phrase
        response._headers = _proxy(pairs)
        response._raw_headers = tuple((name.encode(), value.encode()) for name, value in pairs.items())
        response.content = self.readers.whole(raw)
        return response

    def _call(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> AiohttpCall | None:
        try:
            binding = binding_of(session)
            if binding is None:
                return None
            method = args[0] if args else kwargs.get("method")
            if method != "POST" and str(method).upper() != "POST":
                return None
            url = _url(session, args[1] if len(args) > 1 else kwargs.get("str_or_url"))
            if url is None or not url.raw_host:
                return None
            # A mock of aiohttp (aioresponses) replaces the patched method: each call here reaches a network.
            provider = provider_of(binding, url.raw_host, url.path) or provider_elsewhere(
                binding, url.raw_host, url.path, lambda: _lower(session, kwargs), lambda: True
            )
            if provider is None:
                return None
            body = _body(self.module, session, kwargs)
            account = _account(session, kwargs, url)
            params = kwargs.get("params")
            url = url.update_query(params) if params else url
            port = None if url.is_default_port() else url.port
            sending = OutgoingRequest(
                RequestRoute(provider, url.scheme, url.raw_host, port, url.path),
                _pairs(session, kwargs),
                body.content,
                body.replayable,
                body.model,
                url.raw_query_string.encode(),
                account,
                bool(_middlewares(session, kwargs)),
            )
            call = AiohttpCall(binding, sending, wrapped, args, body.options, True)
            if provider.credential_part is not None:
                given = {name.decode().lower(): value.decode("latin-1") for name, value in sending.headers}
                sigv4.signed_by(call, given, None)
            call.check = kwargs.get("raise_for_status")
            if call.check is None:
                call.check = session.raise_for_status
        except Exception:
            unreadable()
            return None
        call.session, call.url, call.stack = session, url, self
        if call.check:
            call.kwargs = {**body.options, "raise_for_status": call.examine}
        return call


class Body(NamedTuple):
    """The body of a request, and the options of `_request` that send it."""

    options: dict[str, Any]
    content: bytes | None
    replayable: bool
    model: str = ""


def put(module: ModuleType) -> None:
    AiohttpModule(module).put()


TRANSPORT = Clients(("aiohttp",), ("ClientSession",), put)


def _proxy(pairs: Any) -> Any:
    multidict = sys.modules["multidict"]
    return multidict.CIMultiDictProxy(multidict.CIMultiDict(pairs))


def _url(session: Any, given: Any) -> Any:
    try:
        return session._build_url(given)
    except Exception:
        # The session itself will report what is wrong with the URL.
        return None


def _without_gateway(session: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with the URL at the real server, where this process governs a call below the gateway."""
    try:
        given = args[1] if len(args) > 1 else kwargs.get("str_or_url")
        # A session with a base URL may refuse other URLs.
        if session._base_url is not None or not gateway_url.leaves(binding_of(session) is not None):
            return args, kwargs
        url = _url(session, given)
        real = gateway_url.real_url(str(url)) if url is not None else None
        if real is None:
            return args, kwargs
        replaced = type(url)(real, encoded=True)
        if len(args) > 1:
            return (args[0], replaced, *args[2:]), kwargs
        return args, {**kwargs, "str_or_url": replaced}
    except Exception:
        unreadable()
        return args, kwargs


def _pairs(session: Any, options: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """Return the headers that the session will send, as far as they say who pays."""
    headers = session._prepare_headers(options.get("headers"))
    auth = options.get("auth") or session.auth
    if auth is not None and "Authorization" not in headers:
        headers["Authorization"] = auth.encode()
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def _counted(wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
    response = await wrapped(*args, **kwargs)
    count_refusal(session, response.status, partial(_target, response))
    return response


def _target(response: Any) -> tuple[str, str, list[tuple[bytes, bytes]]]:
    headers = response.request_info.headers.items()
    pairs = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]
    return response.url.raw_host or "", response.url.path, pairs


def _lower(session: Any, options: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in _pairs(session, options)]


def _middlewares(session: Any, options: Mapping[str, Any]) -> Iterable[Any]:
    middlewares: Iterable[Any] = options.get("middlewares") or getattr(session, "_middlewares", ()) or ()
    return middlewares


def _account(session: Any, options: Mapping[str, Any], url: Any) -> str:
    """Return an identifier of the credentials that `_request` adds itself (aiohttp 3.14 `client.py` 755-790, 888)."""
    added: list[Any] = list(_middlewares(session, options))
    if url.raw_user or url.raw_password:
        added.append((url.raw_user or "", url.raw_password or ""))
    elif session.trust_env and not (options.get("auth") or session.auth):
        added.append(f"netrc {os.environ.get('NETRC', '')}")
    return accounts_of(added)


def _body(module: ModuleType, session: Any, options: dict[str, Any]) -> Body:
    """Return the body that is sent; serialise `json` here, once, as `_request` would."""
    data, given = options.get("data"), options.get("json")
    again = options.get("upload_tracker") is None
    if given is not None and data is None:
        dumps = getattr(session, "_json_serialize_bytes", None)
        content = dumps(given) if dumps is not None else session.json_serialize(given).encode()
        payload = module.payload.BytesPayload(content, content_type="application/json", encoding="utf-8")
        options = {**options, "data": payload}
        del options["json"]
        return Body(options, bytes(content), again)
    if data is None:
        return Body(options, b"", again)
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        return Body(options, data.encode() if isinstance(data, str) else bytes(data), again)
    if isinstance(data, module.FormData):
        fields = [(facts.get("name"), value) for facts, _, value in getattr(data, "_fields", ())]
        return Body(options, None, False, _model(fields))
    if isinstance(data, (Mapping, list, tuple)):
        fields = list(data.items() if isinstance(data, Mapping) else data)
        plain = all(isinstance(field, tuple) and isinstance(field[-1], PLAIN) for field in fields)
        return Body(options, None, again and plain, _model(fields))
    return Body(options, None, False)


def _model(fields: Iterable[Any]) -> str:
    for field in fields:
        if isinstance(field, tuple) and len(field) == 2 and field[0] == "model":
            return field[1] if isinstance(field[1], str) else ""
    return ""
