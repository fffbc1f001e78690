"""Safe capacity: the part of the limits that a member uses while it cannot hear the others.

Theory of operation. Each member that is not heard is assumed to do what this one does: it admits the same call at the
same instant, and gets the same answer. These *assumed attempts* count at all limiters as those of other members do. So
quotas, pace and slots divide by the number of members, and no limiter knows of it. At even demand the assumption is
right, and the members together stay within the limits. Where the others have less to do, this member uses less than it
could. Source of the idea: the safe capacity of Doorman (https://github.com/youtube/doorman).

A log that is out of reach only *briefly* is replayed later, so no assumed attempt may be counted. There a call needs
room for all calls that the others would have admitted since then, and a pace is divided by the members.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.limiter_state import Permit
from tidegate.core.values import CAPACITY, OK, Cost, Kind, Outcome

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
        """Return the assumed attempts that end with an own one."""
        return self._attempts.pop(own, [])

    def outcome(self, own: Outcome) -> Outcome:
        """Return the outcome of assumed attempts: the own one's where it depends on the limits.

        A failure may be that of one attempt, and the readings were taken in already.
        """
        if own.kind is OK or own.kind in CAPACITY:
            return own._replace(readings=(), answer=None)
        return ABANDONED

    def told(self, serial: int, own: Outcome) -> Outcome:
        """Return the outcome of an own attempt as the others hear it: without readings if announced at the return.

        There it counts as a new attempt, so its readings would seem newer than those of later ones.
        """
        return own._replace(readings=()) if serial in self._old else own
