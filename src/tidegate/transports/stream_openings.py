"""Opening of a stream: its bytes up to the end of the first event, in which a provider may refuse under a 200.

Theory of operation. As long as the reader has got no event, the call can be sent again like any refused one. Only the
first event is judged, and it is kept back no longer than until it is whole. Comments (keep-alives) before it are passed
on, because no reader sees them. A stream that breaks is not repeated: the provider may have begun what was asked.
"""

from __future__ import annotations

import re
from typing import Any

from tidegate import providers
from tidegate.core.exchange import AttemptResult
from tidegate.core.values import CAPACITY, Kind
from tidegate.transports.call import HttpCall

STARTS = (b"data:", b"event:", b"id:", b"retry:")
"""Beginnings of a server-sent event; any other stream is passed on as it comes."""

MAX_EVENT_BYTES = 1 << 14
"""Most bytes of a first event that are kept back. Chosen: far above an error event."""

REPEATED_FAILURES = 2
"""Most repetitions of a call whose stream begins with a failure of the provider's own. Precedent: openai and anthropic,
two retries of a status 500."""

_COMMENTS = re.compile(rb"(?:(?::[^\n]*)?\r?\n)*")
_FAILING = re.compile(rb"rror|base_resp|\"msg\"|success|xception")
"""Some word that every failure in an event has: most first events are passed on by this look alone."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class StreamOpening:
    """Opening of one stream of `call`: the chunks `kept` back, until it `is_over` or has a `failure`."""

    __slots__ = ("_call", "_kept", "failure", "is_over")

    def __init__(self, call: HttpCall | None) -> None:
        self._call = call
        self._kept: list[bytes] = []
        self.is_over = call is None or not call.policy.replayable
        self.failure: AttemptResult | None = None

    def add(self, chunk: bytes, so_far: bytearray) -> list[bytes]:
        """Return the chunks that are passed on now that `chunk` came, the last part of the bytes `so_far`."""
        self._kept.append(chunk)
        start = _COMMENTS.match(so_far)
        first = bytes(so_far[start.end() :]) if start is not None else bytes(so_far)
        if not first or first.startswith(b":"):
            return self.end()
        begins = first.startswith(STARTS) or any(each.startswith(first) for each in STARTS)
        end = _EVENT_END.search(first)
        if begins and end is None and len(first) <= MAX_EVENT_BYTES:
            return []
        self.is_over = True
        if begins and end is not None:
            self.failure = self._failed(first[: end.end()])
        return [] if self.failure is not None else self.end()

    def end(self) -> list[bytes]:
        """Return the chunks that are kept, which nothing holds back any longer."""
        kept, self._kept = self._kept, []
        return kept

    def _failed(self, event: bytes) -> AttemptResult | None:
        call = self._call
        assert call is not None, "an opening that is over gets no chunk"
        failure = providers.judge_event(call.provider, event) if _FAILING.search(event) is not None else None
        if failure is None or providers.has_content(event):
            return None
        if failure.kind is Kind.TRANSIENT:
            call.failed_streams = getattr(call, "failed_streams", 0) + 1
            call.policy = call.policy._replace(attempts=max(1, REPEATED_FAILURES - call.failed_streams + 2))
        elif failure.kind not in CAPACITY:
            return None
        return AttemptResult(failure, call.refused({}, {}))


def continues(response: Any) -> bool:
    """Return whether the response of a repeated call continues its stream: a good one that is not compressed."""
    return response.status_code == 200 and "content-encoding" not in response.headers
