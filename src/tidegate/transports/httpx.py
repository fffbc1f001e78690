"""httpx and httpx2, by one factory over the module: class patches on the public `Client.send` and `AsyncClient.send`.

A response ends in one of two ways. Without `stream` it is complete when `send` returns. With it the permit goes into a
byte stream around the response's own, which gives it back at the end, at `close`, at an error, or when the response is
garbage-collected. Neither module is ever imported here: they come from `sys.modules`.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

from tidegate import providers
from tidegate.core.admission import Permit
from tidegate.core.exchange import Ended, Sent
from tidegate.core.vocabulary import Kind, Outcome
from tidegate.drive import adrive, drive
from tidegate.nesting import Cell
from tidegate.transports.govern import GovernedCall, Sending, marked, provider_of
from tidegate.transports.patching import Patches

MODULES = ("httpx", "httpx2")
KEPT = 4096
"""Bytes kept of a stream's beginning and end: usage stands in the first or last events, a failure in the last."""

GOOD = Outcome(Kind.OK)

logger = logging.getLogger("tidegate")
patches = Patches()
_stacks: dict[type, Stack] = {}
_wrapped: weakref.WeakSet[object] = weakref.WeakSet()


class StreamWatch:
    """What a stream's bytes say, and its permit; `finish` gives the permit back once."""

    __slots__ = ("_call", "_head", "_outcome", "_permit", "_tail")

    def __init__(self, call: GovernedCall, permit: Permit, outcome: Outcome) -> None:
        self._call = call
        self._permit: Permit | None = permit
        self._outcome = outcome
        self._head = b""
        self._tail = b""

    def saw(self, chunk: bytes) -> None:
        """Keeps the first and the last bytes."""
        if len(self._head) < KEPT:
            self._head += chunk[: KEPT - len(self._head)]
        self._tail = (self._tail + chunk)[-KEPT:] if len(chunk) < KEPT else chunk[-KEPT:]

    def finish(self, error: Exception | None = None) -> None:
        """The stream ended, was closed, or broke."""
        permit, self._permit = self._permit, None
        if permit is None:
            return
        call = self._call
        if error is not None:
            call.registry.settle(permit, call.judge_error(error))
            return
        failure = providers.judge_event(call.provider, self._tail)
        if failure is not None:
            call.registry.settle(permit, failure)
            return
        seen = self._head if len(self._head) < KEPT else self._head + self._tail
        call.registry.settle(permit, call.answered(permit, self._outcome, seen))

    def drop(self) -> None:
        """The response was garbage-collected before its end."""
        permit, self._permit = self._permit, None
        if permit is not None:
            self._call.registry.drop(permit)


class HttpxCall(GovernedCall):
    """One `send` of a client."""

    __slots__ = ("args", "kwargs", "stack", "stream", "wrapped")

    stack: Stack
    wrapped: Callable[..., Any]
    args: Any
    kwargs: Any
    stream: bool

    def send(self, permit: Permit) -> Sent:
        """Sends the request, and reads the answer's body where it is not to be streamed."""
        try:
            with Cell():
                response = self.wrapped(*self.args, **self.kwargs)
                body = response.read() if _complete(response, self.stream) else None
        except Exception as error:
            return Sent(self.judge_error(error), error=error)
        return self._received(permit, response, body, self.stack.sync_stream)

    async def asend(self, permit: Permit) -> Sent:
        """Sends the request, and reads the answer's body where it is not to be streamed."""
        try:
            with Cell():
                response = await self.wrapped(*self.args, **self.kwargs)
                body = await response.aread() if _complete(response, self.stream) else None
        except Exception as error:
            return Sent(self.judge_error(error), error=error)
        return self._received(permit, response, body, self.stack.async_stream)

    def finish(self, ended: Ended) -> Any:
        """The response or the exception that was received last; a 429 of our own where there is none."""
        sent = ended.sent
        if sent is None:
            headers, body = self.refusal(ended)
            request = self.args[0] if self.args else self.kwargs["request"]
            return self.stack.module.Response(429, headers=headers, json=body, request=request)
        if sent.error is not None:
            raise sent.error
        response = sent.response
        if self.stop_sdk(ended, response.status_code):
            response.headers["x-should-retry"] = "false"
        return response

    def _received(self, permit: Permit, response: Any, body: bytes | None, stream: type) -> Sent:
        try:
            outcome = self._outcome(permit, response, body)
        except Exception:
            logger.exception("a response could not be judged; it is handed back")
            outcome = Outcome(Kind.ABANDONED, row="unjudged")
        if body is not None:
            return Sent(outcome, response=response)
        watch = StreamWatch(self, permit, outcome)
        response.stream = stream(response.stream, watch)
        return Sent(outcome, response=response, streaming=True)

    def _outcome(self, permit: Permit, response: Any, body: bytes | None) -> Outcome:
        status = response.status_code
        if status >= 400:
            return self.judge(status, response.headers.raw, body)
        outcome = self.judge(status, response.headers.raw, None) if permit.informs else GOOD
        if body is not None and self.reads_usage(permit):
            return self.answered(permit, outcome, body)
        return outcome


class Stack:
    """One of the two modules: its classes, and the wrappers made for them."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.sync_stream, self.async_stream = _stream_types(module)
        self.whole, self.multipart = module.ByteStream, module._multipart.MultipartStream

    def put(self) -> None:
        """Patches both classes of the module."""
        patches.put(self.module.Client, "send", self.send)
        patches.put(self.module.AsyncClient, "send", self.asend)

    def send(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        """`Client.send`, governed where the client or the process is."""
        call = self._call(wrapped, client, args, kwargs)
        return drive(call) if call is not None else wrapped(*args, **kwargs)

    def asend(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
        """`AsyncClient.send`, governed where the client or the process is; returns an awaitable."""
        call = self._call(wrapped, client, args, kwargs)
        return adrive(call) if call is not None else wrapped(*args, **kwargs)

    def _call(self, wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> HttpxCall | None:
        try:
            mark = marked(client)
            if mark is None:
                return None
            request = args[0] if args else kwargs.get("request")
            if request is None or request.method != "POST":
                return None
            url = request.url
            host, path = url.host, url.path
            provider = provider_of(mark, host, path)
            if provider is None:
                return None
            stream, body, replayable, model = request.stream, None, True, ""
            if isinstance(stream, self.whole):
                body = request.content
            else:
                replayable, model = isinstance(stream, self.multipart), _form_model(stream)
            sending = Sending(url.scheme, host, url.port, path, request.headers.raw, body, replayable, model, url.query)
            call = HttpxCall(mark, provider, sending)
        except Exception:
            # Nothing of ours is ever raised below an SDK: what we cannot read passes through.
            logger.exception("a request could not be read; it is not governed")
            return None
        call.stack, call.wrapped, call.args, call.kwargs = self, wrapped, args, kwargs
        call.stream = bool(kwargs.get("stream"))
        return call


def put(module: ModuleType) -> None:
    """Patches httpx or httpx2, once, under whatever name it goes (httpx2 can stand in for httpx)."""
    if module.Client not in _stacks:
        _stacks[module.Client] = Stack(module)
    _stacks[module.Client].put()


def loaded() -> list[ModuleType]:
    """Those of the two modules that the process has imported."""
    return [sys.modules[name] for name in MODULES if name in sys.modules]


def module_of(client: object) -> ModuleType:
    """The module that a client (see `is_client`) is of."""
    return next(module for module in loaded() if isinstance(client, (module.Client, module.AsyncClient)))


def is_client(candidate: object) -> bool:
    """Whether it is a client of either module."""
    return any(isinstance(candidate, (module.Client, module.AsyncClient)) for module in loaded())


def remember(client: object) -> None:
    """Notes a client that was wrapped: the patches stay on while it lives."""
    _wrapped.add(client)


def remembered() -> bool:
    """Whether a wrapped client lives."""
    return len(_wrapped) > 0


def _complete(response: Any, stream: bool) -> bool:
    # An error's body is read before it is judged; a mock's answer may be complete although a stream was asked for.
    return not stream or response.status_code >= 400 or response.is_closed


def _form_model(stream: Any) -> str:
    for field in getattr(stream, "fields", ()):
        if getattr(field, "name", None) == "model":
            value = getattr(field, "value", "")
            return value if isinstance(value, str) else ""
    return ""


def _stream_types(module: ModuleType) -> tuple[type, type]:
    """The two byte streams of one module that carry a permit to its end."""

    class Watched:
        def __init__(self, stream: Any, watch: StreamWatch) -> None:
            self._stream = stream
            self._watch = watch

        def __getattr__(self, name: str) -> Any:
            if name in ("_stream", "_watch"):
                raise AttributeError(name)
            return getattr(self._stream, name)

        def __del__(self) -> None:
            watch = self.__dict__.get("_watch")
            if watch is not None:
                watch.drop()

    class SyncStream(Watched, module.SyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._stream:
                    self._watch.saw(chunk)
                    yield chunk
            except Exception as error:
                self._watch.finish(error)
                raise

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._watch.finish()

    class AsyncStream(Watched, module.AsyncByteStream):  # type: ignore[name-defined, misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for chunk in self._stream:
                    self._watch.saw(chunk)
                    yield chunk
            except Exception as error:
                self._watch.finish(error)
                raise

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._watch.finish()

    return SyncStream, AsyncStream
