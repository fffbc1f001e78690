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

A member that joins has not heard what was before, so it *asks* for the state of the others. A member that has heard the
log from an earlier place on answers with its whole state, as one entry, and the joiner takes that in place of its own.
So the state of the member that has heard most becomes that of all, at any time and without a leader. Members that were
out of reach ask as joiners do. While an answer is on its way, entries of further members may come before it that it
does not include, so the last ones are kept and replayed once more.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from tidegate.core import checkpoint
from tidegate.core.admission_controller import AccountController
from tidegate.core.checkpoint import ACCOUNT, CONTROLLER, SHARED, TABLE, StateDecoder, StateEncoder
from tidegate.core.limiter_state import Permit
from tidegate.core.replica_events import EventKind, ReplicaEvent, UnreadableRecord, read_event
from tidegate.core.replicated_controller import ReplicatedController, controller_of
from tidegate.core.turns import LogMembership, RecentService
from tidegate.core.unheard_members import ABANDONED
from tidegate.core.values import CAPACITY, INFINITY

MAX_KEYS = 4_096
"""Most keys of one log: bounds the memory that a hostile log takes."""

STATE = b"state"
"""First bytes of an entry that is the whole state: those of an event are a checksum and `[`."""

STATE_HEAD = struct.Struct("<qqq")
"""The place before which its writer has read all entries, the place from which on that state was heard, and the member
that heard it first."""

STATE_SECONDS = 1.0
"""Seconds in which members append one state of the largest size, in the long run, and by which they may be ahead of
it. Derived: other members read each second, and two such states are half of what a host's log keeps."""

RECENT_ENTRIES = 256
"""Entries kept for an answer that does not include them. Derived: those of a thousand a second in the longest exchange
with a server, a quarter of a second."""

_State: TypeAlias = "tuple[dict[str, tuple[Any, list[Any]]], list[Any] | None, dict[tuple[int, int], Permit]]"


class Replica(LogMembership):
    """The shared state of one log in this process.

    `make` returns a controller for a tag that this process has not used. The state was heard `since` a place of the log
    by a member, this one or the one whose state it took. A joiner's question at the place `asked` has no answer yet.
    The states in the log use their rate until `stated_until`. `recent` are the last entries.
    """

    __slots__ = ("account", "asked", "make", "recent", "since", "stated_until")

    def __init__(self, member: int, make: Callable[[str, float], ReplicatedController]) -> None:
        super().__init__(member)
        self.make = make
        self.account: AccountController | None = None
        self.since = 0, member
        self.asked = -1
        self.stated_until = -INFINITY
        self.recent: deque[tuple[int, float, bytes, int]] = deque(maxlen=RECENT_ENTRIES)

    def begin_sharing(self) -> None:
        """End the time alone: number the attempts in flight, and count from now on what all members do."""
        if not self.alone:
            return
        for controller in self.controllers.values():
            controller.note_service(controller.used_at)
        self.alone = False
        for controller in self.controllers.values():
            controller.calm_slots = 0
            controller.tally = controller.counts.copy()
            for permit in controller.permits_in_flight.values():
                self.serial += 1
                self.serials[permit] = self.serial
                self.fly(controller, permit, self.member, self.serial)

    def hear_from(self, place: int, now: float) -> None:
        """Begin to hear the log at a place, and ask for the state of those who have heard it before."""
        self.since, self.asked = (place, self.member), -1
        self.recent.clear()
        self.tell(now, ReplicaEvent(EventKind.ASKED, number=place))

    def replay(self, member: int, at: float, payload: bytes, place: int = 0) -> None:
        """Apply an event of another member.

        Raise `UnreadableRecord` for a payload that is none. An event of an unknown permit changes nothing: this member
        joined without the state. An empty payload is the end of the member.
        """
        if self.since[1] == self.member:
            self.recent.append((member, at, payload, place))
        if not payload:
            self._note_gone(member, at)
            return
        event = read_event(payload)
        if event.kind is not EventKind.ASKED:
            self.apply(member, at, event)
        elif self.since < (int(event.number), member):
            self.asked = place

    def answer(self, place: int, now: float) -> bytes | None:
        """Return the state for the members that ask, if there are any; the entries before `place` are in it."""
        if self.asked < 0 or now < self.stated_until - STATE_SECONDS:
            return None
        self.asked = -1
        state = self.dump(now)
        if state is None:
            return None
        payload = STATE + STATE_HEAD.pack(place, *self.since) + state
        self._note_state(len(payload), now)
        return payload

    def take_state(self, member: int, at: float, payload: bytes, now: float) -> bool:
        """Take the state of another member in place of the own one where it was heard from an earlier place on.

        Return whether it was taken. Raise an error for a payload that is none, without any effect.
        """
        place, *since = STATE_HEAD.unpack_from(payload, len(STATE))
        heard = since[0], since[1]
        self._note_state(len(payload), at)
        if heard <= self.since and place > self.asked:
            self.asked = -1
        # One from before the own beginning lacks entries that this member has not read.
        if heard >= self.since or place < self.since[0]:
            return False
        self.load(payload[len(STATE) + STATE_HEAD.size :], at, now)
        self.since = heard
        for who, heard_at, entry, entry_place in self.recent:
            if entry_place >= place and who != member:
                self.replay(who, heard_at, entry, entry_place)
        self.recent.clear()
        return True

    def _note_state(self, size: int, at: float) -> None:
        self.stated_until = max(self.stated_until, at) + STATE_SECONDS * size / checkpoint.MAX_CHECKPOINT_BYTES

    def apply(self, member: int, at: float, event: ReplicaEvent) -> None:
        """Apply an event to the state, but not to the own counters."""
        kind = event.kind
        if kind is EventKind.ADMITTED:
            controller = self._controller(event.tag, at)
            if (member, event.serial) not in self.flights:
                # A member that was out of reach repeats its attempts, and a checkpoint may have them too.
                self.fly(controller, controller.replay_admit(event, at), member, event.serial)
                self.unseen.admitted(at)
                self.service.note_admitted(member, at)
        elif kind is EventKind.USAGE:
            if event.facts is not None and event.usage is not None:
                self._controller(event.tag, at).estimate.learn(event.facts, event.usage)
        elif kind is EventKind.GONE:
            self._note_gone(int(event.number), at)
        elif kind is EventKind.SETTLED or kind is EventKind.WITHDRAWN:
            ended = self.land(member, event.serial)
            if ended is not None:
                if kind is EventKind.WITHDRAWN or (event.outcome is not None and event.outcome.kind in CAPACITY):
                    self.service.note_returned(member, at)
                controller_of(ended).replay_end(ended, event, at)
        else:
            flying = self.flights.get((member, event.serial))
            if flying is not None:
                controller_of(flying).replay_news(flying, event, at)

    def _note_gone(self, member: int, now: float) -> None:
        if member != self.member:
            self.abandon(member, now)
            return
        # The others took this member for dead, abandoned its attempts and forgot its service: announce them again.
        self.service.forget(member)
        for permit, serial in self.serials.items():
            tag = controller_of(permit).tag
            self.service.note_admitted(member, now)
            self.tell(now, ReplicaEvent(EventKind.ADMITTED, tag, serial, flag=permit.beyond, cost=permit.cost))

    def abandon(self, member: int, now: float) -> bool:
        """Abandon the attempts in flight of a member that is gone; return whether there were any."""
        theirs = [serial for who, serial in self.flights if who == member]
        for serial in theirs:
            permit = self.land(member, serial)
            if permit is not None:
                controller_of(permit).abandon(permit, now)
        self.others = tuple(each for each in self.others if each.member != member)
        self.service.forget(member)
        return bool(theirs)

    def lose(self, members: int, now: float) -> None:
        """Decide without the others: assume that `members` of them do what this one does (0: assume nothing)."""
        ended = self.safe.end()
        theirs = [flight for flight in self.flights if flight[0] != self.member]
        others = [permit for flight in theirs if (permit := self.land(*flight)) is not None]
        for permit in [*ended, *self.safe.begin(members, self.serials, others)]:
            controller_of(permit).abandon(permit, now)
        self.others = ()

    def regain(self, now: float) -> None:
        """Hear the others again: announce the own attempts in flight in place of those that they know of."""
        members = self.safe.members
        self.lose(0, now)
        self.safe.returned(members, self.controllers, self.serials.values(), now)
        self.tell(now, ReplicaEvent(EventKind.GONE, number=self.member))
        self._note_gone(self.member, now)

    def forked(self, member: int) -> None:
        """Become a new member.

        In a child process (a negative number) the attempts in flight are the parent's. Else they stay the own ones, as
        after the others took this member for dead.
        """
        own = dict(self.serials) if self.member < 0 or member >= 0 else {}
        for serial in own.values():
            self.land(self.member, serial)
        if not own:
            self.serials.clear()
            self.said.clear()
        if self.member < 0 or member >= 0:
            # Nobody counts for the old number any more. A parent process keeps its own.
            self.service.forget(self.member)
        self.member = member
        for permit, serial in own.items():
            self.fly(controller_of(permit), permit, member, serial)
            self.service.note_admitted(member, permit.sent_at)
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
        plain["service"] = self.service.dump()
        plain["flights"] = [[*flight, encode(permit)] for flight, permit in self.flights.items()]
        return checkpoint.write_checkpoint(plain)

    def load(self, payload: bytes, at: float, now: float) -> None:
        """Replace all state by that of a checkpoint, whose instant is `at` on this process's clock.

        Own attempts stay in flight; those that the checkpoint lacks are kept for the log again. An unreadable payload
        raises an error without any effect.
        """
        plain = checkpoint.read_checkpoint(payload)
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
        checkpoint.require(loaded, shared, flights)
        service, service_before = RecentService.load(plain["service"], shift), self.service
        before = self._state()
        try:
            decoder.apply()
            self._restore({tag: (quotas, fields) for tag, (quotas, fields) in loaded.items()}, shared, flights)
            for controller in self.controllers.values():
                controller.check(now)
            self.service = service
            self._resume_own(now)
        except Exception:
            self.service = service_before
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
            for field, value in zip(ACCOUNT, shared, strict=True):
                setattr(account, field, value)
        self.flights = flights
        for controller in self.controllers.values():
            controller.held = {}
        for (member, _), permit in flights.items():
            held = controller_of(permit).held
            held[member] = held.get(member, 0) + 1

    def _resume_own(self, now: float) -> None:
        """Apply the own events that are not in the log yet, after the state was replaced."""
        unsaid = [(at, read_event(payload)) for at, payload in self.said]
        anew = {event.serial: at for at, event in unsaid if event.kind is EventKind.ADMITTED}
        for permit, serial in list(self.serials.items()):
            if (self.member, serial) not in self.flights:
                # A permit that is in no checkpoint keeps its identity: its holder settles it.
                controller = controller_of(permit)
                event = ReplicaEvent(EventKind.ADMITTED, controller.tag, serial, flag=permit.beyond, cost=permit.cost)
                controller.readmit(permit, event, anew.get(serial, now))
                self.service.note_admitted(self.member, anew.get(serial, now))
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
