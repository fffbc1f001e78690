"""Room for other members of a log while this member does not hear them: late admissions, and a part of the limits.

Theory of operation of `UnseenDemand`. At a server, a member hears the others with the next exchange. What they admit
until then is not in its replica, so several members would take the same units of a quota with little left. A member
therefore leaves room for two kinds of calls, whichever are more. A member with a waiting call is assumed to admit what
this one admits. The others are assumed to admit at their recent rate. So each uses its part until it hears the others
again. A log that is locked during a step has nothing unheard.

Theory of operation of `SafeCapacity`. Each member that is not heard is assumed to do what this one does: it admits the
same call at the same instant, and gets the same answer. These *assumed attempts* count at all limiters as those of
other members do. So quotas, pace and slots divide by the number of members, and no limiter knows of it. At even demand
the assumption is right, and the members together stay within the limits. Where the others have less to do, this member
uses less than it could. Source of the idea: the safe capacity of Doorman (https://github.com/youtube/doorman).

A log that is out of reach only *briefly* is replayed later, so no assumed attempt may be counted. There a call needs
room for all calls that the others would have admitted since then, and a pace is divided by the members.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from tidegate.core.limiter_state import Permit
from tidegate.core.values import CAPACITY, INFINITY, OK, PAST_WEIGHT_SHARE, Cost, Kind, Outcome

RATE_MEMORY_SECONDS = 1.0
"""Time constant of the others' rate, and of the longest delay: twenty of the longest intervals between exchanges."""

LEAST_FREE_CALLS = 0.5
"""Calls below which nothing is left free. Derived: half a call rounds to none."""

MAX_DELAY_SECONDS = 0.25
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
        late = min(MAX_DELAY_SECONDS, max(0.0, self._before - at)) if self._before != INFINITY else 0.0
        self._late += (1.0 - PAST_WEIGHT_SHARE) * (late - self._late)
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
        by_rate = self._sum_at(now) / RATE_MEMORY_SECONDS * max(0.0, now - self._heard_at + self._late)
        expected = max(by_rate, waiting * float(len(self._own)))
        return expected if expected >= LEAST_FREE_CALLS else 0.0

    def _latest_at(self, now: float) -> float:
        """Return the longest recent delay of an admission; it fades with time."""
        return (
            self._latest * math.exp(min(0.0, self._latest_heard - now) / RATE_MEMORY_SECONDS) if self._latest else 0.0
        )

    def _sum_at(self, at: float) -> float:
        return self._sum * math.exp(min(0.0, self._until - at) / RATE_MEMORY_SECONDS) if self._sum else 0.0


ABANDONED = Outcome(Kind.ABANDONED)


class SafeCapacity:
    """Assumed attempts of `members` other members; 0 where all are heard, or nothing is assumed of them.

    `brief` others are not heard for a moment.

    `used` says that anything is assumed, or that a key is still *cautious*: after the return, the members know of
    different charges until the first answer. Until then a call needs room for a call of each of them too.
    """

    __slots__ = ("_attempts", "_cautious", "_known", "_old", "_returned_at", "_unseen", "brief", "members", "used")

    def __init__(self) -> None:
        self.members, self.used = 0, False
        self.brief = 0
        self._unseen: list[float] = []
        self._attempts: dict[Permit, list[Permit]] = {}
        self._cautious: set[str] = set()
        self._known = 0
        self._old: set[int] = set()
        self._returned_at = 0.0

    def hold_briefly(self, members: int) -> None:
        """Leave room for what `members` others admit while they are not heard; 0: they are heard."""
        self.brief = members
        if not members:
            self._unseen.clear()
        self._set_used()

    def admitted(self, now: float) -> None:
        """Note an own admission: the others may have admitted a call too, which no answer shows yet."""
        if self.brief:
            self._unseen.append(now)

    def _set_used(self) -> None:
        self.used = self.members > 0 or self.brief > 0 or bool(self._cautious)

    def begin(self, members: int, own: Iterable[Permit], others: Iterable[Permit]) -> list[Permit]:
        """Assume attempts of `members` others, which end with the `own` ones; return the real ones not assumed."""
        self.members, self.brief = members, 0
        self._unseen.clear()
        self._cautious.clear()
        self._set_used()
        left = list(others)
        for permit in own:
            self._attempts[permit] = left[:members]
            del left[:members]
        return left

    def end(self) -> list[Permit]:
        """Assume nothing any more; return the assumed attempts in flight."""
        found = [permit for assumed in self._attempts.values() for permit in assumed]
        self._attempts.clear()
        self.members = 0
        self._set_used()
        return found

    def returned(self, members: int, tags: Iterable[str], serials: Iterable[int], now: float) -> None:
        """Note that `members` others are heard again, with own attempts of these serial numbers in flight."""
        self._cautious = set(tags) if members else set()
        self._known, self._old, self._returned_at = members, set(serials), now
        self._set_used()

    def answered(self, tag: str, outcome: Outcome, sent_at: float) -> None:
        """Note an answer of any member: all of them now know the same quotas of the key."""
        if self._unseen and outcome.kind is OK:
            # What the provider had left then is less by the calls of all members.
            self._unseen = [at for at in self._unseen if at > sent_at]
        if self._cautious and outcome.kind is OK and sent_at >= self._returned_at:
            self._cautious.discard(tag)
            self._set_used()

    def total(self, cost: Cost, tag: str) -> Cost:
        """Return the room that a call of the key `tag` needs: its own cost, and that of a call of each other member."""
        if self.brief:
            return cost.times(1 + self.brief * (len(self._unseen) + 1))
        others = self.members or (self._known if tag in self._cautious else 0)
        return cost.times(others + 1) if others else cost

    def add(self, own: Permit, assumed: list[Permit]) -> None:
        self._attempts[own] = assumed
        # An answer is read where it was to be the one of an assumed attempt.
        own.informs = own.informs or any(each.informs for each in assumed)

    def take(self, own: Permit) -> list[Permit]:
        return self._attempts.pop(own, [])

    def outcome(self, own: Outcome) -> Outcome:
        """Return the outcome of assumed attempts: the own one's where it depends on the limits.

        A failure may be that of one attempt, and the readings were taken in already.
        """
        if own.kind is OK or own.kind in CAPACITY:
            return own._replace(readings=())
        return ABANDONED

    def told(self, serial: int, own: Outcome) -> Outcome:
        """Return the outcome of an own attempt as the others hear it: without readings if announced at the return.

        There it counts as a new attempt, so its readings would seem newer than those of later ones.
        """
        return own._replace(readings=()) if serial in self._old else own
