"""Bounds of a quota's window that the reset of one answer gives.

A continuously refilled bucket of `limit` gets back `limit / window` a second. After `used` units were taken, it is full
again in `used * window / limit` seconds. A response states `limit`, `remaining` and that time, each rounded up or down.
So `reset * limit / used` bounds the window. Source: provider-facts.md rules 2 and 3 (of 2,750 captured OpenAI answers
2,586 fit 60 s, 109 fit a day).

Each hypothesis in `CONVENTIONS` says how a provider rounds, and what its time counts from: the admission of the
request, or the answer (what lies in between is at most the latency).
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.values import INFINITY, QuotaReading

NATURAL_WINDOWS_SECONDS = (1.0, 10.0, 60.0, 3600.0, 86400.0, 2592000.0)
"""Windows, in seconds, that providers really use (provider-facts.md rule 2), shortest first."""

DEFAULT_WINDOW_SECONDS = 60.0
"""Seconds; most published limits are per minute (OpenAI, Anthropic, Azure rate-limit pages, read 2026-10-04)."""

MONTH_SECONDS = 31 * 86_400.0
"""The longest window any provider is known to count over (provider-facts.md rule 2), in seconds."""

EQUAL_WINDOWS_SHARE = 1e-6
"""Relative slack of a comparison of two windows that ought to be equal: `172.799999ms` of 500,000 a day says
86,399.9995 s."""

COARSE_ROUNDING_SECONDS = 0.5
"""Seconds of rounding from which on a time is the difference of two rounded instants, and may err both ways."""


def window_interval(
    limit: float, remaining: float, reset_after: float, resolution: float, quantum: float, overdrawn: bool = False
) -> tuple[float, float] | None:
    """Return the shortest and longest window (seconds) that one reading allows, or None where it says nothing.

    `reset_after` is cut to `resolution` seconds, and `remaining` to `quantum`. A quantum above 1 is a rounding to the
    nearest, which errs both ways (provider-facts.md section 5). With `overdrawn`, more than the limit may have been
    used, so the lower end is 0. The upper end may be infinite.
    """
    if limit <= 0 or reset_after < 0 or remaining < 0:
        return None
    used = limit - remaining
    if used <= 0:
        return None
    most = used + (quantum if quantum > 1 else 0.0)
    least = used - quantum
    low = 0.0 if overdrawn else reset_after * limit / most
    high = (reset_after + resolution) * limit / least if least > 0 else INFINITY
    return low, high


def snap(low: float, high: float, prefer: float | None = None) -> float | None:
    """Return the natural window inside [low, high]: `prefer` if it is inside, else the shortest, else None.

    The shortest, because `remaining` is a floor: the lower end is at least 0.6 of the truth (provider-facts.md rule 2).
    """
    low -= low * EQUAL_WINDOWS_SHARE
    high += high * EQUAL_WINDOWS_SHARE
    if prefer is not None and low <= prefer <= high:
        return prefer
    for window in NATURAL_WINDOWS_SECONDS:
        if low <= window <= high:
            return window
    return None


def usable_window(seconds: float | None, otherwise: float) -> float:
    return seconds if seconds is not None and 1e-3 <= seconds <= MONTH_SECONDS else otherwise


class Convention(NamedTuple):
    """A way to state a reset: what is stated is at most so much above and below the truth.

    `above` and `below` are shares of the rounding. `transit` is the share of the latency that the truth may be above.
    """

    above: float
    below: float
    transit: float


CONVENTIONS = (
    Convention(0.0, 1.0, 0.0),
    Convention(1.0, 0.0, 0.0),
    Convention(0.5, 0.5, 0.0),
    Convention(0.0, 1.0, 1.0),
    Convention(1.0, 0.0, 1.0),
    Convention(1.0, 1.0, 1.0),
)
"""Cut, rounded up, rounded to the nearest; from the admission and from the answer. The last one allows any rounding and
the difference of two rounded instants. Instants begin with the fourth."""

FROM_ANSWER = 3
"""Index of the first convention that counts from the answer."""


def overdraws(reading: QuotaReading, remaining: float) -> bool:
    """Return whether less than nothing may be left: output charged at its end overdraws, and headers show zero."""
    return remaining <= 0.0 and reading.unit != "requests"


def stated_window(
    convention: Convention,
    reading: QuotaReading,
    limit: float,
    remaining: float,
    reset: float,
    rounding: float,
    took: float,
) -> tuple[float, float] | None:
    """Return the shortest and longest window that a reading allows by one convention; None where it says nothing."""
    above = convention.above * rounding
    latest = min(reset, above) + convention.below * rounding + convention.transit * took
    return window_interval(
        limit, remaining, max(0.0, reset - above), latest, reading.quantum, overdraws(reading, remaining)
    )
