"""Byte streams of httpx and httpx2 that hold a call's permit until they end.

Theory of operation. A stream whose first event is a failure sends its call again (`stream_openings`), and continues
with the stream of the new answer. Its reader sees one stream. The reader gets the failure itself where the call cannot
be repeated, or where the repetition fails in another way: the SDK then raises what it raises without tidegate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

from tidegate.admission.drive import adrive, drive
from tidegate.core.exchange import AttemptResult
from tidegate.transports.stream_openings import StreamOpening
from tidegate.transports.streams import MAX_SEEN_BYTES, StreamWatch


class WatchedStream:
    """Stream of one answer with its `watch`; the interfaces of the two libraries are added by `stream_types`."""

    def __init__(self, stream: Any, watch: StreamWatch) -> None:
        self._stream = stream
        self._watch = watch
        # Of the stream, not of one iteration: openai iterates over the rest once more, to free the connection.
        self._opening = StreamOpening(watch.repeatable_call is None)
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        if name in ("_stream", "_watch"):
            raise AttributeError(name)
        return getattr(self._stream, name)

    def __del__(self) -> None:
        watch = self.__dict__.get("_watch")
        if watch is not None:
            watch.drop()

    def _adopt(self, response: Any) -> bool:
        """Continue with the stream of a repeated call; return False where that is none, or this one was closed."""
        other = response.stream
        good = response.status_code == 200 and "content-encoding" not in response.headers
        if self._is_closed or not good or not isinstance(other, WatchedStream):
            return False
        self._stream, self._watch, self._opening = other._stream, other.__dict__.pop("_watch"), other._opening
        return True


class SyncWatchedStream(WatchedStream):
    """The same for a synchronous client."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            seen, trim = self._watch.keeping()
            opening = self._opening
            try:
                for chunk in self._stream:
                    seen += chunk
                    if opening.is_over:
                        if len(seen) > MAX_SEEN_BYTES:
                            trim()
                        yield chunk
                        continue
                    yield from opening.add(chunk, seen, self._watch.repeatable_call)
                    if opening.failure is not None:
                        break
            except Exception as error:
                self._watch.finish(error)
                yield from opening.end()
                raise
            if opening.failure is None or not self._restart(opening.failure):
                yield from opening.end()
                return

    def _restart(self, failed: AttemptResult) -> bool:
        """Repeat the call; return False where the reader gets the failure instead."""
        self._stream.close()
        started = self._watch.restart(failed)
        if started is None:
            return False
        try:
            response = drive(*started)
        except Exception:
            return False
        finally:
            self._watch.drop()
        is_adopted = self._adopt(response)
        if not is_adopted:
            response.close()
        return is_adopted

    def close(self) -> None:
        self._is_closed = True
        try:
            self._stream.close()
        finally:
            self._watch.finish()


class AsyncWatchedStream(WatchedStream):
    """The same for an asynchronous client."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            seen, trim = self._watch.keeping()
            opening = self._opening
            chunks = aiter(self._stream)
            try:
                async for chunk in chunks:
                    seen += chunk
                    if opening.is_over:
                        if len(seen) > MAX_SEEN_BYTES:
                            trim()
                        yield chunk
                        continue
                    for each in opening.add(chunk, seen, self._watch.repeatable_call):
                        yield each
                    if opening.failure is not None:
                        break
            except Exception as error:
                self._watch.finish(error)
                for each in opening.end():
                    yield each
                raise
            finally:
                # A generator that is left open costs the loop a task that closes it.
                if (close := getattr(chunks, "aclose", None)) is not None:
                    await close()
            if opening.failure is None or not await self._restart(opening.failure):
                for each in opening.end():
                    yield each
                return

    async def _restart(self, failed: AttemptResult) -> bool:
        await self._stream.aclose()
        started = self._watch.restart(failed)
        if started is None:
            return False
        try:
            response = await adrive(*started)
        except Exception:
            return False
        finally:
            self._watch.drop()
        is_adopted = self._adopt(response)
        if not is_adopted:
            await response.aclose()
        return is_adopted

    async def aclose(self) -> None:
        self._is_closed = True
        try:
            await self._stream.aclose()
        finally:
            self._watch.finish()


def stream_types(module: ModuleType) -> tuple[Any, Any]:
    """Return the sync and async byte streams of httpx or httpx2."""
    return (
        type("SyncStream", (SyncWatchedStream, module.SyncByteStream), {}),
        type("AsyncStream", (AsyncWatchedStream, module.AsyncByteStream), {}),
    )
