"""Turns of the processes that share a key: which of their first waiting calls goes next.

Theory of operation. A head is the first waiting call of a member. Each admission counts one call of its member, and
fades with time. The head of a member that was served less by some calls goes first: so one that took more of a full
quota than others lets them catch up. Of members that were served about as much, the one that was served least recently
goes first. A head that others have passed too often goes before all, so no member stands still while another catches
up. All members count in the order of the log.

A head waits until there is room for its own cost and the costs of the heads before it. So the first goes at one unit
and the second at two, and a member that died delays the others by no more than its own unit.

At a server, members hear each other late. Two heads that are ready at one instant then take the same unit or slot. So
each gives those that go before it the time to be heard, once for each instant at which its gate opens.

The controllers of one log have one *membership* in common: it numbers the attempts in flight of all members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tidegate.core.limiter_state import Permit
from tidegate.core.replica_events import ReplicaEvent, write_event
from tidegate.core.unheard_members import SafeCapacity, UnseenDemand
from tidegate.core.values import INFINITY, Cost
from tidegate.core.window_bounds import DEFAULT_WINDOW_SECONDS

LOOK_AGAIN_SECONDS = 0.010
"""Seconds after which a head looks again for an answer of another member. Measured: they cost no time (bench.lab)."""

LOOK_LATER_SECONDS = 0.050
"""Most seconds until a head looks again where an event of another member may open its gate early."""

LOOK_RARELY_SECONDS = 1.0
"""Seconds after which a head looks again at a quota of a known window. Chosen: a look takes some 50 us."""

KEPT_SLOT_SECONDS = 3.0 * LOOK_AGAIN_SECONDS
"""Seconds for which a slot is kept for the head of another member. Derived: three of its looks."""

KEPT_AGAIN_SECONDS = 0.25
"""Seconds after which a slot is kept again for a head that did not take it, doubled each time."""

PACE_TURN_INTERVALS = 0.5
"""Intervals of the pace for which a head lets each earlier head go first: at 0 all members send at one instant."""

PASSED_ROUNDS = 4
"""Rounds of all waiting members in which a head may be passed by others. Chosen: a quarter of its share."""

SLOT_LEAD_CALLS = 2.0
"""Calls by which a member with as many slots may have been served more: less hands slots over more often, and each is
unused until the other looks."""

LATE_LEAD_CALLS = 8.0
"""Calls of the same lead where members hear each other late and count differently. Measured: four members at 17 calls a
second took five minutes in 5 of 14 runs with 2, in none of 6 with 8."""

NEXT_TURN_SECONDS = 0.002
"""Seconds from an own admission to the next one where another member's head goes first: else the first to look takes
all units."""


class WaitingMember(NamedTuple):
    """The head of another member: its priority, the instant at which the member was served last, and the cost."""

    member: int
    priority: int
    served_at: float
    cost: Cost


class RecentService:
    """Recently admitted calls of each member of a log; an admission fades with time.

    `admitted` is the number of all admissions, by which the ones that passed a waiting head are counted.
    """

    __slots__ = ("_admitted", "_members")

    def __init__(self) -> None:
        self._admitted = 0
        # Of each member: the faded sum of its calls, its instant, and the number of all admissions at its last one.
        self._members: dict[int, tuple[float, float, int]] = {}

    def note_admitted(self, member: int, at: float, calls: int = 1) -> None:
        self._admitted += calls
        self._members[member] = self.calls(member, at) + calls, at, self._admitted

    def note_returned(self, member: int, at: float) -> None:
        """Count no longer a call that was refused or withdrawn: its member did not get what it took a turn for."""
        if member in self._members:
            self._members[member] = max(0.0, self.calls(member, at) - 1.0), at, self._members[member][2]

    def forget(self, member: int) -> None:
        self._members.pop(member, None)

    def calls(self, member: int, now: float) -> float:
        """Return the calls of a member, each less the older it is."""
        found = self._members.get(member)
        # A member may take more of a quota at first, so what it took fades with the usual window.
        return found[0] * math.exp(min(0.0, found[1] - now) / DEFAULT_WINDOW_SECONDS) if found is not None else 0.0

    def passed(self, member: int) -> int:
        """Return the admissions of other members since the last one of this member."""
        found = self._members.get(member)
        return self._admitted - (found[2] if found is not None else 0)

    def dump(self) -> list[Any]:
        return [self._admitted, [[member, *values] for member, values in self._members.items()]]

    @staticmethod
    def load(plain: list[Any], shift: float) -> RecentService:
        """Return the state of a plain form, its instants moved by `shift` seconds; raise an error where it is none."""
        service = RecentService()
        service._admitted = int(plain[0])
        for member, calls, at, place in plain[1]:
            values = float(calls), float(at) + shift
            if not (all(map(math.isfinite, values)) and values[0] >= 0.0):
                raise ValueError("checkpoint unreadable: its service of a member is none")
            service._members[int(member)] = *values, int(place)
        return service


class SlotTurns:
    """Slots of one key that this member may take where members hear each other late.

    A slot that an own attempt has just left is for the own head: no other member knows of it yet. Another free slot is
    seen by all members at about the same time. So each head waits until those that go before it have been heard.
    """

    __slots__ = ("_free_since", "_left", "_left_at")

    def __init__(self) -> None:
        self._free_since = INFINITY
        self._left, self._left_at = 0, -INFINITY

    def note_left(self, now: float) -> None:
        self._left = self._left + 1 if self._left_at == now else 1
        self._left_at = now

    def note_taken(self) -> None:
        self._left = max(0, self._left - 1)
        self._free_since = INFINITY

    def note_full(self) -> None:
        self._free_since = INFINITY

    def opens_at(self, free: int, turns: MemberTurns, now: float) -> float:
        """Return when the own head may take one of the slots that are `free`."""
        if self._left and self._left_at == now:
            return now
        ahead = len(turns.ahead(now))
        if free > ahead + turns.unseen.calls(now, len(turns.others)):
            return now
        self._free_since = min(self._free_since, now)
        return self._free_since + ahead * (turns.unseen.hearing(now) + LOOK_AGAIN_SECONDS)


class MemberTurns:
    """Place of the process with the number `member` among those that share a key.

    `others` are the waiting heads of other members. This one was served last at `served_at`; its head has `priority`
    and may go at `due` if no other waits. `service` counts the recent admissions of all members. `unseen` estimates the
    admissions of others since this member last heard them; `safe` has the assumed attempts of unheard members.
    """

    __slots__ = ("due", "kept", "member", "others", "priority", "safe", "served_at", "service", "unseen")

    def __init__(self, member: int) -> None:
        self.member = member
        self.others: tuple[WaitingMember, ...] = ()
        self.priority = 0
        # Heads for which a slot is kept, by member and the instant at which it was served last: since when, and the
        # seconds from then on after which it is kept again.
        self.kept: dict[tuple[int, float], tuple[float, float]] = {}
        self.served_at = -INFINITY
        self.service = RecentService()
        self.unseen = UnseenDemand()
        self.safe = SafeCapacity()
        self.due = -INFINITY

    def room(self, cost: Cost, tag: str, now: float) -> Cost:
        """Return the room that an own call needs: its cost, that of unheard admissions and of earlier heads."""
        unseen = self.unseen.calls(now, len(self.others))
        room = cost.times(1.0 + unseen) if unseen else cost
        for each in self.ahead(now) if self.others else ():
            room = room.plus(each.cost)
        return self.safe.total(room, tag) if self.safe.used else room

    def in_turn(self, ready: float, gate: str, alone: float, opened_at: float, now: float) -> tuple[float, str]:
        """Return when an own call may go that may go at `ready`, or at `alone` if no other member waited.

        If both are equal, all members would go at once: at a quota of one call, or a pause that ends at `opened_at`.
        Then each head that goes first gets the time to be heard.
        """
        ahead, hearing = len(self.ahead(now)), self.unseen.hearing(now)
        if not (ahead and hearing):
            return ready, gate
        if alone > now:
            self.due = alone if ready <= alone else -INFINITY
        else:
            # The gate may have opened earlier than was estimated. The head waits for the others once, not at each look.
            self.due = min(self.due, now)
        turn = min(max(opened_at, self.due), max(ready, now)) + ahead * (hearing + LOOK_AGAIN_SECONDS)
        return (turn, gate or "quota") if turn > ready else (ready, gate)

    def ahead(self, now: float) -> list[WaitingMember]:
        """Return the heads of other members that go before the own one."""
        most = self._most
        passed, mine = self.service.passed(self.member), self.service.calls(self.member, now)
        return [each for each in self.others if self._precedes(each, passed, mine, most, now)]

    def lets_look(self, now: float) -> bool:
        """Return whether this member has just admitted a call, and another member's head goes first."""
        just = self.served_at <= now < self.served_at + NEXT_TURN_SECONDS
        return just and not self.unseen.delayed and bool(self.ahead(now))

    def is_owed(self, each: WaitingMember, held: int, mine: int, now: float) -> bool:
        """Return whether a slot is for the head of another member, which holds `held` and this one `mine`.

        It goes to the higher priority, else to the member with fewer slots: by two where members hear each other late.
        A member that was served less by `SLOT_LEAD_CALLS` gets it first, unless the other one was passed too often.
        """
        if each.priority != self.priority:
            return each.priority > self.priority
        lead = self.service.calls(self.member, now) - self.service.calls(each.member, now)
        behind = self.service.passed(self.member if lead > 0.0 else each.member)
        catches_up = abs(lead) > max(SLOT_LEAD_CALLS, self._lead) and behind < self._most
        return lead > 0.0 if catches_up else held + self.unseen.delayed < mine

    @property
    def _most(self) -> int:
        return PASSED_ROUNDS * (len(self.others) + 1)

    @property
    def _lead(self) -> float:
        return LATE_LEAD_CALLS if self.unseen.delayed else 0.0

    def _precedes(self, each: WaitingMember, passed: int, mine: float, most: int, now: float) -> bool:
        """Return whether a head, passed by others `passed` times, goes before the own one, which was served `mine`."""
        if each.priority != self.priority:
            return each.priority > self.priority
        lead = mine - self.service.calls(each.member, now)
        behind = passed if lead > 0.0 else self.service.passed(each.member)
        if abs(lead) > self._lead and behind < most:
            return lead > 0.0
        return (each.served_at, each.member) < (self.served_at, self.member)

    def waited_for(self, heads: Iterable[WaitingMember], now: float) -> list[WaitingMember]:
        """Return the heads for which a slot is kept: none for longer than `KEPT_SLOT_SECONDS`, as its member may be
        stopped.

        A running member may miss that time too, so a slot is kept for it again later.
        """
        known, self.kept = self.kept, {}
        found = []
        for each in heads:
            since, again = known.get((each.member, each.served_at), (now, KEPT_AGAIN_SECONDS))
            if now >= since + again:
                since, again = now, 2.0 * again
            self.kept[each.member, each.served_at] = since, again
            if now < since + KEPT_SLOT_SECONDS + 2.0 * self.unseen.hearing(now):
                found.append(each)
        return found


class LogMembership(MemberTurns):
    """Membership of this process at one log, as its controllers see it.

    `controllers` has one controller for each key, by its tag. `flights` has the attempts in flight of all members. The
    own events since the last step are in `said` where `talks` is true. Before `held_until` nothing is admitted. While
    `alone` is true, no other member has ever had the state, and only steps of the key table look for one. `begin`
    begins a step at the log; `stepping` says that one is under way.
    """

    __slots__ = (
        "alone",
        "begin",
        "controllers",
        "flights",
        "held_until",
        "said",
        "serial",
        "serials",
        "shared",
        "stepping",
        "talks",
    )

    def __init__(self, member: int) -> None:
        super().__init__(member)
        self.controllers: dict[str, Any] = {}
        self.flights: dict[tuple[int, int], Permit] = {}
        self.serials: dict[Permit, int] = {}
        self.serial = 0
        self.said: list[tuple[float, bytes]] = []
        self.held_until = -INFINITY
        self.talks, self.shared, self.alone = True, False, False
        self.stepping = True
        self.begin: Callable[[float], None] = _no_step

    def tell(self, now: float, event: ReplicaEvent) -> None:
        if self.talks:
            self.said.append((now, write_event(event)))

    def fly(self, controller: Any, permit: Permit, member: int, serial: int) -> None:
        self.flights[member, serial] = permit
        controller.held[member] = controller.held.get(member, 0) + 1

    def land(self, member: int, serial: int) -> Permit | None:
        """Return the attempt of a member that ends; None for an unknown one."""
        permit = self.flights.pop((member, serial), None)
        if permit is not None:
            held = permit.state.held  # type: ignore[attr-defined]
            held[member] -= 1
            if not held[member]:
                del held[member]
        return permit


def _no_step(now: float) -> None:
    """Begin no step: no other member has the state."""
