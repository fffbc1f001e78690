"""A streaming answer on its way to its reader: what its bytes say, and the permit that goes with it to its end."""

from __future__ import annotations

from collections.abc import Callable

from tidegate import providers
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Outcome
from tidegate.transports.govern import GovernedCall

KEPT = 4096
"""Bytes kept of a stream's beginning and end: usage stands in the first or last events, a failure in the last."""

MOST_CHUNKS = 32
LONG = 1024
"""Pieces of it that are kept before they are cut to what is needed, and bytes of one that is cut at once: 36 kB in all,
where an event is of a few hundred bytes."""


class StreamWatch:
    """The reading of a stream's bytes, and its permit; `finish` gives the permit back once."""

    __slots__ = ("_chunks", "_head", "_held", "_outcome")

    def __init__(self, call: GovernedCall, permit: Permit, outcome: Outcome) -> None:
        self._held: tuple[GovernedCall, Permit] | None = (call, permit)
        self._outcome = outcome
        self._head = b""
        self._chunks: list[bytes] = []

    def saw(self, chunk: bytes) -> None:
        """Keeps the first and the last bytes, in pieces as long as they are few."""
        keep, kept, trim = self.keeping()
        keep(chunk)
        if len(kept) > MOST_CHUNKS or len(chunk) > LONG:
            trim()

    def keeping(self) -> tuple[Callable[[bytes], None], list[bytes], Callable[[], object]]:
        """Return what `saw` does, for whoever sees many: keeps a chunk, those that are kept, and cuts them."""
        return self._chunks.append, self._chunks, self._trim

    def _trim(self) -> bytes:
        """The last bytes, in one piece."""
        seen = b"".join(self._chunks)
        if len(self._head) < KEPT:
            self._head = seen[:KEPT]  # all that came is still there
        tail = seen[-KEPT:]
        self._chunks[:] = (tail,)
        return tail

    def finish(self, error: Exception | None = None) -> None:
        """The stream ended, was closed, or broke."""
        held, self._held = self._held, None
        if held is None:
            return
        call, permit = held
        if error is not None:
            call.settle_stream(permit, call.judge_error(error))
            return
        tail = self._trim()
        failure = providers.judge_event(call.provider, tail)
        if failure is not None:
            call.settle_stream(permit, failure)
            return
        outcome = self._outcome
        if call.reads_usage(permit):
            seen = self._head if len(self._head) < KEPT else self._head + tail
            outcome = call.answered(permit, outcome, seen)
        call.settle_stream(permit, outcome)

    def drop(self) -> None:
        """The response was garbage-collected before its end."""
        held, self._held = self._held, None
        if held is not None:
            call, permit = held
            call.registry.drop(permit)
