"""Delays before another attempt, from a count and a uniform draw that is passed in."""

from __future__ import annotations


def full_jitter(failures: int, base: float, cap: float, draw: float) -> float:
    """Seconds before the attempt after `failures` failures (1 or more): uniform between 0 and min(cap, base·2^(n−1)).

    `draw` is uniform in [0, 1). Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 (full jitter).
    """
    return draw * ceiling(failures, base, cap)


def half_jitter(failures: int, base: float, cap: float, draw: float) -> float:
    """Seconds for a shared gate: the upper half of the same range, so that it never reopens at once."""
    return (0.5 + 0.5 * draw) * ceiling(failures, base, cap)


def ceiling(failures: int, base: float, cap: float) -> float:
    """The longest delay after `failures` failures, in seconds."""
    return float(min(cap, base * 2.0 ** min(max(0, failures - 1), 60)))
