"""Facts of an answer besides its outcome: whether it has begun, why the model stopped, the provider's request id."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TAIL = 1 << 14
"""Bytes at the end of an answer in which the reason is searched, as its usage is."""

_REASON = re.compile(
    rb'"(?:finish_reason|stop_reason|finishReason|stopReason)"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"([A-Za-z_]{1,64})"'
)
_INCOMPLETE = re.compile(
    rb'"incomplete_details"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\{[ \t\r\n]{0,64}"reason"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}'
    rb'"([A-Za-z_]{1,64})"'
)
_CONTENT = re.compile(
    rb'"(?:text|content|delta|bytes|completion|response|transcript|arguments|partial_json|input|thinking'
    rb'|reasoning(?:_content|_text)?)"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"[^"]'
)
"""A piece of an answer in an event: texts, calls of tools, thoughts, and the encoded events of Bedrock."""

_RESPONSE = re.compile(rb'"object"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}"response"')
"""Object of OpenAI's responses, which states a reason only where it is incomplete."""

_REQUEST_IDS = (b"x-request-id", b"request-id", b"x-amzn-requestid", b"apim-request-id")
"""Headers with the id of a request: OpenAI and most others, Anthropic, Bedrock, Azure; the first of them counts."""

_MAX_ID = 128
"""Characters of a request id that are kept. Chosen: ids have 20 to 60."""


def has_content(events: bytes) -> bool:
    """Return whether the events of a stream hold a piece of the answer, however short."""
    return _CONTENT.search(events) is not None


def finish_reason_of(body: bytes) -> str | None:
    """Return why the model stopped, in the provider's own word; None where an answer does not say it. Never raise."""
    tail = body if len(body) <= _TAIL else body[-_TAIL:]
    found = _REASON.findall(tail)
    if found:
        return str(found[-1].decode("ascii"))
    incomplete = _INCOMPLETE.search(body)
    if incomplete is not None:
        return incomplete[1].decode("ascii")
    return "completed" if _RESPONSE.search(body) is not None else None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the provider's id of a request from raw headers in any case; None without one. Never raise."""
    found = {name.lower(): value for name, value in headers if name.lower() in _REQUEST_IDS}
    for name in _REQUEST_IDS:
        if name in found:
            text = found[name].decode("latin-1")[:_MAX_ID]
            return text if text.isprintable() and text else None
    return None
