"""The limits and waits that the message of a refusal names. Read last, and only from refusals.

Messages are in English and lower-cased before they come here, with runs of white space made one space, and cut to
4,096 characters. Every pattern is word-bounded and has bounded repetition.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import Unit
from tidegate.providers import _parse

_NUMBER = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,15})"
_SPAN = (
    r"(?:((?:[0-9]{1,9}(?:\.[0-9]{1,12})?(?:ms|d|h|m|s)){1,5})(?![0-9a-z])"
    r"|([0-9]{1,9}(?:\.[0-9]{1,12})?) ?(milliseconds?|seconds?|secs?|s|minutes?|mins?|hours?|days?)(?![a-z]))"
)
_WAIT = re.compile(r"\b(?:try again|retry|retrying|wait|resets?)(?: in| after| for)? ~?" + _SPAN)

_END = r"(?![0-9]|[.,][0-9])"
_LIMIT = re.compile(r"\blimit:? ~?" + _NUMBER + _END)
_REQUESTED = re.compile(r"\brequested:? ~?" + _NUMBER + _END)
_WHAT = r"(input tokens|output tokens|tokens|requests|images|api calls)"
_WINDOW = r"(second|sec|minute|min|hour|day|month)"
_WHAT_PER = re.compile(rf"\b{_WHAT} per {_WINDOW}\b")
_AMOUNT_PER = re.compile(rf"(?<![0-9,.]){_NUMBER} {_WHAT} ?(?:per|/) ?{_WINDOW}\b")
_NUMBER_PER = re.compile(rf"\blimit of {_NUMBER} per ([0-9]{{1,9}})s exceeded for ([a-z]{{1,40}})")
_ACTUAL_LIMIT = re.compile(rf"\b{_WHAT} per {_WINDOW} \(actual/limit\): {_NUMBER}/{_NUMBER}")

_UNITS: dict[str, Unit] = {
    "tokens": "tokens",
    "input tokens": "input_tokens",
    "output tokens": "output_tokens",
    "requests": "requests",
    "api calls": "requests",
    "images": "input_images",
}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "mo": 2592000.0}


class Prose(NamedTuple):
    """The facts of a message. `wait` and `window` are in seconds; a window of 0 means "at the same time"."""

    wait: float | None = None
    limit: float | None = None
    requested: float | None = None
    unit: Unit | None = None
    window: float | None = None

    @property
    def exceeds(self) -> bool:
        """Return whether the request alone is above the limit, so that waiting cannot help."""
        return self.limit is not None and self.requested is not None and self.requested > self.limit > 0


def read_prose(text: str, codes: frozenset[str] = frozenset()) -> Prose:
    """The wait, limit, size of the request, unit and window that a refusal's message names.

    `codes` gives the unit where the message names none (OpenAI's `type` is `tokens` or `requests`).
    """
    wait = _wait(text)
    match = _NUMBER_PER.search(text)
    if match is not None:
        concurrent = "concurrent" in match[3]
        counted = "concurrent_requests" if concurrent else "tokens" if "token" in match[3] else "requests"
        return Prose(wait, _count(match[1]), None, counted, float(match[2]))
    match = _ACTUAL_LIMIT.search(text)
    if match is not None:
        return Prose(wait, _count(match[4]), None, _UNITS[match[1]], _window(match[2]))
    limit = _LIMIT.search(text)
    if limit is not None:
        requested = _REQUESTED.search(text)
        unit, window = _what(text, codes)
        return Prose(wait, _count(limit[1]), _count(requested[1]) if requested else None, unit, window)
    match = _AMOUNT_PER.search(text) if "limit" in text else None
    if match is not None:
        return Prose(wait, _count(match[1]), None, _UNITS[match[2]], _window(match[3]))
    return Prose(wait)


def _wait(text: str) -> float | None:
    match = _WAIT.search(text)
    if match is None:
        return None
    if match[1] is not None:
        span = _parse.duration(match[1].encode("ascii"))
        return span[0] if span is not None else None
    unit = 1e-3 if match[3].startswith("milli") else _SECONDS[match[3][0]]
    wait = float(match[2]) * unit
    return wait if wait <= _parse.MAX_SECONDS else None


def _what(text: str, codes: frozenset[str]) -> tuple[Unit | None, float | None]:
    match = _WHAT_PER.search(text)
    if match is not None:
        return _UNITS[match[1]], _window(match[2])
    for unit in ("tokens", "requests"):
        if unit in codes:
            return unit, None
    return None, None


def _window(word: str) -> float:
    return _SECONDS["mo" if word == "month" else word[0]]


def _count(written: str) -> float:
    return float(written.replace(",", ""))
