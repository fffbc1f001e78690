"""The seconds for which a measured rate is held before a rise measures it anew.

Theory of operation. A rise costs refusals, and brings what came back unused while less than the rate was held; so it
may come late where the hidden bucket keeps that, and must not where nothing is kept. It comes soon where the rate is
far under the best that was known, or has just changed.
"""

from __future__ import annotations

from tidegate.core.gauge import Gauge
from tidegate.core.spacing import INFINITY

MARGIN = 0.97
"""Share of the measured rate that is held; the rest is spent by the next rise (langroid holds 0.9, and spends none)."""

PATIENCE_SECONDS = 1.0
PATIENCE_KNOWN = 2.0
PATIENCE_CALLS = 150.0
PATIENCE_SHALLOW = 110.0
PRECISE = 60
TOP = 0.85
SAME = 0.15
"""Seconds of holding while the rate is under `TOP` of the best, and where it has changed by more than `SAME`. Else so
many calls pay for each refusal since the last measurement (one in 150 is 0.007), less where fewer than `PRECISE` were
measured. A bucket that keeps nothing loses what is held too low: there fewer pay for a rise."""

CERTAIN = 80
KEPT_SHARE = 0.5
"""A first measurement of so many calls is precise enough to be held as long. Nothing is held for longer than it takes
until what is left unused is this share of the bucket: the next rise spends it, beyond that it would run over."""

SMALL = 2.5
SMALL_SECONDS = 0.5
"""A bucket of less than so many calls, or seconds of its rate, keeps next to nothing."""

ANNOUNCED_PATIENCE = 30.0
"""Seconds for which a rate is held that is near one that headers announce: it is the same quota."""


def shallow(gauge: Gauge) -> bool:
    """Return whether the bucket keeps next to nothing."""
    return gauge.burst < max(SMALL, SMALL_SECONDS * gauge.rate)


def hold_for(gauge: Gauge, before: float, count: int, price: int, most: float) -> float:
    """Seconds to hold the rate that was just measured from `count` calls, at the price of so many refusals.

    It was `before` (0: not known); `most` is the fastest announced rate. Rates are in calls a second.
    """
    rate, best = gauge.rate, gauge.best
    if rate < TOP * best:
        patience = PATIENCE_SECONDS
    elif abs(rate - before) > SAME * before and (before or count < CERTAIN):
        patience = PATIENCE_KNOWN
    else:
        if shallow(gauge):
            paid, kept = PATIENCE_SHALLOW, INFINITY
        else:
            paid, kept = price * PATIENCE_CALLS, KEPT_SHARE * gauge.burst / ((1.0 - MARGIN) * rate)
        patience = max(PATIENCE_KNOWN, min(kept, paid * min(1.0, count / PRECISE) / rate))
    return max(patience, ANNOUNCED_PATIENCE) if rate > TOP * most else patience
