"""The values of single headers (numbers, durations, instants), and the windows of readings.

A value that cannot be read is None; nothing here raises. Header values are bytes, as they were sent. Every grammar is
ASCII with a length cap that is checked first, and each pattern has bounded repetition.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, NamedTuple

from tidegate.core.values import Outcome, QuotaReading
from tidegate.core.window_bounds import snap, window_interval
from tidegate.providers._schema import Provider

MAX_AMOUNT = 1e15
"""Number above which a quota is "unlimited". Chosen: far below 9223372036854767616, which stands for no limit (capture
hf-router-cerebras-int64)."""

MAX_SECONDS = 100 * 365.25 * 86400
"""Seconds above which a time is rejected as garbage. Chosen: 100 years."""

_MAX_VALUE = 64
"""Most bytes of a header's value. Chosen: longer than every known number, duration or date."""

_EPOCH_SECONDS = 1e9
"""Number from which an integer is an instant in seconds since 1970. Derived from the year 2001, and from durations,
which are far shorter than 31 years."""

_EPOCH_MILLISECONDS = 1e12
"""Number from which an integer is an instant in milliseconds since 1970. Derived from `_EPOCH_SECONDS`: the same
instant."""

_DECIMAL = re.compile(rb"[0-9]{1,18}(?:\.[0-9]{1,18})?")
_SPAN = re.compile(
    rb"(?:([0-9]{1,9}(?:\.[0-9]{1,12})?)d)?(?:([0-9]{1,9}(?:\.[0-9]{1,12})?)h)?(?:([0-9]{1,9}(?:\.[0-9]{1,12})?)m(?!s))?"
    rb"(?:([0-9]{1,12}(?:\.[0-9]{1,12})?)s)?(?:([0-9]{1,12}(?:\.[0-9]{1,12})?)ms)?"
    rb"(?:([0-9]{1,12}(?:\.[0-9]{1,12})?)(?:us|\xc2\xb5s))?(?:([0-9]{1,15})ns)?"
)
_SPAN_UNITS = (86400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9)
_INSTANT = re.compile(
    rb"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:(\.[0-9]{1,9}))?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_DATE = re.compile(rb"[A-Za-z]{3,9},? [0-9A-Za-z :+-]{10,40}")


class Time(NamedTuple):
    """A time as written: a `span` from now, an `instant` since 1970, or a `bare` integer of unknown unit."""

    form: Literal["span", "instant", "bare"]
    seconds: float
    resolution: float


def amount(value: bytes | None) -> float | None:
    """Return a quota's number, with or without decimals; None for signs, exponents, lists and "unlimited" giants."""
    if value is None or len(value) > _MAX_VALUE:
        return None
    if not value.isdigit():
        value = value.strip(b" \t")
        if _DECIMAL.fullmatch(value) is None:
            return None
    number = float(value)
    return number if number <= MAX_AMOUNT else None


def seconds(value: bytes | None) -> float | None:
    """Return a plain number of seconds within 100 years, else None."""
    number = amount(value)
    return number if number is not None and number <= MAX_SECONDS else None


def duration(value: bytes) -> tuple[float, float] | None:
    """Return a Go duration (`6m0s`, `172.799999ms`) as seconds and resolution in seconds, else None.

    The resolution is a millisecond or the last decimal, whichever is finer: OpenAI cuts to milliseconds and omits
    trailing zeros, Groq writes nanoseconds.
    """
    if not value or len(value) > _MAX_VALUE:
        return None
    match = _SPAN.fullmatch(value)
    if match is None:
        return None
    total = 0.0
    resolution = 1e-3
    for part, unit in zip(match.groups(), _SPAN_UNITS, strict=True):
        if part is not None:
            total += float(part) * unit
            decimals = len(part.partition(b".")[2])
            if decimals or unit < 1e-3:
                resolution = min(resolution, unit * 10.0**-decimals)
    return (total, resolution) if total <= MAX_SECONDS else None


@lru_cache(maxsize=1024)
def instant(value: bytes) -> tuple[float, float] | None:
    """Return an RFC 3339 instant as seconds since 1970 and its resolution in seconds, else None."""
    if len(value) > _MAX_VALUE:
        return None
    match = _INSTANT.fullmatch(value)
    if match is None:
        return None
    resolution = 1.0 if match[1] is None else 10.0 ** (1 - len(match[1]))
    try:
        return datetime.fromisoformat(value.decode("ascii").upper()).timestamp(), resolution
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=1024)
def http_date(value: bytes) -> float | None:
    """Return an HTTP date (RFC 9110, its two obsolete forms included) as seconds since 1970, else None."""
    if len(value) > _MAX_VALUE or _DATE.fullmatch(value) is None:
        return None
    # imported here because it also imports socket and random: 6 ms at start
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value.decode("ascii"))
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@lru_cache(maxsize=4096)
def time(value: bytes) -> Time | None:
    """Return the time of a reset, by its form: Go duration, RFC 3339, epoch s or ms by magnitude, or a number.

    A number with decimals is seconds (capture cerebras-200-docs); an integer below 1e9 is `bare`.
    """
    if len(value) > _MAX_VALUE:
        return None
    value = value.strip(b" \t")
    if value.isdigit():
        number = float(int(value))
        if number >= _EPOCH_MILLISECONDS:
            return Time("instant", number / 1000.0, 1e-3) if number <= 1e14 else None
        if number >= _EPOCH_SECONDS:
            return Time("instant", number, 1.0) if number <= 1e11 else None
        return Time("bare", number, 1.0)
    if _DECIMAL.fullmatch(value) is not None:
        number, rounding = float(value), 10.0 ** -len(value.partition(b".")[2])
        if _EPOCH_SECONDS <= number <= 1e10:
            return Time("instant", number, rounding)
        return Time("span", number, rounding) if number <= MAX_SECONDS else None
    span = (float(value[:-2]) / 1000.0, 1e-3) if value[-2:] == b"ms" and value[:-2].isdigit() else duration(value)
    if span is not None:
        return Time("span", *span)
    moment = instant(value)
    if moment is not None:
        return Time("instant", *moment)
    date = http_date(value)
    return Time("instant", date, 1.0) if date is not None else None


def retry_after(value: bytes | None, now: float) -> float | None:
    """Return the seconds that a `retry-after` asks for, at `now` (seconds since 1970);

    None if it is unusable. Seen against RFC 9110: decimals, and an instant within the next year as seconds since 1970.
    """
    if value is None or len(value) > _MAX_VALUE:
        return None
    value = value.strip(b" \t")
    if _DECIMAL.fullmatch(value) is not None:
        number = float(value)
        if number >= _EPOCH_SECONDS and -86400.0 <= number - now <= 366 * 86400.0:
            return max(0.0, number - now)
        return number if number <= MAX_SECONDS else None
    date = http_date(value)
    if date is None:
        return None
    wait = max(0.0, date - now)
    return wait if wait <= MAX_SECONDS else None


def fit(value: float, limit: float | None, remaining: float | None, period: float) -> tuple[float, float] | None:
    """Return a bare integer reset as seconds and resolution, in the likelier unit by limit and remaining, else None.

    The bucket is full after (limit - remaining) * period / limit seconds. A value in seconds is within 1 s of that, one
    in milliseconds within 40 %, since `remaining` is rounded down (provider-facts.md rules 2 and 4).
    """
    if limit is None or remaining is None or limit <= 0:
        return None
    expected = max(0.0, limit - remaining) * period / limit
    off_seconds = abs(value - expected)
    off_milliseconds = abs(value / 1000.0 - expected)
    in_milliseconds = off_milliseconds <= max(1e-3, 0.4 * expected)
    if in_milliseconds and value > 0 and off_milliseconds < off_seconds:
        return value / 1000.0, 1e-3
    if off_seconds < 1.0 or value == 0:
        return (value, 1.0) if off_seconds < 1.0 else None
    return None


_NAMES = {1.0: "s", 60.0: "minute", 3600.0: "hour", 86400.0: "day", 604800.0: "week", 2592000.0: "month"}


def window_name(seconds: float) -> str:
    """Return the window in a quota's name: `s`, `minute`, `hour`, `day`, `week`, `month` (30 days), or as `10s`."""
    return _NAMES.get(seconds) or f"{seconds:g}s"


def dimensions(outcome: Outcome, provider: Provider) -> dict[str, dict[str, float]]:
    """Return `limits`, `remaining` and `reset_after_s` by `<what>_per_<window>`; an undeclared window is inferred.

    For display, `doctor --explain` and tests. It keeps no state, so a nearly full bucket gets the provider's default
    window. A quota of unknown window without a table row keeps its bare name.
    """
    found: dict[str, dict[str, float]] = {"limits": {}, "remaining": {}, "reset_after_s": {}}
    for reading in outcome.readings:
        name = _dimension(reading, provider)
        values = (reading.limit, reading.remaining, reading.reset_after)
        for group, value in zip(found.values(), values, strict=True):
            if value is not None:
                group[name] = value
    return found


def window_of(reading: QuotaReading, provider: Provider) -> float | None:
    """Return the reading's window in seconds: as declared, else inferred, else the provider's default."""
    if reading.window is not None:
        return reading.window
    if reading.name not in provider.labels:
        return None
    default = provider.default_window
    if reading.limit is None or reading.remaining is None or reading.reset_after is None:
        return default
    interval = window_interval(
        reading.limit, reading.remaining, reading.reset_after, reading.resolution, reading.quantum
    )
    return default if interval is None else snap(*interval, prefer=default) or default


def _dimension(reading: QuotaReading, provider: Provider) -> str:
    window = window_of(reading, provider)
    if window is None:
        return reading.name.replace("-", "_")
    return f"{provider.labels.get(reading.name, reading.unit)}_per_{window_name(window)}"
