"""Opening of a stream: its bytes up to the end of the first event, in which a provider may refuse under a 200.

Theory of operation. As long as the reader has got no event, the call can be sent again like any refused one. Only the
first event is judged, and it is kept back no longer than until it is whole. Comments (keep-alives) before it are passed
on, because no reader sees them. A stream that breaks is not repeated: the provider may have begun what was asked.
"""

from __future__ import annotations

import re

from tidegate import providers
from tidegate.core.exchange import AttemptResult
from tidegate.core.values import CAPACITY, Kind
from tidegate.transports.call import HttpCall

MAX_EVENT_BYTES = 1 << 14
"""Most bytes of a first event that are kept back. Chosen: far above an error event."""

MAX_REPETITIONS = 2
"""Most repetitions of a call whose streams begin with a failure of the provider's own. Precedent: openai and anthropic,
two retries of a status 500."""

FIELDS = (b"data:", b"event:", b"id:", b"retry:")
"""Beginnings of a server-sent event; any other stream is passed on as it comes."""

_COMMENTS = re.compile(rb"(?:(?::[^\n]*)?\r?\n)*")
_FIRST_EVENT = re.compile(_COMMENTS.pattern + rb"((?:data|event|id|retry):.*?\r?\n\r?\n)", re.DOTALL)
_FAILING = re.compile(rb"rror|base_resp|\"msg\"|success|xception")
"""Some word that every failure in an event has: most first events are passed on by this look alone."""


class StreamOpening:
    """Opening of one stream: the chunks kept back, until it `is_over` or has a `failure`."""

    __slots__ = ("_kept", "failure", "is_over")

    def __init__(self, is_over: bool) -> None:
        self._kept: list[bytes] = []
        self.is_over = is_over
        self.failure: AttemptResult | None = None

    def add(self, chunk: bytes, so_far: bytearray, call: HttpCall | None) -> list[bytes]:
        """Return the chunks that are passed on now that `chunk` came, the last part of the bytes `so_far`.

        `call` is the one that may be repeated, None where the stream was closed.
        """
        self._kept.append(chunk)
        found = _FIRST_EVENT.match(so_far)
        if found is None:
            return [] if self._lacks_end(so_far) else self.end()
        self.is_over = True
        if call is not None and _FAILING.search(found[1]) is not None:
            self.failure = _failed(call, bytes(found[1]))
        return [] if self.failure is not None else self.end()

    def end(self) -> list[bytes]:
        """Return the chunks that are kept, which nothing holds back any longer."""
        kept, self._kept = self._kept, []
        return kept

    def _lacks_end(self, so_far: bytearray) -> bool:
        """Return whether a first event has begun; an opening of any other form is over, unless it is a comment."""
        comments = _COMMENTS.match(so_far)
        event = bytes(so_far[comments.end() if comments is not None else 0 :])
        if event[:1] in (b"", b":", b"\r"):
            return False
        begun = event.startswith(FIELDS) or any(field.startswith(event) for field in FIELDS)
        self.is_over = not begun or len(event) > MAX_EVENT_BYTES
        return not self.is_over


def _failed(call: HttpCall, event: bytes) -> AttemptResult | None:
    """Return the failed attempt that a call continues from; None for an event that its reader gets."""
    failure = providers.judge_event(call.provider, event)
    if failure is None or providers.has_content(event):
        return None
    if failure.kind is Kind.TRANSIENT:
        call.failed_streams = getattr(call, "failed_streams", 0) + 1
        # Each repetition is an exchange of its own, which counts one attempt so far.
        call.policy = call.policy._replace(attempts=max(1, MAX_REPETITIONS - call.failed_streams + 2))
    elif failure.kind not in CAPACITY:
        return None
    return AttemptResult(failure, call.refused({}, {}))
