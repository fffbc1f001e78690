"""A quota's window, inferred from what one response said of it.

A continuously refilled bucket of `limit` gets back `limit / window` a second, so one that was used by `u` is full again
after `u * window / limit` seconds. A response says `limit`, `remaining` and that time, each rounded; turned round they
bound the window. Source: PROVIDERS.md rules 2 and 3 (of 2,750 captured OpenAI answers 2,586 fit 60 s, 109 fit a day).
"""

from __future__ import annotations

from math import inf

NATURAL_WINDOWS = (1.0, 10.0, 60.0, 3600.0, 86400.0, 2592000.0)
"""Windows, in seconds, that providers really use (PROVIDERS.md rule 2), shortest first."""

DEFAULT_WINDOW = 60.0
"""Seconds; most published limits are per minute (OpenAI, Anthropic, Azure rate-limit pages, read 2026-10-04)."""

MONTH = 31 * 86_400.0
"""The longest window any provider is known to count over (PROVIDERS.md rule 2), in seconds."""

_SLACK = 1e-6
"""Relative slack at both ends: `172.799999ms` of 500,000 a day says 86,399.9995 s."""


def window_interval(
    limit: float, remaining: float, reset_after: float, resolution: float, quantum: float
) -> tuple[float, float] | None:
    """The shortest and longest window (seconds, inclusive) that one reading allows, or None where it says nothing.

    `reset_after` is the time until full, cut to `resolution` seconds, so the true one is in [v, v + resolution).
    `remaining` is the level cut to `quantum`, so the true use is above `limit - remaining - quantum`. A quantum above 1
    is a rounding to the nearest, which may err both ways (PROVIDERS.md section 5). The upper end may be infinite.
    """
    if limit <= 0 or reset_after < 0 or remaining < 0:
        return None
    used = limit - remaining
    if used <= 0:
        return None
    most = used + (quantum if quantum > 1 else 0.0)
    least = used - quantum
    low = reset_after * limit / most
    high = (reset_after + resolution) * limit / least if least > 0 else inf
    return low, high


def snap(low: float, high: float, prefer: float | None = None) -> float | None:
    """The natural window inside [low, high]: `prefer` if it is inside, else the shortest, else None.

    The shortest, because `remaining` is a floor: the interval of a bucket with one unit used reaches to infinity, and
    its lower end is the truth or at least 0.6 of it (PROVIDERS.md rule 2).
    """
    low -= low * _SLACK
    high += high * _SLACK
    if prefer is not None and low <= prefer <= high:
        return prefer
    for window in NATURAL_WINDOWS:
        if low <= window <= high:
            return window
    return None


def usable_window(seconds: float | None, otherwise: float) -> float:
    """`seconds` where a quota can count over it (a millisecond to a month), else `otherwise`."""
    return seconds if seconds is not None and 1e-3 <= seconds <= MONTH else otherwise
