"""A streaming answer on its way to its reader: what its bytes say, and the permit that goes with it to its end."""

from __future__ import annotations

from tidegate import providers
from tidegate.core.admission import Permit
from tidegate.core.vocabulary import Outcome
from tidegate.transports.govern import GovernedCall

KEPT = 4096
"""Bytes kept of a stream's beginning and end: usage stands in the first or last events, a failure in the last."""


class StreamWatch:
    """What a stream's bytes say, and its permit; `finish` gives the permit back once."""

    __slots__ = ("_head", "_held", "_outcome", "_tail")

    def __init__(self, call: GovernedCall, permit: Permit, outcome: Outcome) -> None:
        self._held: tuple[GovernedCall, Permit] | None = (call, permit)
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
        held, self._held = self._held, None
        if held is None:
            return
        call, permit = held
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
        held, self._held = self._held, None
        if held is not None:
            call, permit = held
            call.registry.drop(permit)
