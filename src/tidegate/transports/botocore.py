"""botocore, and so boto3, by class patches on `Endpoint`: of the services called `bedrock…`, others pass at once.

An attempt is one `_get_response`: the request comes signed, and is made and signed anew where it had to wait or is sent
again, for a signature ages. `_needs_retry`, which asks botocore's own retry machinery, is not asked about an answer
that we gave up on. Sync only: aiobotocore has an endpoint of its own. The module is never imported here.

Lines: botocore 1.44.5 `endpoint.py` `_send_request`, `_get_response`, `_needs_retry`; `retries/adaptive.py`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import wrapt

from tidegate import providers
from tidegate.core.dialogue import Sent
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Cause, Kind, Outcome
from tidegate.drive import drive
from tidegate.nesting import Cell
from tidegate.transports.clients import Clients, unreadable
from tidegate.transports.govern import ERROR_TYPE, TOO_MANY, GovernedCall
from tidegate.transports.keys import Route, Sending
from tidegate.transports.marks import marked
from tidegate.transports.raw import WatchedRaw
from tidegate.transports.streams import StreamWatch

SERVICES = "bedrock"
"""How the endpoint prefix of every service begins that is looked at."""

FAMILY = "bedrock"

GIVEN = ("request", "operation_model", "context")
"""What `_get_response` takes, in order."""

GIVEN_UP = "tidegate_given_up"
"""Stands in a call's context once its answer is final."""

MADE_OF = "_tidegate_made_of"
"""The attribute of a prepared request that holds what it was made of, to make it again."""

TTL = "%Y%m%dT%H%M%SZ"
"""How `Endpoint._calculate_ttl` writes the instant at which a repeated request is of no more use."""

_sending: ContextVar[bool] = ContextVar("tidegate_botocore_sending", default=False)


class Written(io.BytesIO):
    """A body that was never sent over a wire, as botocore reads one."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        """The body."""
        yield self.read()


class WatchedParser(wrapt.ObjectProxy[Any]):
    """The parser of an event stream: an exception ends the stream, although nobody reads on or closes it."""

    def __init__(self, parser: Any, watch: StreamWatch) -> None:
        super().__init__(parser)
        self._self_watch = watch

    def parse(self, response: Any, shape: Any) -> Any:
        """The event as it is."""
        if response["status_code"] >= 400:
            self._self_watch.finish()
        return self.__wrapped__.parse(response, shape)


class BotocoreCall(GovernedCall):
    """One `_get_response` of an endpoint, whose answer is the pair (response, exception) that it returns."""

    __slots__ = ("endpoint", "signed_at")

    endpoint: Any
    signed_at: float

    @property
    def context(self) -> dict[str, Any]:
        """What botocore carries along through all attempts of a call."""
        context: dict[str, Any] = self.args[2]
        return context

    def send(self, permit: Permit) -> Sent:
        """Sends the request, and reads the answer's body where it is not to be streamed."""
        try:
            with Cell():
                if self.stood:
                    self._make_anew(permit.sent_at)
                answer, failure = self._sent()
        except Exception as error:
            return Sent(self.judge_error(error), error=error)
        if answer is None:
            return Sent(self.judge_error(failure), response=(None, failure))
        response, parsed = answer
        complete = not self.stream or response.status_code >= 300
        outcome = self.outcome(permit, response.status_code, response, response.content if complete else None)
        streaming = None if complete else _streaming(parsed)
        if streaming is None:
            return Sent(outcome, response=(answer, None))
        watch = StreamWatch(self, permit, outcome)
        streaming._raw_stream = WatchedRaw(streaming._raw_stream, watch)
        if hasattr(streaming, "_parser"):
            streaming._parser = WatchedParser(streaming._parser, watch)
        return Sent(outcome, response=(answer, None), streaming=True)

    def _sent(self) -> Any:
        # The token bucket of the adaptive mode would sleep in `before-send`, inside our slot.
        token = _sending.set(True)
        try:
            return self.wrapped(*self.args, **self.kwargs)
        finally:
            _sending.reset(token)

    def _make_anew(self, now: float) -> None:
        """Makes and signs the request again, as `_send_request` does before it repeats one."""
        request, operation = self.args[:2]
        _prolong(self.context.get("retries", {}), now - self.signed_at)
        request.reset_stream()
        anew = self.endpoint.create_request(getattr(request, MADE_OF), operation)
        self.args = (anew, *self.args[1:])
        self.signed_at = now

    def stop_retries(self, response: Any) -> None:
        """Sees to it that botocore's retry machinery is not asked about this answer."""
        self.context[GIVEN_UP] = True

    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        """The answer's headers."""
        return _pairs(response.headers)

    def judge_error(self, error: Exception) -> Outcome:
        """What an exception means, of botocore's or, in the middle of a stream, of urllib3's."""
        names = {each.__name__ for each in type(error).__mro__}
        if "ReadTimeoutError" in names:
            return Outcome(Kind.TRANSIENT, Cause.NONE, row="timeout")
        if names & {"HTTPClientError", "ConnectionError", "HTTPError", "OSError"}:
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, row="connection")
        return Outcome(Kind.ABANDONED, row="exception")

    def genuine(self, response: Any) -> bool:
        """Whether a response came over a connection: moto and others answer with a body in memory."""
        return not isinstance(getattr(response, "raw", None), io.BytesIO)

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY) -> Any:
        """Bedrock's own refusal as botocore would have parsed it, from which it raises `ThrottlingException`."""
        self.context[GIVEN_UP] = True
        error = body.get("error")
        text = error["message"] if isinstance(error, dict) else str(body.get("message") or body.get("Message") or "")
        headers = {ERROR_TYPE: "ThrottlingException", **headers, "content-type": "application/json"}
        raw = Written(json.dumps({"message": text}).encode())
        response = sys.modules["botocore.awsrequest"].AWSResponse(self.request.url, status, headers, raw)
        parsed = {
            "Error": {"Message": text, "Code": headers[ERROR_TYPE]},
            "ResponseMetadata": {"RequestId": "", "HTTPStatusCode": status, "HTTPHeaders": headers},
            "message": text,
        }
        return (response, parsed), None


def create_request(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    """`Endpoint.create_request`, which notes what a request was made of."""
    request = wrapped(*args, **kwargs)
    if endpoint._endpoint_prefix.startswith(SERVICES):
        setattr(request, MADE_OF, args[0] if args else kwargs["params"])
    return request


def get_response(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    """`Endpoint._get_response`, governed where the client or the process is."""
    if not endpoint._endpoint_prefix.startswith(SERVICES):
        return wrapped(*args, **kwargs)
    call = _call(wrapped, endpoint, args, kwargs)
    return drive(call) if call is not None else wrapped(*args, **kwargs)


def needs_retry(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> Any:
    """`Endpoint._needs_retry`, which is not asked about an answer that we gave up on."""
    if endpoint._endpoint_prefix.startswith(SERVICES):
        made_of = args[2] if len(args) > 2 else kwargs["request_dict"]
        if made_of["context"].pop(GIVEN_UP, False):
            return False
    return wrapped(*args, **kwargs)


def acquire(wrapped: Callable[..., Any], bucket: Any, args: Any, kwargs: Any) -> Any:
    """`TokenBucket.acquire` of the adaptive mode, which holds up nothing that has passed our queue."""
    return True if _sending.get() else wrapped(*args, **kwargs)


def _call(wrapped: Callable[..., Any], endpoint: Any, args: Any, kwargs: Any) -> BotocoreCall | None:
    try:
        mark = marked(endpoint)
        if mark is None:
            return None
        args = (*args, *(kwargs[name] for name in GIVEN[len(args) :]))
        request = args[0]
        if request.method != "POST" or not hasattr(request, MADE_OF):
            return None
        url = _split(request.url)
        host = url.hostname or ""
        # The service says what is spoken, so every address of it is governed: a VPC's endpoint, a gateway.
        provider = providers.adopt(host, url.path, FAMILY)
        if provider is None:
            return None
        body = request.body
        whole = bytes(body) if isinstance(body, bytes | bytearray) else None
        replayable = body is None or whole is not None or _seekable(body)
        headers = [pair for pair in _pairs(request.headers) if pair[0].lower() == b"authorization"]
        route = Route(provider, url.scheme, host, url.port, url.path)
        call = BotocoreCall(mark, Sending(route, headers, whole, replayable))
    except Exception:
        unreadable()
        return None
    call.endpoint = endpoint
    call.signed_at = call.now()
    call.carry(wrapped, args, {}, request.stream_output)
    return call


def put(module: ModuleType) -> None:
    """Patches botocore, once, as far as it is loaded."""
    patches = TRANSPORT.patches
    endpoint, bucket = (sys.modules.get(name) for name in TRANSPORT.MODULES)
    if endpoint is not None:
        patches.put(endpoint.Endpoint, "create_request", create_request)
        patches.put(endpoint.Endpoint, "_get_response", get_response)
        patches.put(endpoint.Endpoint, "_needs_retry", needs_retry)
    if bucket is not None:
        patches.put(bucket.TokenBucket, "acquire", acquire)


class Endpoints(Clients):
    """The endpoints of Bedrock's clients: those of other services are none of ours."""

    def _holds(self, module: ModuleType, candidate: Any) -> bool:
        endpoint = getattr(module, "Endpoint", None)
        if endpoint is None or not isinstance(candidate, endpoint):
            return False
        prefix: str = candidate._endpoint_prefix
        return prefix.startswith(SERVICES)


TRANSPORT = Endpoints(("botocore.endpoint", "botocore.retries.bucket"), ("Endpoint",), put)


@lru_cache(maxsize=1024)
def _split(url: str) -> SplitResult:
    return urlsplit(url)


def _streaming(parsed: dict[str, Any]) -> Any:
    """The event stream or streaming body of an answer, None where there is none."""
    return next((member for member in parsed.values() if hasattr(member, "_raw_stream")), None)


def _prolong(retries: dict[str, Any], seconds: float) -> None:
    if "ttl" in retries:
        with suppress(ValueError):
            later = datetime.strptime(retries["ttl"], TTL) + timedelta(seconds=seconds)
            retries["ttl"] = later.strftime(TTL)


def _seekable(body: Any) -> bool:
    seekable = getattr(body, "seekable", None)
    return seekable is not None and bool(seekable())


def _pairs(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(_raw(name), _raw(value)) for name, value in headers.items()]


def _raw(text: object) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")
