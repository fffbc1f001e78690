"""Transport for botocore and aiobotocore, and so boto3 and aioboto3: class patches on their endpoints.

Theory of operation. Only services whose names begin with `bedrock` are governed. An attempt is one `_get_response`. Its
request arrives signed. A signature expires, so the request is made and signed again if it waited or is repeated.
botocore's retry machinery (`_needs_retry`) is not asked about an answer that tidegate gave up on. aiobotocore's
`AioEndpoint` overrides the same methods with coroutines, over a session of aiohttp or httpx. No module is imported
here.

Lines: botocore 1.44.5 `endpoint.py` `_send_request`, `_get_response`, `_needs_retry`; `retries/adaptive.py`;
aiobotocore 3.10.0 `endpoint.py`, `response.py`, `eventstream.py`, `retries/bucket.py`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import wrapt

from tidegate import providers
from tidegate.admission.context import AttemptScope
from tidegate.admission.drive import adrive, drive
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.transports import httpx
from tidegate.transports.call import MAX_CHECKED_BYTES, UNREAL, HttpCall, raw_pairs, success_outcome
from tidegate.transports.governance import binding_of
from tidegate.transports.own_answers import ERROR_TYPE, TOO_MANY_REQUESTS_STATUS
from tidegate.transports.patches import Clients, made_up, unreadable
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, split_url
from tidegate.transports.streams import Readers, StreamWatch, WatchedRaw, arrived

SERVICES = "bedrock"
"""Prefix of the endpoint prefixes of all governed services."""

FAMILY = "bedrock"

REQUEST_PARAMETERS = ("request", "operation_model", "context")
"""Parameters of `_get_response`, in order."""

GIVEN_UP = "tidegate_given_up"
"""Key in a call's context, set once the call's answer is final."""

SOURCE_REQUEST = "_tidegate_made_of"
"""Attribute of a prepared request that holds its source, to make the request again."""

CREDENTIALS = frozenset({b"authorization", b"x-amz-security-token"})
"""Headers of a signed request that hold credentials."""

TTL = "%Y%m%dT%H%M%SZ"
"""Format in which `Endpoint._calculate_ttl` writes the instant when a repeated request becomes useless."""

_sending: ContextVar[bool] = ContextVar("tidegate_botocore_sending", default=False)


class Written(io.BytesIO):
    """A body that never went over a connection, in the form that botocore reads."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        yield self.read()


class AsyncWritten(Written):
    """A body that never went over a connection, in the form that aiobotocore reads."""

    async def read(self, amt: int | None = None) -> bytes:  # type: ignore[override]
        return super().read(amt)


class WatchedParser(wrapt.ObjectProxy[Any]):
    """The parser of an event stream. An exception event settles the permit, even if the caller stops reading."""

    def __init__(self, parser: Any, watch: StreamWatch) -> None:
        super().__init__(parser)
        self._self_watch = watch

    def parse(self, response: Any, shape: Any) -> Any:
        if response["status_code"] >= 400:
            self._self_watch.finish()
        return self.__wrapped__.parse(response, shape)


class BotocoreCall(HttpCall):
    """One `_get_response` of an endpoint. Its answer is the pair (response, exception) that the method returns."""

    __slots__ = ("endpoint", "signed_at")

    endpoint: Any
    signed_at: float

    @property
    def context(self) -> dict[str, Any]:
        context: dict[str, Any] = self.args[2]
        return context

    def send(self, permit: Permit) -> AttemptResult:
        try:
            with AttemptScope(permit):
                if self.was_queued:
                    self._anew(permit.sent_at, self._make(permit.sent_at))
                # The adaptive mode's token bucket would sleep in `before-send`, while this call holds its permit.
                token = _sending.set(True)
                try:
                    answer, failure = self.wrapped(*self.args, **self.kwargs)
                finally:
                    _sending.reset(token)
        except Exception as error:
            return AttemptResult(self.unanswered_outcome(error), error=error)
        if answer is None:
            return AttemptResult(self.unanswered_outcome(failure), response=(None, failure))
        content = answer[0].content if self._is_complete(answer[0]) else None
        return self._received(permit, answer, content)

    async def asend(self, permit: Permit) -> AttemptResult:
        try:
            with AttemptScope(permit):
                if self.was_queued:
                    self._anew(permit.sent_at, await self._make(permit.sent_at))
                token = _sending.set(True)
                try:
                    answer, failure = await self.wrapped(*self.args, **self.kwargs)
                finally:
                    _sending.reset(token)
        except Exception as error:
            return AttemptResult(self.unanswered_outcome(error), error=error)
        if answer is None:
            return AttemptResult(self.unanswered_outcome(failure), response=(None, failure))
        # aiobotocore has read and kept the content to parse it.
        content = await answer[0].content if self._is_complete(answer[0]) else None
        return self._received(permit, answer, content)

    def _is_complete(self, response: Any) -> bool:
        return not self.stream or response.status_code >= 300

    def _received(self, permit: Permit, answer: Any, content: bytes | None) -> AttemptResult:
        response, parsed = answer
        if not self.mocks and made_up(response):
            status = response.status_code
            return AttemptResult(UNREAL if status >= 400 else success_outcome(status), response=(answer, None))
        streaming = None
        if content is None:
            streaming = _streaming(parsed)
            content = _arrived(streaming)
        outcome = self.outcome(permit, response.status_code, response, content)
        if streaming is not None and content is not None:
            # The whole stream has arrived, but its failure has not been read yet.
            failure = providers.judge_event(self.provider, content[-MAX_CHECKED_BYTES:])
            outcome = outcome if failure is None else failure._replace(status=response.status_code)
        if streaming is None or content is not None:
            return AttemptResult(outcome, response=(answer, None))
        watch = StreamWatch(self, permit, outcome)
        if not _watched(streaming, watch):
            return AttemptResult(outcome, response=(answer, None))
        if hasattr(streaming, "_parser"):
            streaming._parser = WatchedParser(streaming._parser, watch)
        return AttemptResult(outcome, response=(answer, None), streaming=True)

    def _make(self, now: float) -> Any:
        """Make and sign the request again, as `_send_request` does for a repeat; return a coroutine for aiobotocore."""
        request, operation = self.args[:2]
        _prolong(self.context.get("retries", {}), now - self.signed_at)
        request.reset_stream()
        return self.endpoint.create_request(getattr(request, SOURCE_REQUEST), operation)

    def _anew(self, now: float, request: Any) -> None:
        self.args = (request, *self.args[1:])
        self.signed_at = now

    def stop_retries(self, response: Any) -> None:
        """Prevent botocore's retry machinery from being asked about this answer."""
        self.context[GIVEN_UP] = True

    def add_headers(self, response: Any, headers: dict[str, str]) -> None:
        """Add headers to those that the error's `response` shows in `ResponseMetadata`."""
        (_, parsed), _ = response
        parsed["ResponseMetadata"]["HTTPHeaders"].update(headers)

    def is_from_provider(self, response: Any) -> bool:
        """Return whether a response came over a connection: moto and others answer with a body in memory."""
        return not made_up(response)

    def credentials(self) -> Iterator[str]:
        """Yield the credentials of the request, and the secret key and session token that signed it."""
        yield from super().credentials()
        emitter = getattr(self.endpoint._event_emitter, "_emitter", self.endpoint._event_emitter)
        for handlers in list(emitter._lookup_cache.values()):
            for handler in handlers or ():
                # The signer listens to `request-created`. Read only its stored values: a query could fetch new
                # credentials.
                held = getattr(getattr(handler, "__self__", None), "_credentials", None)
                yield from (each for each in getattr(held, "__dict__", {}).values() if isinstance(each, str))

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        """Return Bedrock's own refusal as botocore parses it, from which it raises `ThrottlingException`."""
        self.context[GIVEN_UP] = True
        error = body.get("error")
        text = error["message"] if isinstance(error, dict) else str(body.get("message") or body.get("Message") or "")
        headers = {ERROR_TYPE: "ThrottlingException", **headers, "content-type": "application/json"}
        written = json.dumps({"message": text}).encode()
        if isinstance(self.endpoint, _async_endpoint()):
            made = sys.modules["aiobotocore.awsrequest"].AioAWSResponse
            response = made(self.request.url, status, headers, AsyncWritten(written))
        else:
            made = sys.modules["botocore.awsrequest"].AWSResponse
            response = made(self.request.url, status, headers, Written(written))
        parsed = {
            "Error": {"Message": text, "Code": headers[ERROR_TYPE]},
            "ResponseMetadata": {"RequestId": "", "HTTPStatusCode": status, "HTTPHeaders": headers},
            "message": text,
        }
        return (response, parsed), None


def create_request(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    return _noted(endpoint, wrapped(*args, **kwargs), args, kwargs)


async def acreate_request(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    return _noted(endpoint, await wrapped(*args, **kwargs), args, kwargs)


def _noted(endpoint: Any, request: Any, args: Any, kwargs: Any) -> Any:
    if endpoint._endpoint_prefix.startswith(SERVICES):
        setattr(request, SOURCE_REQUEST, args[0] if args else kwargs["params"])
    return request


def get_response(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    call = _call(wrapped, endpoint, args, kwargs)
    return drive(call) if call is not None else wrapped(*args, **kwargs)


def aget_response(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    call = _call(wrapped, endpoint, args, kwargs)
    return adrive(call) if call is not None else wrapped(*args, **kwargs)


def needs_retry(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    """Run `Endpoint._needs_retry`, or return False for an answer that tidegate gave up on."""
    return False if _given_up(endpoint, args, kwargs) else wrapped(*args, **kwargs)


async def aneeds_retry(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    return False if _given_up(endpoint, args, kwargs) else await wrapped(*args, **kwargs)


def _given_up(endpoint: Any, args: Any, kwargs: Any) -> bool:
    if not endpoint._endpoint_prefix.startswith(SERVICES):
        return False
    made_of = args[2] if len(args) > 2 else kwargs["request_dict"]
    return bool(made_of["context"].pop(GIVEN_UP, False))


def acquire(wrapped: Callable[..., Any], bucket: Any, args: Any, kwargs: Any) -> Any:
    """Run `TokenBucket.acquire` of the adaptive mode, except for calls that tidegate's queue has admitted."""
    return True if _sending.get() else wrapped(*args, **kwargs)


async def aacquire(wrapped: Callable[..., Any], bucket: Any, args: Any, kwargs: Any) -> Any:
    return True if _sending.get() else await wrapped(*args, **kwargs)


def _call(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> BotocoreCall | None:
    if not endpoint._endpoint_prefix.startswith(SERVICES):
        return None
    try:
        binding = binding_of(endpoint)
        if binding is None:
            return None
        args = (*args, *(kwargs[name] for name in REQUEST_PARAMETERS[len(args) :]))
        request = args[0]
        if request.method != "POST" or not hasattr(request, SOURCE_REQUEST):
            return None
        url = split_url(request.url)
        host = url.hostname or ""
        # The service determines the protocol, so every address is governed: a VPC's endpoint, a gateway.
        provider = providers.adopt(host, url.path, FAMILY)
        if provider is None:
            return None
        body = request.body
        whole = bytes(body) if isinstance(body, bytes | bytearray) else None
        replayable = body is None or whole is not None or _seekable(body)
        headers = [pair for pair in raw_pairs(request.headers) if pair[0].lower() in CREDENTIALS]
        route = RequestRoute(provider, url.scheme, host, url.port, url.path)
        outgoing = OutgoingRequest(route, headers, whole, replayable)
        call = BotocoreCall(binding, outgoing, wrapped, args, {}, request.stream_output)
    except Exception:
        unreadable()
        return None
    call.endpoint = endpoint
    call.signed_at = call.now()
    return call


PATCHES: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "botocore.endpoint": (
        "Endpoint",
        {"create_request": create_request, "_get_response": get_response, "_needs_retry": needs_retry},
    ),
    "botocore.retries.bucket": ("TokenBucket", {"acquire": acquire}),
    "aiobotocore.endpoint": (
        "AioEndpoint",
        {"create_request": acreate_request, "_get_response": aget_response, "_needs_retry": aneeds_retry},
    ),
    "aiobotocore.retries.bucket": ("AsyncTokenBucket", {"acquire": aacquire}),
}
"""By module: the class to patch, and the wrappers of its methods."""


def put(module: ModuleType) -> None:
    for name, (kind, methods) in PATCHES.items():
        found = sys.modules.get(name)
        for method, wrapper in methods.items() if found is not None else ():
            TRANSPORT.patches.put(getattr(found, kind), method, wrapper)


class Endpoints(Clients):
    """The endpoints of Bedrock's clients; those of other services are ignored."""

    def _holds(self, module: ModuleType, candidate: Any) -> bool:
        endpoint = getattr(module, "Endpoint", None)
        if endpoint is None or not isinstance(candidate, endpoint):
            return False
        prefix: str = candidate._endpoint_prefix
        return prefix.startswith(SERVICES)


TRANSPORT = Endpoints(tuple(PATCHES), ("Endpoint",), put)


def _streaming(parsed: dict[str, Any]) -> Any:
    return next((member for member in parsed.values() if hasattr(member, "_raw_stream")), None)


def _arrived(streaming: Any) -> bytes | None:
    """Return the body of an aiohttp streaming answer that has completely arrived; None for any other."""
    raw: Any = getattr(streaming, "_raw_stream", None)
    return arrived(raw.content) if _stack(raw) == "aiohttp" and raw.content.is_eof() else None


def _watched(streaming: Any, watch: StreamWatch) -> bool:
    """Let `watch` see a streaming body of urllib3, aiohttp or httpx; return False if that is not possible."""
    raw = streaming._raw_stream
    stack = _stack(raw)
    if stack == "aiohttp":
        return Readers(sys.modules["aiohttp"]).follow(raw.content, watch)
    if stack in ("httpx", "httpx2"):
        raw.stream = httpx.stack_of(sys.modules[stack]).async_stream(raw.stream, watch)
        return True
    streaming._raw_stream = WatchedRaw(raw, watch)
    return True


def _stack(raw: object) -> str:
    """Return `aiohttp`, `httpx` or `httpx2`, from which the class of a raw response is or derives; else `""`."""
    packages = [each.__module__.partition(".")[0] for each in type(raw).__mro__]
    return next((package for package in packages if package in ("aiohttp", "httpx", "httpx2")), "")


def _async_endpoint() -> Any:
    return getattr(sys.modules.get("aiobotocore.endpoint"), "AioEndpoint", ())


def _prolong(retries: dict[str, Any], seconds: float) -> None:
    if "ttl" in retries:
        with suppress(ValueError):
            later = datetime.strptime(retries["ttl"], TTL) + timedelta(seconds=seconds)
            retries["ttl"] = later.strftime(TTL)


def _seekable(body: Any) -> bool:
    seekable = getattr(body, "seekable", None)
    return seekable is not None and bool(seekable())
