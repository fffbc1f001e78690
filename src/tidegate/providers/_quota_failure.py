"""The details that Google puts into an error's body: which quotas were exceeded, and when to come back.

Source: google.rpc.QuotaFailure, RetryInfo and ErrorInfo as captures gemini-429-paid-per-minute, gemini-429-free-tpm and
gemini-429-codeassist-per-day have them (PROVIDERS.md section 4). Never raises, whatever the details are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import Reading, Unit
from tidegate.providers import _parse
from tidegate.providers._windows import window_name

_MAX_DETAILS = 32
_MAX_TEXT = 256
_COUNTED: tuple[tuple[str, Unit], ...] = (
    ("InputTokens", "input_tokens"),
    ("OutputTokens", "output_tokens"),
    ("Tokens", "tokens"),
    ("Requests", "requests"),
)
"""Words of a quotaId, the longer ones first: `GenerateContentPaidTierInputTokensPerModelPerMinute`."""

_WINDOW = re.compile(r"Per(Second|Minute|Hour|Day|Month)(?![a-z])")
_SECONDS = {"Second": 1.0, "Minute": 60.0, "Hour": 3600.0, "Day": 86400.0, "Month": 2592000.0}


class Exceeded(NamedTuple):
    """A quota that a refusal says was exceeded; what it does not say is None. `window` is in seconds."""

    unit: Unit | None
    window: float | None
    limit: float | None

    def reading(self) -> Reading | None:
        """The quota as a reading, where all of it was said; windows begin at a boundary of the provider's clock."""
        if self.unit is None or self.window is None or not self.limit:
            return None
        name = f"{self.unit.replace('_', '-')}-{window_name(self.window)}"
        return Reading(name, self.unit, "fixed", self.limit, None, None, self.window)


class Details(NamedTuple):
    """The facts of an error's details; `wait` is in seconds, `reasons` are in lower case."""

    wait: float | None = None
    exceeded: tuple[Exceeded, ...] = ()
    reasons: frozenset[str] = frozenset()


def read_details(details: object) -> Details:
    """Return what the `details` of an error say: nothing, if they are of another shape."""
    if not isinstance(details, list):
        return Details()
    parts = [part for part in details[:_MAX_DETAILS] if isinstance(part, dict)]
    waits = [wait for part in parts if (wait := _wait(part.get("retryDelay"))) is not None]
    violations = [each for part in parts if isinstance(listed := part.get("violations"), list) for each in listed]
    exceeded = tuple(_exceeded(each) for each in violations[:_MAX_DETAILS] if isinstance(each, dict))
    reasons = frozenset(text.lower() for part in parts if (text := _text(part.get("reason"))))
    return Details(max(waits, default=None), exceeded, reasons)


def _exceeded(violation: dict[str, object]) -> Exceeded:
    name = _text(violation.get("quotaId"))
    unit = next((unit for word, unit in _COUNTED if word in name), None)
    window = _WINDOW.search(name)
    limit = _parse.amount(_text(violation.get("quotaValue")).encode("ascii", "replace"))
    return Exceeded(unit, _SECONDS[window[1]] if window is not None else None, limit)


def _wait(delay: object) -> float | None:
    span = _parse.duration(_text(delay).encode("ascii", "replace"))
    return span[0] if span is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_TEXT else ""
