"""Estimate of the calls that other members have admitted and this member has not heard of yet.

Theory of operation. At a server, a member hears the others with the next exchange. What they admit meanwhile is not in
its replica, so several members would take the same units of a quota with little left. A member therefore leaves room
for two kinds of calls, whichever are more. A member with a waiting call is assumed to admit what this one admits. The
others are assumed to admit at their recent rate. So each uses its part until it hears the others again. A log that is
locked during a step has nothing unheard.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.core.values import INFINITY

SECONDS = 1.0
"""Time constant of the others' rate, and of the longest delay: twenty of the longest intervals between exchanges."""

LEAST = 0.5
"""Calls below which nothing is left free. Derived: half a call rounds to none."""

LONGEST = 0.25
"""Most seconds of an admission's delay: the time limit of an exchange, after which a server is away."""


class UnseenDemand:
    """Admissions of other members: their recent rate, and how old the news of them are."""

    __slots__ = ("_before", "_heard_at", "_late", "_latest", "_latest_heard", "_own", "_sum", "_until")

    def __init__(self) -> None:
        self._heard_at = self._before = INFINITY
        self._late = self._latest = self._latest_heard = 0.0
        self._sum = 0.0
        self._own: deque[float] = deque()
        self._until = -INFINITY

    @property
    def delayed(self) -> bool:
        """Return whether an admission of another member may be unheard."""
        return self._heard_at != INFINITY

    def heard(self, at: float) -> None:
        """Note the instant until which the log was read; infinity where nothing can be unheard."""
        if at > self._heard_at or self._heard_at == INFINITY:
            self._before = self._heard_at
        self._heard_at = at

    def admitted(self, at: float) -> None:
        """Note an admission of another member, in the order of the log."""
        if self._heard_at == INFINITY:
            return
        self._sum = self._sum_at(at) + 1.0
        self._until = max(self._until, at)
        # It was admitted before the log was read last, and not in it then: at least that late. The time in which this
        # member did not read the log does not count.
        late = min(LONGEST, max(0.0, self._before - at)) if self._before != INFINITY else 0.0
        self._late += 0.1 * (late - self._late)
        if late >= self._latest_at(self._heard_at):
            self._latest, self._latest_heard = late, self._heard_at

    def own(self, at: float) -> None:
        """Note an own admission: members whose calls wait may have admitted one, too."""
        if self._heard_at != INFINITY:
            self._own.append(at)

    def hearing(self, now: float) -> float:
        """Return the seconds in which another member hears an admission, by the latest ones; 0 where a step does."""
        if self._heard_at == INFINITY:
            return 0.0
        return self._latest_at(now) + max(0.0, now - self._heard_at)

    def calls(self, now: float, waiting: int) -> float:
        """Return the expected number of unheard admissions, with `waiting` other members; 0 below half a call."""
        if self._heard_at == INFINITY:
            return 0.0
        since = self._heard_at - self._latest_at(now)
        while self._own and self._own[0] <= since:
            self._own.popleft()
        by_rate = self._sum_at(now) / SECONDS * max(0.0, now - self._heard_at + self._late)
        expected = max(by_rate, waiting * float(len(self._own)))
        return expected if expected >= LEAST else 0.0

    def _latest_at(self, now: float) -> float:
        """Return the longest recent delay of an admission; it fades with time."""
        return self._latest * math.exp(min(0.0, self._latest_heard - now) / SECONDS) if self._latest else 0.0

    def _sum_at(self, at: float) -> float:
        return self._sum * math.exp(min(0.0, self._until - at) / SECONDS) if self._sum else 0.0
