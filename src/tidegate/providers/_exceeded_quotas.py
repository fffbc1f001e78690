"""Quotas that the fields of a refusal state as exceeded: the details of a Google error, a limit with its window.

Sources: google.rpc.QuotaFailure, RetryInfo and ErrorInfo as in captures gemini-429-paid-per-minute,
gemini-429-free-tpm and gemini-429-codeassist-per-day (provider-facts.md section 4). Never raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import QuotaReading, Unit
from tidegate.providers import _values
from tidegate.providers._message import NUMBER, WINDOW, amount_of, window_of
from tidegate.providers._values import window_name

_MAX_DETAILS = 32
"""Parts of an error's `details`, and violations in them, that are read. Chosen: captures have at most three."""

_MAX_TEXT = 256
"""Characters of a text in `details` above which it is ignored. Chosen: longer than any quotaId or duration."""

_COUNTED: tuple[tuple[str, Unit], ...] = (
    ("InputTokens", "input_tokens"),
    ("OutputTokens", "output_tokens"),
    ("Tokens", "tokens"),
    ("Requests", "requests"),
)
"""Words of a quotaId and their units, longer words first: `GenerateContentPaidTierInputTokensPerModelPerMinute`."""

_QUOTA_PERIOD = re.compile(r"Per(Second|Minute|Hour|Day|Month)(?![a-z])")

_LIMIT_FIELDS = ("limit", "maxrequests", "requestlimit", "ratelimit", "quota", "max")
_WINDOW_FIELDS = (
    "window",
    "windowseconds",
    "windows",
    "period",
    "interval",
    "per",
    "limittype",
    "windowsize",
    "quotatype",
)
_COUNTED_FIELDS = ("unit", "type", "metric", "dimension", "resource", "limittype", "quotatype")
_PER_WINDOW = re.compile(rf"{NUMBER} ?(?:[a-z]{{1,10}} ?)?(?:/|per|every) ?{WINDOW}")
_A_WINDOW = re.compile(
    r"(?:per[ _-])?(?:([0-9]{1,7}) ?)?(seconds?|secs?|s|minutes?|mins?|m|hours?|hr|h|days?|d|weeks?|w|months?)"
)
_WORDED_WINDOWS = {"hourly": "h", "daily": "d", "weekly": "w", "monthly": "month", "rpm": "m", "rps": "s", "rpd": "d"}


class Exceeded(NamedTuple):
    """A quota that a refusal reports as exceeded; a missing fact is None. `window` is in seconds."""

    unit: Unit | None
    window: float | None
    limit: float | None

    def reading(self) -> QuotaReading | None:
        """Return the quota reading if all facts are known; its windows follow the provider's clock."""
        if self.unit is None or self.window is None or not self.limit:
            return None
        name = f"{self.unit.replace('_', '-')}-{window_name(self.window)}"
        return QuotaReading(name, self.unit, "fixed", self.limit, None, None, self.window)


class Details(NamedTuple):
    """The facts in an error's details; `wait` is in seconds, `reasons` are in lower case.

    ErrorInfo names a quota in its metadata (`quota_limit_value`), and a reset (`quotaResetDelay`, with the decimals).
    """

    wait: float | None = None
    exceeded: tuple[Exceeded, ...] = ()
    reasons: frozenset[str] = frozenset()


def stated_limit(fields: dict[str, object]) -> Exceeded | None:
    """Return the limit and its window in the fields of an error, by names without case and punctuation; else None.

    Seen: `{"limit": 20, "window": "60s"}`, `{"limit": "1000r/s"}`, `{"limit": 100, "limit_type": "per_minute"}`.
    """
    limit = next((fields[name] for name in _LIMIT_FIELDS if isinstance(fields.get(name), int | str)), None)
    if isinstance(limit, bool) or limit is None:
        return None
    written = str(limit)[:_MAX_TEXT].lower()
    counted = " ".join(str(fields[name])[:_MAX_TEXT] for name in _COUNTED_FIELDS if name in fields).lower()
    unit: Unit = "tokens" if "token" in f"{counted} {written}" or "tpm" in counted else "requests"
    rate = _PER_WINDOW.fullmatch(written)
    if rate is not None:
        return Exceeded(unit, window_of(rate["count"], rate["window"]), amount_of(rate))
    amount = _values.amount(written.encode("ascii", "replace"))
    seconds = _stated_window(next((fields[name] for name in _WINDOW_FIELDS if name in fields), None))
    return Exceeded(unit, seconds, amount) if amount and seconds is not None else None


def _stated_window(window: object) -> float | None:
    if isinstance(window, int) and not isinstance(window, bool):
        return float(window) if 0 < window <= _values.MAX_SECONDS else None
    if not isinstance(window, str) or len(window) > _MAX_TEXT:
        return None
    written = window.strip().lower().replace("_", " ")
    match = _A_WINDOW.fullmatch(_WORDED_WINDOWS.get(written, written))
    return window_of(match[1], match[2]) if match is not None else None


def read_details(details: object) -> Details:
    if not isinstance(details, list):
        return Details()
    parts = [part for part in details[:_MAX_DETAILS] if isinstance(part, dict)]
    metadata = [each for part in parts if isinstance(each := part.get("metadata"), dict)]
    delays = [part.get("retryDelay") for part in parts] or [each.get("quotaResetDelay") for each in metadata]
    waits = [wait for delay in delays if (wait := _retry_delay(delay)) is not None]
    violations = [each for part in parts if isinstance(listed := part.get("violations"), list) for each in listed]
    named = [
        (each.get("quotaId"), each.get("quotaValue")) for each in violations[:_MAX_DETAILS] if isinstance(each, dict)
    ]
    named += [(each.get("quota_limit"), each["quota_limit_value"]) for each in metadata if "quota_limit_value" in each]
    reasons = frozenset(text.lower() for part in parts if (text := _text(part.get("reason"))))
    return Details(max(waits, default=None), tuple(_exceeded(*pair) for pair in named), reasons)


def _exceeded(quota: object, value: object) -> Exceeded:
    name = _text(quota)
    unit = next((unit for word, unit in _COUNTED if word in name), None)
    window = _QUOTA_PERIOD.search(name)
    limit = _values.amount(_text(value).encode("ascii", "replace"))
    return Exceeded(unit, window_of(None, window[1].lower()) if window is not None else None, limit)


def _retry_delay(delay: object) -> float | None:
    span = _values.duration(_text(delay).encode("ascii", "replace"))
    return span[0] if span is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_TEXT else ""
