"""The wait after a refusal, until one attempt goes alone.

Theory of operation. The first wait lets some of the hidden quota come back. Where the lone attempt is refused too the
next one goes later, and later. A server that says that it is overloaded is asked more often, so that its recovery is
seen; one that limits how fast a client may become faster forgives soon.
"""

from __future__ import annotations

from tidegate.core.gauge import Run
from tidegate.core.spacing import Spacing
from tidegate.core.vocabulary import Cause

SLOWEST = 1.0 / 60.0
"""Calls a second that are tried at least (C-17: growing to 60 s)."""

FIRST_WAIT_MOST = 0.75
FIRST_WAIT_SHARE = 0.8
"""The first refusal holds everybody back for this share of the run before it, at most so many seconds: what comes back
meanwhile is kept by any bucket that the run came from."""

WAIT_GROWTH = 1.6
WAIT_CALLS = 2.0
OUTAGE_SECONDS = 0.5
OUTAGE_GROWTH = 1.1
OUTAGE_WAITS = 4
WAITS_MOST = 60
"""Waits grow while nothing is let in, from two calls' time on. Where a server says that it is overloaded they stay
within half a second at first, so that its recovery is seen; after so many of them it was an outage, and everything is
as it was before. None grows beyond the sixtieth."""

CLIMB_WAIT = 0.16
CLIMB_WAITS = 8
CLIMB_WAIT_GROWTH = 1.5
"""Under a slope limit: the first wait, how many are as long, and how they grow then."""


def first_wait(run: Run, cause: Cause, grace: float) -> float:
    """Seconds that everybody waits after the first refusal, which came after `run`; at least `grace`."""
    if cause is Cause.SLOPE:
        return CLIMB_WAIT
    most = OUTAGE_SECONDS if cause is Cause.OVERLOAD else FIRST_WAIT_MOST
    return min(most, max(grace, FIRST_WAIT_SHARE * run.seconds))


def next_wait(spacing: Spacing, cause: Cause) -> float:
    """Seconds until the next attempt goes alone, after one that was refused."""
    waits = spacing.waits + 1
    seconds = max(WAIT_GROWTH * spacing.wait, WAIT_CALLS / spacing.rate)
    if cause is Cause.OVERLOAD:
        seconds = min(seconds, OUTAGE_SECONDS * OUTAGE_GROWTH ** min(WAITS_MOST, max(0, waits - OUTAGE_WAITS)))
    elif cause is Cause.SLOPE:
        seconds = CLIMB_WAIT * CLIMB_WAIT_GROWTH ** min(WAITS_MOST, max(0, waits - CLIMB_WAITS))
    return min(seconds, 1.0 / SLOWEST)
