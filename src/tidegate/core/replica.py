"""Replica of the limiters of a key, or of an account with its keys, in each of the processes that share them.

Theory of operation. The limiters change only by events: an attempt is admitted, withdrawn, answered, settled. Each
process is a *member*. It applies its own events, and *replays* those of the others in the order of one log. So all
members hold the same quotas, pace, slots, cooldown and breaker. A permit of another member is known by the number of
the member and a serial number within it.

Counters belong to one process. The limiters decide by the `tally`, which counts the attempts of all members; what users
see counts the own ones. Replayed events emit no event objects.

Until another member has joined, a process is *alone*: its controllers act as those of a key that is not shared, and
attempts get no numbers. Before the first step with another member, `begin_sharing` numbers the attempts in flight and
copies the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.core import replica_state
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.concurrency_limit import MAX_BOUND
from tidegate.core.limiter_state import KeyCounts, Out, Permit
from tidegate.core.replica_events import EventKind, ReplicaEvent, UnreadableRecord, read_event, write_event
from tidegate.core.replica_state import ACCOUNT, CONTROLLER, SHARED, TABLE
from tidegate.core.safe_capacity import ABANDONED
from tidegate.core.state_codec import StateDecoder, StateEncoder
from tidegate.core.turns import LOOK_AGAIN, LOOK_LATER, LOOK_RARELY, PACE_TURN, MemberTurns
from tidegate.core.two_levels import AccountController, ModelController
from tidegate.core.values import INFINITY, Cost, Outcome, RequestFacts, Silence, Usage

MAX_KEYS = 4_096
"""Keys of one log at most. Raising it lets a hostile log take more memory."""

ADDED = ("held", "replaying", "replica", "tag", "tally")
"""Fields of a controller that its replica adds."""

_State: TypeAlias = "tuple[dict[str, tuple[Any, list[Any]]], list[Any] | None, dict[tuple[int, int], Permit]]"


class Replica(MemberTurns):
    """The shared state of one log in this process.

    `controllers` has one controller for each key, by its tag. `flights` has the attempts in flight of all members. The
    own events since the last step are in `said` where `talks` is true. Before `held_until` nothing is admitted. While
    `alone` is true, no other member has ever had the state, and only steps of the key table look for one. `begin`
    begins a step at the log; `stepping` says that one is under way. `make` returns a controller for a tag that this
    process has not used.
    """

    __slots__ = (
        "account",
        "alone",
        "begin",
        "controllers",
        "flights",
        "held_until",
        "make",
        "said",
        "serial",
        "serials",
        "shared",
        "stepping",
        "talks",
    )

    def __init__(self, member: int, make: Callable[[str, float], ReplicatedController]) -> None:
        super().__init__(member)
        self.make = make
        self.account: AccountController | None = None
        self.controllers: dict[str, ReplicatedController] = {}
        self.flights: dict[tuple[int, int], Permit] = {}
        self.serials: dict[Permit, int] = {}
        self.serial = 0
        self.said: list[tuple[float, bytes]] = []
        self.held_until = -INFINITY
        self.talks, self.shared, self.alone = True, False, False
        self.stepping = True
        self.begin: Callable[[float], None] = _no_step

    def begin_sharing(self) -> None:
        """End the time alone: number the attempts in flight, and count from now on what all members do."""
        if not self.alone:
            return
        self.alone = False
        for controller in self.controllers.values():
            controller.tally = controller.counts.copy()
            for permit in controller.permits_in_flight.values():
                self.serial += 1
                self.serials[permit] = self.serial
                self.fly(controller, permit, self.member, self.serial)

    def tell(self, now: float, event: ReplicaEvent) -> None:
        """Keep an own event for the log, if another member may read it."""
        if self.talks:
            self.said.append((now, write_event(event)))

    def fly(self, controller: ReplicatedController, permit: Permit, member: int, serial: int) -> None:
        """Note an attempt in flight of any member."""
        self.flights[member, serial] = permit
        controller.held[member] = controller.held.get(member, 0) + 1

    def land(self, member: int, serial: int) -> Permit | None:
        """Return the attempt of a member that ends; None for an unknown one."""
        permit = self.flights.pop((member, serial), None)
        if permit is not None:
            held = _controller_of(permit).held
            held[member] -= 1
            if not held[member]:
                del held[member]
        return permit

    def replay(self, member: int, at: float, payload: bytes) -> None:
        """Apply an event of another member. Raise `UnreadableRecord` for a payload that is none.

        An event of a permit that is not known here changes nothing: this member joined without the state. An empty
        payload is the end of the member.
        """
        if payload:
            self.apply(member, at, read_event(payload))
        else:
            self._note_gone(member, at)

    def apply(self, member: int, at: float, event: ReplicaEvent) -> None:
        """Apply an event to the state, but not to the own counters."""
        kind = event.kind
        if kind is EventKind.ADMITTED:
            controller = self._controller(event.tag, at)
            if (member, event.serial) not in self.flights:
                # A member that was out of reach tells its attempts again, and a checkpoint may have them too.
                self.fly(controller, controller.replay_admit(event, at), member, event.serial)
                self.unseen.admitted(at)
        elif kind is EventKind.USAGE:
            if event.facts is not None and event.usage is not None:
                self._controller(event.tag, at).estimate.learn(event.facts, event.usage)
        elif kind is EventKind.GONE:
            self._note_gone(int(event.number), at)
        elif kind is EventKind.SETTLED or kind is EventKind.WITHDRAWN:
            ended = self.land(member, event.serial)
            if ended is not None:
                _controller_of(ended).replay_end(ended, event, at)
        else:
            flying = self.flights.get((member, event.serial))
            if flying is not None:
                _controller_of(flying).replay_news(flying, event, at)

    def _note_gone(self, member: int, now: float) -> None:
        if member != self.member:
            self.abandon(member, now)
            return
        # The others took this member for dead and abandoned its attempts: announce them again.
        for permit, serial in self.serials.items():
            tag = _controller_of(permit).tag
            self.tell(now, ReplicaEvent(EventKind.ADMITTED, tag, serial, cost=permit.cost, beyond=permit.beyond))

    def abandon(self, member: int, now: float) -> bool:
        """Abandon the attempts in flight of a member that is gone; return whether there were any."""
        theirs = [serial for who, serial in self.flights if who == member]
        for serial in theirs:
            permit = self.land(member, serial)
            if permit is not None:
                _controller_of(permit).abandon(permit, now)
        self.others = tuple(each for each in self.others if each.member != member)
        return bool(theirs)

    def lose(self, members: int, now: float) -> None:
        """Decide without the others: assume that `members` of them do what this one does (0: assume nothing)."""
        ended = self.safe.end()
        theirs = [flight for flight in self.flights if flight[0] != self.member]
        others = [permit for flight in theirs if (permit := self.land(*flight)) is not None]
        for permit in [*ended, *self.safe.begin(members, self.serials, others)]:
            _controller_of(permit).abandon(permit, now)
        self.others = ()

    def regain(self, now: float) -> None:
        """Hear the others again: announce the own attempts in flight in place of those that they know of."""
        members = self.safe.members
        self.lose(0, now)
        self.safe.returned(members, self.controllers, self.serials.values(), now)
        self.tell(now, ReplicaEvent(EventKind.GONE, number=self.member))
        self._note_gone(self.member, now)

    def forked(self, member: int) -> None:
        """Become a new member. In a child process (a negative number) the attempts in flight are the parent's.

        They stay the own ones of a member that the others took for dead, and of a child that has joined now.
        """
        own = dict(self.serials) if self.member < 0 or member >= 0 else {}
        for serial in own.values():
            self.land(self.member, serial)
        if not own:
            self.serials.clear()
            self.said.clear()
        self.member = member
        for permit, serial in own.items():
            self.fly(_controller_of(permit), permit, member, serial)
        self.others = ()
        self.served_at = -INFINITY

    def dump(self, at: float) -> bytes | None:
        """Return the whole state as the payload of a checkpoint; None where it is too long."""
        named = {id(each): tag for tag, each in self.controllers.items()}
        names = {id(permit): f"{member} {serial}" for (member, serial), permit in self.flights.items()}
        encode = StateEncoder(TABLE, named, lambda each: names.get(id(each), "")).encode
        plain: dict[str, Any] = {"at": at}
        plain["models"] = {
            tag: [encode(each.quotas.own), *(encode(getattr(each, field)) for field in SHARED)]
            for tag, each in self.controllers.items()
        }
        account = self.account
        plain["account"] = None if account is None else [encode(getattr(account, field)) for field in ACCOUNT]
        plain["flights"] = [[*flight, encode(permit)] for flight, permit in self.flights.items()]
        return replica_state.write_checkpoint(plain)

    def load(self, payload: bytes, at: float, now: float) -> None:
        """Replace all state by that of a checkpoint, whose instant is `at` on this process's clock.

        Own attempts stay in flight, and those that the checkpoint does not have are kept for the log again. Raise an
        error without any effect for a payload that cannot be read.
        """
        plain = replica_state.read_checkpoint(payload)
        shift = at - float(plain["at"])
        models = plain["models"]
        for tag in models:
            self._controller(str(tag), now)
        own = {f"{self.member} {serial}": permit for permit, serial in self.serials.items()}
        decoder = StateDecoder(TABLE, dict(self.controllers), own.get, shift)
        decode = decoder.decode
        loaded = {
            tag: (
                decode(state[0]),
                [decode(each, CONTROLLER.get(field)) for field, each in zip(SHARED, state[1:], strict=True)],
            )
            for tag, state in models.items()
        }
        account = plain["account"]
        if (account is None) is not (self.account is None):
            raise ValueError("checkpoint unreadable: it is of another kind of key")
        shared = None if account is None else list(map(decode, account))
        flights = {(int(member), int(serial)): decode(permit) for member, serial, permit in plain["flights"]}
        replica_state.require(loaded, shared, flights)
        before = self._state()
        try:
            decoder.apply()
            self._restore({tag: (quotas, fields) for tag, (quotas, fields) in loaded.items()}, shared, flights)
            for controller in self.controllers.values():
                controller.check(now)
            self._resume_own(now)
        except Exception:
            permits, state = before
            for permit, fields in permits:
                for field, value in fields.items():
                    setattr(permit, field, value)
            self._restore(*state)
            raise

    def _state(self) -> tuple[list[tuple[Permit, dict[str, Any]]], _State]:
        """Return the present state, so that it can be restored: the objects, and the values of own permits."""
        names = [field for field, _ in TABLE.fields["Permit"]]
        permits = [(permit, {field: getattr(permit, field) for field in names}) for permit in self.serials]
        models = {
            tag: (each.quotas.own, [getattr(each, field) for field in SHARED]) for tag, each in self.controllers.items()
        }
        account = None if self.account is None else [getattr(self.account, field) for field in ACCOUNT]
        return permits, (models, account, self.flights)

    def _restore(
        self,
        models: dict[str, tuple[Any, list[Any]]],
        shared: list[Any] | None,
        flights: dict[tuple[int, int], Permit],
    ) -> None:
        for tag, (quotas, fields) in models.items():
            self.controllers[tag].restore(quotas, fields)
        account = self.account
        if account is not None and shared is not None:
            suspended = account.pause.suspended_until
            for field, value in zip(ACCOUNT, shared, strict=True):
                setattr(account, field, value)
            account.pause.suspended_until = suspended
        self.flights = flights
        for controller in self.controllers.values():
            controller.held = {}
        for (member, _), permit in flights.items():
            held = _controller_of(permit).held
            held[member] = held.get(member, 0) + 1

    def _resume_own(self, now: float) -> None:
        """Apply the own events that are not in the log yet, after the state was replaced."""
        unsaid = [(at, read_event(payload)) for at, payload in self.said]
        anew = {event.serial: at for at, event in unsaid if event.kind is EventKind.ADMITTED}
        for permit, serial in list(self.serials.items()):
            if (self.member, serial) not in self.flights:
                # A permit that is in no checkpoint keeps its identity: its holder settles it.
                controller = _controller_of(permit)
                event = ReplicaEvent(EventKind.ADMITTED, controller.tag, serial, cost=permit.cost, beyond=permit.beyond)
                controller.readmit(permit, event, anew.get(serial, now))
                self.fly(controller, permit, self.member, serial)
                if serial not in anew:
                    self.tell(now, event)
        for at, event in unsaid:
            if event.kind is not EventKind.ADMITTED:
                self.apply(self.member, at, event)
        flying = set(self.serials.values())
        for member, serial in list(self.flights):
            if member == self.member and serial not in flying:
                self.apply(member, now, ReplicaEvent(EventKind.SETTLED, serial=serial, outcome=ABANDONED))

    def _controller(self, tag: str, now: float) -> ReplicatedController:
        controller = self.controllers.get(tag)
        if controller is None:
            if len(self.controllers) >= MAX_KEYS:
                raise UnreadableRecord("record unreadable: it names too many keys")
            controller = self.make(tag, now)
            controller.begin_replica(self, tag)
        return controller


class ReplicatedController(AdmissionController):
    """Admission of calls at a key whose limiters other processes share.

    `tally` counts the attempts of all members, `held` those in flight by member. `tag` names the key within its log.
    The bound of this process (`bound`) is not shared: it holds the own attempts only.
    """

    if TYPE_CHECKING:
        __slots__ = ADDED
    else:
        # The two classes below add them: only one base of a class may.
        __slots__ = ()

    held: dict[int, int]
    replaying: bool | None
    replica: Replica
    tag: str
    tally: KeyCounts

    def begin_replica(self, replica: Replica, tag: str) -> None:
        """Make the controller a part of a replica, before its first use."""
        self.replica, self.tag = replica, tag
        self.tally = KeyCounts()
        self.held = {}
        self.replaying = None
        self.concurrency.limit_to(MAX_BOUND)
        replica.controllers[tag] = self

    @property
    def in_flight(self) -> int:
        """Return the number of own attempts in flight."""
        replica = self.replica
        return len(self.permits_in_flight) if replica.alone else self.held.get(replica.member, 0)

    @property
    def at_bound(self) -> bool:
        """Return whether the own attempts in flight reach the bound of this process."""
        highest = self.bound.highest
        return len(self.permits_in_flight) >= highest and self.in_flight >= highest

    def apply_bound(self) -> None:
        """Do nothing: the bound of this process is looked up at each admission."""

    def ready_at(self, cost: Cost, now: float, blocked: int = 0) -> tuple[float, str]:
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
            return super().ready_at(cost, now, blocked)
        if self.held.get(replica.member, 0) >= self.bound.highest:
            return INFINITY, "concurrency"
        if replica.others:
            held = self._held_by_turn(now)
            if held is not None:
                return held
        room = replica.room(cost, self.tag, now)
        ready, gate = super().ready_at(room, now, blocked)
        if replica.others and replica.unseen.delayed:
            alone, _ = super().ready_at(cost, now, blocked)
            return replica.in_turn(ready, gate, alone, self.pause.until, now)
        return ready, gate

    def _held_by_turn(self, now: float) -> tuple[float, str] | None:
        """Return when to look again where a slot or the pace is for the head of another member; None where none is."""
        replica = self.replica
        slots, flying = self.concurrency.limit, len(self.permits_in_flight)
        # A slot goes to the member that holds fewer. Once they are even, each uses its own again.
        if flying < slots <= flying + len(replica.others):
            mine = self.in_flight
            poorer = [each for each in replica.others if self.held.get(each.member, 0) < mine]
            if flying + len(replica.waited_for(poorer, now)) >= slots:
                return now + LOOK_AGAIN, "concurrency"
        if self.pacer.active and self.pacer.rate > 0.0:
            # A fixed instant, so that a member that does not run delays the others once.
            paced = self.pacer.spacing.opened_at() + len(replica.ahead()) * PACE_TURN / self.pacer.rate
            if paced > now:
                return paced, "pace"
        return None

    def admits(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return the same without inferred limits and without turns."""
        if not self.replica.stepping:
            self.replica.begin(now)
        if self.replica.held_until > now:
            return self.replica.held_until, ""
        if self.at_bound:
            return INFINITY, "concurrency"
        return super().admits(self.replica.safe.total(cost, self.tag), now)

    def look_at(self, ready: float, gate: str, now: float) -> float:
        """Return when a head that may go at `ready` looks: no later than another member may open its gate unnoticed."""
        if not self.replica.shared or ready <= now + LOOK_AGAIN:
            return ready
        if ready == INFINITY:
            return now + LOOK_AGAIN
        return min(ready, now + self._seconds_unseen(gate, now))

    def _seconds_unseen(self, gate: str, now: float) -> float:
        """Return for how long no answer to another member makes `gate` open much earlier than was computed."""
        if self.certain(gate):
            return INFINITY
        if self.replica.unseen.calls(now, len(self.replica.others)):
            return LOOK_LATER
        if not gate.startswith("quota "):
            return LOOK_LATER
        mirror = self.quotas.counted.get(gate.removeprefix("quota "))
        return LOOK_LATER if mirror is not None and mirror.declared is None else LOOK_RARELY

    def overcommits(self, blocked: int, now: float) -> bool:
        """Return whether a call overcommits, as the base class; a replayed one did where it was admitted."""
        return super().overcommits(blocked, now) if self.replaying is None else self.replaying

    def admit(
        self, cost: Cost, now: float, waited: float, out: Out, blocked: int = 0, beyond: bool = False, call: int = 0
    ) -> Permit:
        """Admit an own call, as the base class, and keep the event for the log."""
        replica = self.replica
        if replica.alone:
            replica.served_at = now
            return super().admit(cost, now, waited, out, blocked, beyond, call)
        self._step(now)
        counts, self.counts = self.counts, self.tally
        try:
            permit = super().admit(cost, now, waited, out, blocked, beyond, call)
            if replica.safe.members and not (permit.beyond or permit.probe or self.rejection is not None):
                beside = super().admit
                replica.safe.add(permit, [beside(cost, now, waited, None) for _ in range(replica.safe.members)])
        finally:
            self.counts = counts
        counts.attempts += 1
        replica.safe.admitted(now)
        replica.unseen.own(now)
        replica.serial += 1
        replica.serials[permit] = replica.serial
        replica.fly(self, permit, replica.member, replica.serial)
        replica.served_at = now
        if replica.talks:
            asked = permit.beyond and not permit.overcommitted
            replica.tell(
                now,
                ReplicaEvent(
                    EventKind.ADMITTED, self.tag, replica.serial, 0.0, waited, permit.overcommitted, asked, cost
                ),
            )
        return permit

    def withdraw(self, permit: Permit, now: float, out: Out) -> None:
        """Take back an own permit, as the base class, and keep the event for the log."""
        replica = self.replica
        if replica.alone:
            super().withdraw(permit, now, out)
            return
        self._step(now)
        serial = self._land(permit)
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
        """Learn from headers, as the base class, and keep the event for the log."""
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
        """Settle an own permit, as the base class, and keep the event for the log."""
        replica = self.replica
        if replica.alone:
            super().settle(permit, outcome, now, draw, out)
            return
        self._step(now)
        serial = self._land(permit)
        counts, tally = self.counts, self.tally
        before = tally.answered, tally.refused, tally.failed, tally.abandoned, tally.ignored
        self.counts = tally
        try:
            super().settle(permit, outcome, now, draw, out)
        finally:
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
        """Record a silent attempt, as the base class, and keep the event for the log."""
        replica = self._step(now)
        silence = super().note_silent(permit, slow, now, draw, out)
        if replica.talks:
            serial = replica.serials.get(permit, 0)
            replica.tell(now, ReplicaEvent(EventKind.SILENT, self.tag, serial, 0.0, draw, slow))
        return silence

    def release_probe(self, thread: int, now: float) -> None:
        """Let another attempt be the probe, as the base class, and keep the event for the log."""
        probes = [each for each in self.permits_in_flight.values() if each.probe and each in self.replica.serials]
        super().release_probe(thread, now)
        for permit in probes:
            if not permit.probe:
                serial = self.replica.serials[permit]
                self.replica.tell(now, ReplicaEvent(EventKind.PROBE_RELEASED, self.tag, serial))

    def learn_usage(self, facts: RequestFacts, usage: Usage, now: float) -> None:
        """Update the cost estimate, as the base class, and keep the event for the log."""
        replica = self._step(now)
        super().learn_usage(facts, usage, now)
        replica.tell(now, ReplicaEvent(EventKind.USAGE, self.tag, facts=facts, usage=usage))

    def forked(self) -> None:
        """Give up the attempts in flight in a child process: the parent's log ends them there."""
        self.generation += 1
        self.untaken = 0
        self.stalled_loops.clear()

    def replay_admit(self, event: ReplicaEvent, at: float) -> Permit:
        """Admit a call of another member."""
        counts, used_at = self.counts, self.used_at
        self.counts, self.replaying = self.tally, event.flag
        try:
            # Its member looked before it admitted, and a look may begin a test of the charging rules.
            self.quotas.ready_at(event.cost, at)
            blocked = -1 if event.flag else 0
            return super().admit(event.cost, at, event.number, None, blocked, event.beyond)
        finally:
            self.counts, self.replaying, self.used_at = counts, None, used_at

    def replay_end(self, permit: Permit, event: ReplicaEvent, at: float) -> None:
        """Settle or withdraw a call of another member."""
        permit.sent_at = at + event.sent if event.sent or event.outcome is not ABANDONED else permit.sent_at
        counts, used_at = self.counts, self.used_at
        self.counts = self.tally
        try:
            if event.kind is EventKind.WITHDRAWN:
                super().withdraw(permit, at, None)
            elif event.outcome is not None:
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
            elif event.kind is EventKind.PROBE_RELEASED and permit.probe:
                permit.probe = False
                self.breaker.abandoned(True, at)
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
        suspended = self.pause.suspended_until
        for field, value in zip(SHARED, fields, strict=True):
            setattr(self, field, value)
        self.pause.suspended_until = suspended
        self._restore_quotas(quotas)

    def _restore_quotas(self, quotas: Any) -> None:
        self.quotas = quotas

    def _step(self, now: float) -> Replica:
        replica = self.replica
        if not replica.stepping:
            replica.begin(now)
        return replica

    def _land(self, permit: Permit) -> int:
        """End the flight of an own permit; return its serial number."""
        replica = self.replica
        serial = replica.serials.pop(permit, 0)
        replica.land(replica.member, serial)
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
        # Last: counters in shared memory save the breaker's state together with this count.
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


def _controller_of(permit: Permit) -> ReplicatedController:
    controller = permit.state
    assert isinstance(controller, ReplicatedController), "a permit in flight belongs to a replica"
    return controller


def _no_step(now: float) -> None:
    """Begin no step: no other member has the state."""
