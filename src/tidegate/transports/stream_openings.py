"""Opening of a stream: the events before the first piece of an answer, after which a failure can still be repeated.

Theory of operation. A provider may answer 200 and refuse in the first events, or break the connection before them. As
long as the reader has got no byte, the call can be sent again like any refused one. So the opening is kept back: known
events without content, such as `message_start`, which come right before the first piece. The first event of any other
kind ends the opening, so a stream of an unknown form is passed on at once.
"""

from __future__ import annotations

import re
from typing import Any

from tidegate import providers
from tidegate.core.exchange import AttemptResult
from tidegate.core.values import CAPACITY, Cause, Kind, Outcome
from tidegate.transports.call import HttpCall

STARTS = (b"data:", b"event:", b":", b"id:", b"retry:")
"""Beginnings of a stream of server-sent events; of any other stream nothing is kept back."""

OPENING_EVENTS = frozenset(
    {
        b"message_start",
        b"content_block_start",
        b"ping",
        b"response.created",
        b"response.queued",
        b"response.in_progress",
        b"response.output_item.added",
        b"response.content_part.added",
    }
)
"""Names of events before the first piece of an answer. Source: provider-facts.md, streams of Anthropic and OpenAI."""

MAX_OPENING_BYTES = 1 << 14
"""Most bytes of an opening that are kept back. Chosen: OpenAI repeats the whole request in `response.created`."""

STREAM_ATTEMPTS = 3
"""Attempts of a call whose streams break before their content. Precedent: openai and anthropic, two retries."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_NAME = re.compile(rb"(?:^|\n)event:[ ]?([^\r\n]*)")
_ROLE = re.compile(rb'"delta"[ ]?:[ ]?\{[^{}]*"role"')
_ENDED = re.compile(rb'"finish_reason"[ ]?:[ ]?"')
_NO_CHOICE = re.compile(rb'"choices"[ ]?:[ ]?\[\]')


class StreamOpening:
    """Opening of one stream of `call`: the chunks `kept` back, until the opening `is_over` or has a `failure`."""

    __slots__ = ("_call", "failure", "is_over", "kept")

    def __init__(self, call: HttpCall | None) -> None:
        self._call = call
        self.kept: list[bytes] = []
        self.is_over = call is None or not call.policy.replayable
        self.failure: AttemptResult | None = None

    def add(self, chunk: bytes, so_far: bytearray) -> list[bytes]:
        """Return the chunks that are passed on now that `chunk` came, the last part of the bytes `so_far`."""
        self.kept.append(chunk)
        call, seen = self._call, bytes(so_far)
        assert call is not None, "an opening that is over gets no chunk"
        if not providers.has_content(seen):
            failure = providers.judge_event(call.provider, seen)
            if failure is not None and _is_repeatable(failure):
                self.failure = AttemptResult(failure, call.refused({}, {}))
                return []
            if failure is None and is_opening(seen):
                return []
        self.is_over = True
        return self.end()

    def break_off(self, error: Exception) -> bool:
        """Return whether the call is sent again after `error` in the opening; not after a timeout of its caller."""
        if self.is_over or self._call is None:
            return False
        failure = self._call.judge_error(error)
        if failure.cause is not Cause.OUTAGE or not _is_repeatable(failure):
            return False
        self.failure = AttemptResult(failure, error=error)
        return True

    def end(self) -> list[bytes]:
        """Return the chunks that are kept, which nothing holds back any longer."""
        kept, self.kept = self.kept, []
        return kept


def continues(response: Any) -> bool:
    """Return whether the response of a repeated call continues its stream: a good one that is not compressed."""
    return response.status_code < 400 and "content-encoding" not in response.headers


def _is_repeatable(failure: Outcome) -> bool:
    return failure.kind in CAPACITY or failure.kind is Kind.TRANSIENT


def is_opening(seen: bytes) -> bool:
    """Return whether the bytes of a stream so far are events without content, or the beginning of an event."""
    if len(seen) > MAX_OPENING_BYTES or not seen.startswith(STARTS):
        return False
    return all(map(_opens, _EVENT_END.split(seen)[:-1]))


def _opens(event: bytes) -> bool:
    name = _NAME.search(event)
    if name is not None:
        return name[1] in OPENING_EVENTS
    if event.startswith(b":"):
        return b"data:" not in event
    # The first event of a chat: the role, or what Azure tells of the prompt.
    if _ROLE.search(event) is not None:
        return _ENDED.search(event) is None and b"tool_calls" not in event
    return _NO_CHOICE.search(event) is not None and b'"usage":{' not in event
