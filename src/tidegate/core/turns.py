"""Turns of the processes that share a key: which of their first waiting calls goes next.

Theory of operation. A head is the first waiting call of a member; the one that was served least recently goes first. A
head waits until there is room for its own cost and the costs of the heads before it. So the first goes at one unit and
the second at two, and a member that died delays the others by no more than its own unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidegate.core.safe_capacity import SafeCapacity
from tidegate.core.unseen_demand import UnseenDemand
from tidegate.core.values import INFINITY, Cost

LOOK_AGAIN = 0.010
"""Seconds after which a head looks again that waits for an answer of another member. Raising it leaves a freed slot
unused for longer; lowering it costs CPU time. Measured: ten milliseconds cost no time in the laboratory's rows."""

LOOK_LATER = 0.050
"""Seconds after which a head looks again at the latest where an event of another member may open its gate earlier than
estimated. Raising it delays the notice of a recovery; lowering it costs CPU time."""

LOOK_RARELY = 1.0
"""Seconds after which a head looks again that waits for a quota whose window is known. Raising it leaves units unused
that answers to other members return; lowering it costs CPU time. Chosen: a look takes some 50 us."""

PATIENCE = 3.0 * LOOK_AGAIN
"""Seconds for which a slot is kept for the head of another member. Raising it leaves slots unused longer beside a
process that is stopped; lowering it gives slots to a process that has them already. Derived: three of its looks."""

PACE_TURN = 0.5
"""Intervals of the pace by which a head lets each head before it go first. Raising it leaves more of the pace unused
where a member is slow; at 0 all members would send at one instant."""


class WaitingMember(NamedTuple):
    """The head of another member: its priority, the instant at which the member was served last, and the cost."""

    member: int
    priority: int
    served_at: float
    cost: Cost


class MemberTurns:
    """Place of the process with the number `member` among those that share a key.

    `others` are the waiting heads of other members; this one was served last at `served_at`, and its head has
    `priority`. `unseen` estimates what the others have admitted since this member last heard them; `safe` has the
    attempts that are assumed of members that are not heard at all. The own head may go at `due` if no other waits.
    """

    __slots__ = ("due", "kept", "member", "others", "priority", "safe", "served_at", "unseen")

    def __init__(self, member: int) -> None:
        self.member = member
        self.others: tuple[WaitingMember, ...] = ()
        self.priority = 0
        # Heads for which a slot is kept, by member and the instant at which it was served last, and since when.
        self.kept: dict[tuple[int, float], float] = {}
        self.served_at = -INFINITY
        self.unseen = UnseenDemand()
        self.safe = SafeCapacity()
        self.due = -INFINITY

    def room(self, cost: Cost, tag: str, now: float) -> Cost:
        """Return the room that an own call of the key `tag` needs: its cost, and that of calls before it.

        These are admissions of other members that are not heard, and their heads that go first.
        """
        unseen = self.unseen.calls(now, len(self.others))
        room = cost.times(1.0 + unseen) if unseen else cost
        for each in self.ahead() if self.others else ():
            room = room.plus(each.cost)
        return self.safe.total(room, tag) if self.safe.used else room

    def in_turn(self, ready: float, gate: str, alone: float, opened_at: float, now: float) -> tuple[float, str]:
        """Return when an own call may go that may go at `ready`, or at `alone` if no other member waited.

        Where both are the same instant, the quota holds no more than one call, or a pause ends (at `opened_at`): all
        members would go at once. Then each head that goes first gets the time to be heard.
        """
        ahead, hearing = len(self.ahead()), self.unseen.hearing(now)
        if not (ahead and hearing):
            return ready, gate
        if alone > now:
            self.due = alone if ready <= alone else -INFINITY
        # A head that was ready waits from now on for the others at most; `due` may be of a gate that has no end.
        turn = min(max(opened_at, self.due), max(ready, now)) + ahead * (hearing + LOOK_AGAIN)
        return (turn, gate or "quota") if turn > ready else (ready, gate)

    def ahead(self) -> list[WaitingMember]:
        """Return the heads of other members that go before the own one."""
        mine = (-self.priority, self.served_at, self.member)
        return [each for each in self.others if (-each.priority, each.served_at, each.member) < mine]

    def waited_for(self, heads: Iterable[WaitingMember], now: float) -> list[WaitingMember]:
        """Return the heads for which a slot is kept: none for longer than `PATIENCE`, as its member may not run."""
        known, self.kept = self.kept, {}
        found = []
        for each in heads:
            since = self.kept[each.member, each.served_at] = known.get((each.member, each.served_at), now)
            if now < since + PATIENCE:
                found.append(each)
        return found
