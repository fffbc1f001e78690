"""Admission of calls at a key whose limiters other processes share, in one of these processes.

Theory of operation. A replicated controller decides as one of an unshared key, and keeps an event of each change for
the log. Events of other members are replayed on the same limiters, without effect on the own counters. The controllers
of one log have one *membership* in common: it numbers the attempts in flight of all members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.core.admission_controller import AdmissionController, ModelController
from tidegate.core.checkpoint import SHARED, TABLE
from tidegate.core.concurrency_limit import MAX_IN_FLIGHT_BOUND
from tidegate.core.limiter_state import KeyCounts, Out, Permit
from tidegate.core.quota import doubt_charges
from tidegate.core.replica_events import EventKind, ReplicaEvent
from tidegate.core.turns import (
    LOOK_AGAIN_SECONDS,
    LOOK_LATER_SECONDS,
    LOOK_RARELY_SECONDS,
    NEXT_TURN_SECONDS,
    PACE_TURN_INTERVALS,
    LogMembership,
    SlotTurns,
)
from tidegate.core.unheard_members import ABANDONED, MAX_DELAY_SECONDS
from tidegate.core.values import CAPACITY, INFINITY, OK, Cause, Cost, Outcome, RequestFacts, Silence, Usage

ADDED = ("held", "noted", "own_ends", "replica", "slot_turns", "tag", "tally")
"""Fields of a controller that its replica adds."""


class ReplayedController(AdmissionController):
    """Limiters of a key to which the events of other members are applied, without effect on the own counters.

    `tally` counts the attempts of all members, `held` those in flight by member. `tag` names the key within its log. Of
    the own attempts, the first `noted` count as service of this member.
    """

    if TYPE_CHECKING:
        __slots__ = ADDED
    else:
        # The two classes below add them: only one base of a class may.
        __slots__ = ()

    held: dict[int, int]
    noted: int
    own_ends: deque[tuple[float, float]]
    replica: LogMembership
    slot_turns: SlotTurns
    tag: str
    tally: KeyCounts

    def begin_replica(self, replica: LogMembership, tag: str) -> None:
        """Make the controller a part of a replica, before its first use."""
        self.replica, self.tag = replica, tag
        self.tally = KeyCounts()
        self.held = {}
        self.noted = 0
        self.own_ends = deque()
        self.slot_turns = SlotTurns()
        self.concurrency.limit_to(MAX_IN_FLIGHT_BOUND)
        replica.controllers[tag] = self

    def replay_admit(self, event: ReplicaEvent, at: float) -> Permit:
        counts, used_at = self.counts, self.used_at
        self.counts = self.tally
        try:
            # Its member looked before it admitted, and a look may begin a test of the charging rules.
            self.quotas.ready_at(event.cost, at)
            permit = super().admit(event.cost, at, event.number, None, event.flag)
            self._hear_sent(permit, at)
            return permit
        finally:
            self.counts, self.used_at = counts, used_at

    def replay_end(self, permit: Permit, event: ReplicaEvent, at: float) -> None:
        permit.sent_at = at + event.sent if event.sent or event.outcome is not ABANDONED else permit.sent_at
        self._hear_end(at)
        counts, used_at = self.counts, self.used_at
        self.counts = self.tally
        try:
            if event.kind is EventKind.WITHDRAWN:
                super().withdraw(permit, at, None)
            elif event.outcome is not None:
                doubt_charges(self.quotas)
                super().settle(permit, event.outcome, at, event.number, None)
                self.replica.safe.answered(self.tag, event.outcome, permit.sent_at)
        finally:
            self.counts, self.used_at = counts, used_at

    def replay_news(self, permit: Permit, event: ReplicaEvent, at: float) -> None:
        """Apply news of a call of another member that is still in flight."""
        counts, self.counts = self.counts, self.tally
        try:
            if event.kind is EventKind.LEARNED and event.outcome is not None:
                permit.sent_at = at + event.sent
                super().learn(permit, event.outcome, at, None)
            elif event.kind is EventKind.SILENT:
                super().note_silent(permit, event.flag, at, event.number, None)
        finally:
            self.counts = counts

    def abandon(self, ended: Permit, now: float) -> None:
        """Settle an attempt of another member whose end is not known: it ended unseen before."""
        self.replay_end(ended, ReplicaEvent(EventKind.SETTLED, outcome=ABANDONED), now)
        for permit in self.permits_in_flight.values():
            if permit.order > ended.order:
                permit.in_flight -= 1
        if self.cause is not None:
            # The number in flight of answered attempts was too high as well.
            self.cause.forget()

    def readmit(self, permit: Permit, event: ReplicaEvent, at: float) -> None:
        """Admit an own attempt again under the same permit, after the state was replaced."""
        again = self.replay_admit(event, at)
        sent_at = permit.sent_at
        for field, _ in TABLE.fields["Permit"]:
            setattr(permit, field, getattr(again, field))
        permit.sent_at = sent_at
        self.permits_in_flight[permit.order] = permit

    def check(self, now: float) -> None:
        """Raise an error where a state that was loaded cannot decide."""
        super().ready_at(Cost(), now)
        super().admits(Cost(), now)

    def restore(self, quotas: Any, fields: Iterable[Any]) -> None:
        """Take the state of a checkpoint."""
        own = self.ceiling
        for field, value in zip(SHARED, fields, strict=True):
            setattr(self, field, value)
        if own is None or self.ceiling is None or self.ceiling.rule != own.rule:
            # The other process has another ceiling, or none: this one keeps its own, which counts from here on.
            self.ceiling = own
        if self.rejection is not None and self.rejection.outcome.cause is Cause.AUTH:
            # As with its event: a wrong credential may be that of one process.
            self.rejection = None
        self._restore_quotas(quotas)

    def _restore_quotas(self, quotas: Any) -> None:
        self.quotas = quotas

    def _hear_sent(self, permit: Permit, at: float) -> None:
        """Correct the numbers in flight for an attempt that was sent before own events, and is heard after them."""
        if not self.replica.unseen.delayed:
            return
        later = self._sent_after(at)
        for each in later:
            each.in_flight += 1
        permit.in_flight += sum(sent <= at < ended for sent, ended in self.own_ends) - len(later)
        if self.cause is not None and not permit.beyond:
            self.cause.order_last(permit.in_flight)
        if len(self.permits_in_flight) >= self.concurrency.limit:
            self.slot_turns.note_full()
        # Members count differently, so others may go by a higher pace: this one must not pay for all their calls later.
        self.pacer.spacing.owe_at_most(2.0 + len(self.replica.others))

    def _hear_end(self, at: float) -> None:
        """Correct the numbers in flight for an end before own attempts that is heard after them."""
        if not self.replica.unseen.delayed:
            return
        for each in self._sent_after(at):
            each.in_flight -= 1
        if self.cause is not None:
            self.cause.end_before(at)

    def _note_end(self, permit: Permit, now: float) -> None:
        """Keep an own end until no attempt is heard any more that was sent before it."""
        ends = self.own_ends
        while ends and ends[0][1] < now - MAX_DELAY_SECONDS:
            ends.popleft()
        ends.append((permit.sent_at, now))

    def _sent_after(self, at: float) -> list[Permit]:
        later = []
        for each in reversed(self.permits_in_flight.values()):
            if each.sent_at > at:
                later.append(each)
            elif each.sent_at < at - MAX_DELAY_SECONDS:
                break
        return later


class ReplicatedController(ReplayedController):
    """Admission of calls at a key whose limiters other processes share.

    The bound of this process (`bound`) is not shared: it holds the own attempts only.
    """

    __slots__ = ()

    @property
    def in_flight(self) -> int:
        replica = self.replica
        return len(self.permits_in_flight) if replica.alone else self.held.get(replica.member, 0)

    @property
    def all_counts(self) -> KeyCounts:
        return self.counts if self.replica.alone else self.tally

    @property
    def at_bound(self) -> bool:
        """Return whether the own attempts in flight reach the bound of this process."""
        highest = self.bound.highest
        return len(self.permits_in_flight) >= highest and self.in_flight >= highest

    def apply_bound(self) -> None:
        """Change nothing but what a calm key admits: the bound of this process is looked up at any other admission."""
        self.calm_slots = 0

    def look_back(self, permit: Permit, saturation: int, now: float) -> None:
        """Record an answer, as the base class, and count the calls since the last one as service."""
        super().look_back(permit, saturation, now)
        self.note_service(now)

    def note_service(self, now: float) -> None:
        """Count the own attempts since the last count as service, if no other member has joined."""
        replica = self.replica
        new, self.noted = self.counts.attempts - self.noted, self.counts.attempts
        if replica.alone and new > 0:
            replica.served_at = now
            replica.service.note_admitted(replica.member, now, new)

    def _find_calm(self, now: float) -> int:
        """Return the value of `calm_slots`, 0 beside other members: they are to hear of each call."""
        return super()._find_calm(now) if self.replica.alone else 0

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return when `cost` may go, as the base class, in turn with the heads of other members."""
        replica = self.replica
        if not (replica.stepping or replica.alone):
            replica.begin(now)
        if replica.held_until > now:
            return replica.held_until, ""
        # Written out because every call runs this.
        if replica.alone:
            if len(self.permits_in_flight) >= self.bound.highest:
                return INFINITY, "concurrency"
            return super().ready_at(cost, now)
        if self.held.get(replica.member, 0) >= self.bound.highest:
            return INFINITY, "concurrency"
        if replica.others:
            if replica.lets_look(now):
                return replica.served_at + NEXT_TURN_SECONDS, ""
            held = self._held_by_turn(now)
            if held is not None:
                return held
        if replica.safe.brief and self.pacer.active and self.pacer.rate > 0.0:
            # The others go by the same pace, and the pacer does not hear of it.
            paced = replica.served_at + (1 + replica.safe.brief) / self.pacer.rate
            if paced > now:
                return paced, "pace"
        room = replica.room(cost, self.tag, now)
        ready, gate = super().ready_at(room, now)
        if replica.others and replica.unseen.delayed:
            alone, _ = super().ready_at(cost, now)
            return replica.in_turn(ready, gate, alone, self.pause.until, now)
        return ready, gate

    def _held_by_turn(self, now: float) -> tuple[float, str] | None:
        """Return when to look again where a slot or the pace is for the head of another member; None where none is."""
        replica = self.replica
        slots, flying = self.concurrency.limit, len(self.permits_in_flight)
        # Slow start takes no turns: it opens more slots than members hear of, and ends with the first refusals.
        late = replica.unseen.delayed and self.concurrency.ceiling < INFINITY
        if flying >= slots:
            self.slot_turns.note_full()
            if late and replica.ahead(now):
                # All members would test the ceiling at the same instant.
                return now + LOOK_AGAIN_SECONDS, "concurrency"
        elif slots <= flying + len(replica.others):
            mine, held = self.in_flight, self.held
            owed = [each for each in replica.others if replica.is_owed(each, held.get(each.member, 0), mine, now)]
            if flying + len(replica.waited_for(owed, now)) >= slots:
                return now + LOOK_AGAIN_SECONDS, "concurrency"
            opens = self.slot_turns.opens_at(slots - flying, replica, now) if late else now
            if opens > now:
                return opens, "concurrency"
        if self.pacer.active and self.pacer.rate > 0.0:
            # A fixed instant, so that a member that does not run delays the others once.
            paced = self.pacer.spacing.opened_at() + len(replica.ahead(now)) * PACE_TURN_INTERVALS / self.pacer.rate
            if paced > now:
                return paced, "pace"
        return None

    def admits(self, cost: Cost, now: float, probes: bool = True, slots: bool = True) -> tuple[float, str]:
        """Return the same without inferred limits and without turns."""
        if not self.replica.stepping:
            self.replica.begin(now)
        if self.replica.held_until > now:
            return self.replica.held_until, ""
        if slots and self.at_bound:
            return INFINITY, "concurrency"
        return super().admits(self.replica.safe.total(cost, self.tag), now, probes, slots)

    def look_at(self, ready: float, gate: str, now: float) -> float:
        """Return when a head that may go at `ready` looks: no later than another member may open its gate unnoticed."""
        if not self.replica.shared or ready <= now + LOOK_AGAIN_SECONDS:
            return ready
        if ready == INFINITY or gate == "concurrency":
            # Also where a test of the limit has its instant: a slot is kept for three such looks only.
            return min(ready, now + LOOK_AGAIN_SECONDS)
        return min(ready, now + self._seconds_unseen(gate, now))

    def _seconds_unseen(self, gate: str, now: float) -> float:
        """Return for how long no answer to another member makes `gate` open much earlier than was computed."""
        if self.certain(gate):
            return INFINITY
        if self.replica.unseen.calls(now, len(self.replica.others)):
            return LOOK_LATER_SECONDS
        if not gate.startswith("quota "):
            return LOOK_LATER_SECONDS
        mirror = self.quotas.counted.get(gate.removeprefix("quota "))
        return LOOK_LATER_SECONDS if mirror is not None and mirror.declared is None else LOOK_RARELY_SECONDS

    def admit(self, cost: Cost, now: float, waited: float, out: Out, beyond: bool = False, call: int = 0) -> Permit:
        """Admit an own call, as the base class, and keep the event for the log."""
        replica = self.replica
        if replica.alone:
            permit = super().admit(cost, now, waited, out, beyond, call)
            self.note_service(now)
            return permit
        self._step(now)
        counts, self.counts = self.counts, self.tally
        try:
            permit = super().admit(cost, now, waited, out, beyond, call)
            if replica.safe.members and not (permit.beyond or permit.probe or self.rejection is not None):
                beside = super().admit
                replica.safe.add(permit, [beside(cost, now, waited, None) for _ in range(replica.safe.members)])
        finally:
            self.counts = counts
        counts.attempts += 1
        self.slot_turns.note_taken()
        replica.safe.admitted(now)
        replica.unseen.own(now)
        replica.service.note_admitted(replica.member, now)
        replica.serial += 1
        replica.serials[permit] = replica.serial
        replica.fly(self, permit, replica.member, replica.serial)
        replica.served_at = now
        if replica.talks:
            replica.tell(
                now, ReplicaEvent(EventKind.ADMITTED, self.tag, replica.serial, 0.0, waited, permit.beyond, cost)
            )
        return permit

    def withdraw(self, permit: Permit, now: float, out: Out) -> None:
        replica = self.replica
        if replica.alone:
            super().withdraw(permit, now, out)
            return
        self._step(now)
        serial = self._land(permit, now)
        replica.service.note_returned(replica.member, now)
        counts, self.counts = self.counts, self.tally
        try:
            super().withdraw(permit, now, out)
        finally:
            self.counts = counts
        counts.attempts -= 1
        for each in replica.safe.take(permit):
            self.replay_end(each, ReplicaEvent(EventKind.WITHDRAWN, sent=permit.sent_at - now), now)
        if replica.talks:
            replica.tell(now, ReplicaEvent(EventKind.WITHDRAWN, self.tag, serial, permit.sent_at - now))

    def learn(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        replica = self.replica
        if replica.alone:
            super().learn(permit, outcome, now, out)
            return
        self._step(now)
        counts, tally = self.counts, self.tally
        before = tally.answered, tally.refused, tally.failed, tally.abandoned, tally.ignored
        self.counts = tally
        try:
            super().learn(permit, outcome, now, out)
        finally:
            self._count_own(counts, before)
        if replica.talks:
            serial = replica.serials.get(permit, 0)
            sent = permit.sent_at - now
            replica.tell(
                now, ReplicaEvent(EventKind.LEARNED, self.tag, serial, sent, outcome=replica.safe.told(serial, outcome))
            )

    def settle(self, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
        replica = self.replica
        if replica.alone:
            super().settle(permit, outcome, now, draw, out)
            return
        self._step(now)
        doubt_charges(self.quotas)
        serial = self._land(permit, now)
        if outcome.kind is not OK and outcome.kind in CAPACITY:
            replica.service.note_returned(replica.member, now)
        else:
            self.slot_turns.note_left(now)
        counts, tally = self.counts, self.tally
        before = tally.answered, tally.refused, tally.failed, tally.abandoned, tally.ignored
        self.counts = tally
        try:
            super().settle(permit, outcome, now, draw, out)
        finally:
            if tally.refused > before[1]:
                counts.note_refusal(outcome)
            self._count_own(counts, before)
        replica.safe.answered(self.tag, outcome, permit.sent_at)
        for each in replica.safe.take(permit):
            same = replica.safe.outcome(outcome)
            self.replay_end(
                each, ReplicaEvent(EventKind.SETTLED, sent=permit.sent_at - now, number=draw, outcome=same), now
            )
        if replica.talks:
            sent = permit.sent_at - now
            told = replica.safe.told(serial, outcome)
            replica.tell(now, ReplicaEvent(EventKind.SETTLED, self.tag, serial, sent, draw, outcome=told))

    def note_silent(self, permit: Permit, slow: bool, now: float, draw: float, out: Out) -> Silence:
        replica = self._step(now)
        silence = super().note_silent(permit, slow, now, draw, out)
        if replica.talks:
            serial = replica.serials.get(permit, 0)
            replica.tell(now, ReplicaEvent(EventKind.SILENT, self.tag, serial, 0.0, draw, slow))
        return silence

    def learn_usage(self, facts: RequestFacts, usage: Usage, now: float) -> None:
        replica = self._step(now)
        super().learn_usage(facts, usage, now)
        replica.tell(now, ReplicaEvent(EventKind.USAGE, self.tag, facts=facts, usage=usage))

    def unowned(self) -> list[Permit]:
        """Return such permits of this member, as the base class; those of other members have no thread either."""
        found = super().unowned()
        return found if self.replica.alone else [permit for permit in found if permit in self.replica.serials]

    def forked(self) -> None:
        """Give up the attempts in flight in a child process: the parent's log ends them there."""
        self.generation += 1
        self.untaken = 0

    def _step(self, now: float) -> LogMembership:
        replica = self.replica
        if not replica.stepping:
            replica.begin(now)
        return replica

    def _land(self, permit: Permit, now: float) -> int:
        """End the flight of an own permit; return its serial number."""
        replica = self.replica
        serial = replica.serials.pop(permit, 0)
        replica.land(replica.member, serial)
        if replica.unseen.delayed:
            self._note_end(permit, now)
        return serial

    def _count_own(self, counts: KeyCounts, before: tuple[int, ...]) -> None:
        """Count what an own event changed in the tally among the own attempts too."""
        tally = self.tally
        after = tally.answered, tally.refused, tally.failed, tally.abandoned, tally.ignored
        self.counts = counts
        if after == before:
            return
        if after[0] > before[0]:
            counts.latencies.append(tally.latencies[-1])
            counts.answered += after[0] - before[0]
            if after[1:] == before[1:]:
                return
        counts.refused += after[1] - before[1]
        counts.abandoned += after[3] - before[3]
        counts.ignored += after[4] - before[4]
        # Last: shared counters save the breaker's state together with this count.
        counts.failed += after[2] - before[2]


class ReplicatedKey(ReplicatedController):
    """Admission of calls at a key without an account."""

    if not TYPE_CHECKING:
        __slots__ = ADDED


class ReplicatedModel(ReplicatedController, ModelController):
    """Admission of calls at a model whose account other processes share."""

    if not TYPE_CHECKING:
        __slots__ = ADDED

    def _restore_quotas(self, quotas: Any) -> None:
        self.quotas.own = quotas  # type: ignore[misc]


def controller_of(permit: Permit) -> ReplicatedController:
    controller = permit.state
    assert isinstance(controller, ReplicatedController), "a permit in flight belongs to a replica"
    return controller
