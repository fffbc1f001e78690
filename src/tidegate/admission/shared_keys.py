"""Keys whose limiters this process shares with others: their logs, and the steps at them.

Theory of operation. A *session* is this process's end of one log: of a key, or of an account with its keys. The first
use of a shared key in a step of the key table begins a step at its log: lock it, replay what others did. The end of the
key table's step ends it: append what was done here, publish the head, unlock. A log that another process has locked is
not waited for. Then nothing is admitted, and the head looks again in a millisecond. The end of an attempt is applied
here, and appended to the log at the next step.

A log that stays locked, or is unreadable, never holds up a call: the process then decides alone.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakMethod

from tidegate.admission.accounts import SharingModels
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import Waiter
from tidegate.core import events
from tidegate.core.limiter_state import Out
from tidegate.core.replica import STATE, Replica
from tidegate.core.replica_events import UnreadableRecord
from tidegate.core.replicated_controller import ReplicatedController, ReplicatedKey, ReplicatedModel
from tidegate.core.snapshot import Sharing
from tidegate.core.turns import WaitingMember
from tidegate.core.values import CUSTOM, INFINITY, Cost, Key
from tidegate.settings import Settings
from tidegate.shared_log.carrier import ALONE, Carrier, Head, MemberLog, Record, Step

LOCKED_LOOK_SECONDS = 0.001
"""Seconds after which a head looks again whose log another process has locked. Raising it delays admissions after a
collision; lowering it costs CPU time. Chosen: ten times the longest usual step."""

WAITED_LOOK_SHARE = 0.1
"""Share of the time that a head has waited for its log after which it looks again, `LOCKED_LOOK_SECONDS` at least.
Raising it delays a first call whose server starts late; lowering it costs CPU time. Chosen: a tenth is not noticed."""

STATE_WAIT_SECONDS = 0.050
"""Seconds for which a missing state holds admissions back; then this process decides alone. Raising it lets a stopped
process delay the others for longer; lowering it sends calls without the others' state."""

MAX_LOCKED_SECONDS = 2.0
"""Seconds for which a locked log holds admissions back at most; then this process decides alone. The carrier says so
much earlier where one member keeps the lock. Raising it delays calls at a carrier that fails to."""

JOIN_WAIT_SECONDS = 1.0
"""Seconds for which a member that joins waits for a state where calls of other members wait. Raising it delays the
first call beside processes that are stopped; lowering it sends first calls that are refused. Measured: at 120 requests
a minute, 50 ms cost two refusals for each member that joined."""

SAFE_SECONDS = 60.0
"""Seconds for which a member whose log is out of reach uses its part of the limits; then it decides as an unshared
process. Raising it leaves capacity unused that absent members do not use. Source: the usual window of a quota."""

BRIEF_ABSENCE_SECONDS = 1.0
"""Seconds for which a log that keeps what is said may be out of reach without a loss. Raising it lets members exceed
the limits for longer beside a stopped process; lowering it loses readings. Chosen: the first wait for a server."""

AWAY = "it is out of reach, so a part of the limits is used"
AWAY_ALONE = "it is out of reach, so this process decides alone"
OUT_OF_REACH = "it has been out of reach for a minute"

MAX_UNSAID_EVENTS = 4_096
"""Events that are kept for a locked log at most; then its use ends. Raising it takes more memory, 200 bytes each."""

APPEND_TRIES = 32
"""Times that the end of a step tries to append an event that no later step would, half of them a millisecond apart.
Raising it takes longer where the log's holder is stopped; lowering it leaves a slot taken for others. Chosen: a step
takes less than one of them, and all of them less than `STATE_WAIT_SECONDS`."""


class LogSession:
    """This process's end of one log. `queues` are the queues of its keys here, `reason` says why it is not shared.

    It was `left` where the last of these queues was forgotten. `changed` is called with the number of members when it
    rises, and with 0 and the reason when the sharing ends or pauses.
    """

    __slots__ = (
        "_away_since",
        "_carrier",
        "_changed",
        "_clock",
        "_is_lost",
        "_is_new",
        "_joined_at",
        "_locked",
        "_locked_since",
        "_log",
        "_opened",
        "_step",
        "_waits_until",
        "left",
        "queues",
        "reason",
        "replica",
    )

    def __init__(
        self,
        log: MemberLog,
        carrier: str,
        replica: Replica,
        clock: Callable[[], float],
        opened: list[LogSession],
        changed: Callable[[int, str], object],
    ) -> None:
        self._log: MemberLog | None = log
        self._carrier = carrier
        self._changed = changed
        self.replica = replica
        self._clock = clock
        self._opened = opened
        self._step = Step()
        self._is_new = True
        self._is_lost = False
        self._locked = False
        self._locked_since = self._away_since = INFINITY
        # A member that joins others has no state until then, unless one comes first.
        self._joined_at = self._waits_until = -INFINITY
        self.queues: list[KeyQueue] = []
        self.left = False
        self.reason = ""
        replica.begin = self.begin
        replica.stepping = False

    @property
    def sharing(self) -> Sharing:
        """Return the number of processes that shared the log at the last step, this one included, and by what."""
        return Sharing(self._step.members if self._log is not None else 1, self._carrier, self.lost)

    @property
    def lost(self) -> str:
        """Return why the log is not shared at all, or not now; empty while it is."""
        if self.reason or not self._is_lost:
            return self.reason
        if self.replica.safe.members:
            return AWAY
        return OUT_OF_REACH if self._clock() >= self._away_since + SAFE_SECONDS else AWAY_ALONE

    @property
    def waits(self) -> bool:
        """Return whether a call of this process waits at a key of the log: its timer begins another step."""
        return any(queue.waiting.count for queue in self.queues)

    def begin(self, now: float) -> None:
        """Begin a step: apply what the other members did. Where the log is locked, hold admissions back."""
        replica, log = self.replica, self._log
        if replica.alone and log is not None and log.is_alone(now):
            replica.held_until = -INFINITY
            return
        for queue in self.queues:
            # What others do is heard, and told of, on the full path.
            queue.admission.calm_slots = 0
        replica.stepping = True
        if self in self._opened:
            # An interrupt of the program cut off its last end.
            self.end()
            replica.stepping = True
        else:
            self._opened.append(self)
        if log is None:
            return
        try:
            step = log.enter(now)
            if step is ALONE and self._step is ALONE:
                self._locked_since, replica.held_until = INFINITY, -INFINITY
                return
            if step is None:
                self._locked_since = min(self._locked_since, now)
                if now < max(log.joins_until, self._locked_since + MAX_LOCKED_SECONDS):
                    replica.held_until = _look_after(self._locked_since, now)
                else:
                    replica.held_until = -INFINITY
                    replica.safe.hold_briefly(self._step.members - 1)
                return
            if log.ended:
                self._end_sharing(log.ended)
                return
            before, self._step = self._step.members, step
            self._locked, self._locked_since = True, INFINITY
            if step is not ALONE:
                replica.begin_sharing()
            if step.away:
                self._go_alone(step, before, now)
                return
            if step.members > before:
                self._changed(step.members, "")
            self._catch_up(step, log.member, now)
        except Exception as error:
            self._end_sharing(f"{type(error).__name__}: {error}")

    def end(self) -> bool:
        """End the step: append the own events, and unlock the log. Return whether events are left to append."""
        replica, log = self.replica, self._log
        replica.stepping = False
        if log is None or not (self._locked or replica.said):
            return False
        if not self._locked:
            if len(replica.said) > MAX_UNSAID_EVENTS:
                self._end_sharing("it was locked for too long")
            return bool(replica.said)
        self._locked = False
        if self._step is ALONE:
            log.leave((), None)
            return False
        try:
            head = self._head() if replica.shared else None
            replica.priority = head.priority if head is not None else 0
            records = [*map(Record._make, replica.said)]
            now = self._clock()
            if replica.talks and not self._step.away and now >= self._waits_until:
                # The last record of this step: it includes the others.
                state = replica.answer(self._step.place, now)
                if state is not None:
                    records.append(Record(now, state))
            log.leave(records, head)
            replica.said.clear()
            if log.ended:
                self._end_sharing(log.ended)
        except Exception as error:
            self._end_sharing(f"{type(error).__name__}: {error}")
        return False

    def leave(self, queue: KeyQueue) -> bool:
        """Forget the queue of a key; return whether it was the last one, so that this process has left the log."""
        self.queues.remove(queue)
        if self.queues:
            return False
        self.left = True
        self.close()
        return True

    def close(self) -> None:
        """Leave the log."""
        log, self._log = self._log, None
        self._locked = False
        if log is not None:
            log.close()

    def forked(self) -> None:
        """Begin in a child process, after `Replica.begin_sharing`: the next step finds the member's new number."""
        self._step, self._locked, self._locked_since = Step(), False, INFINITY
        replica = self.replica
        if self._is_lost:
            self._is_lost, self._away_since = False, INFINITY
            replica.lose(0, self._clock())
        replica.stepping = False
        replica.serials.clear()
        replica.said.clear()
        # No member has a negative number; a child of a child that never joined has another one.
        replica.forked(min(0, replica.member) - 1)

    def _go_alone(self, step: Step, before: int, now: float) -> None:
        """Decide without the log: by this member's part of the limits, and after `SAFE_SECONDS` as if unshared."""
        replica = self.replica
        assert self._log is not None, "a step of a log"
        self._away_since = min(self._away_since, now)
        replica.held_until = -INFINITY
        if not self._is_lost and self._log.keeps and now < self._away_since + BRIEF_ABSENCE_SECONDS:
            replica.safe.hold_briefly(step.members - 1)
            return
        if now >= self._away_since + SAFE_SECONDS:
            self._step = step._replace(members=1)
            if before > 1:
                self._changed(0, OUT_OF_REACH)
        others = self._step.members - 1
        replica.shared, replica.talks = others > 0, False
        replica.said.clear()
        if not self._is_lost or others != replica.safe.members:
            self._is_lost = True
            replica.lose(others, now)

    def _catch_up(self, step: Step, member: int, now: float) -> None:
        replica = self.replica
        if self._is_new:
            # What was admitted while the log was locked has a number already.
            replica.alone = step is ALONE and not replica.serial
        is_new, joins = self._is_new, self._is_new or (member != replica.member and member >= 0)
        if member != replica.member and member >= 0:
            replica.forked(member)
        returns = step.returned or self._is_lost
        replica.shared = replica.talks = step.members > 1
        self._away_since = INFINITY
        if replica.safe.used:
            replica.safe.hold_briefly(0)
        if returns:
            self._is_lost = False
            replica.regain(now)
        if not replica.shared:
            replica.said.clear()
        replica.unseen.heard(step.heard_at)
        for entry in step.entries:
            if not entry.payload.startswith(STATE):
                replica.replay(*entry)
                continue
            # A state that cannot be read is not taken: only what happens from now on is shared.
            with suppress(Exception):
                if replica.take_state(entry.member, entry.at, entry.payload, now):
                    self._waits_until = -INFINITY
        if joins or returns:
            self._is_new = False
            replica.hear_from(step.place, now)
        if is_new and not returns:
            # Where calls of others wait, a limit binds, and one of these members makes a step soon.
            wait = JOIN_WAIT_SECONDS if step.heads else STATE_WAIT_SECONDS
            assert self._log is not None, "a step of a log"
            self._joined_at, self._waits_until = now, max(now + wait, self._log.joins_until)
        if not replica.shared:
            self._waits_until = -INFINITY
        waits = now < self._waits_until
        replica.held_until = min(self._waits_until, _look_after(self._joined_at, now)) if waits else -INFINITY
        replica.others = tuple(
            WaitingMember(each.member, each.priority, each.served_at, Cost(*each.cost)) for each in step.heads
        )

    def _head(self) -> Head | None:
        """Return the first waiting call of this process at a key of the log."""
        heads = None
        for queue in self.queues:
            if queue.waiting.count and (head := queue.waiting.head()) is not None:
                heads = [*(heads or ()), head]
        if heads is None:
            return None
        first = min(heads, key=lambda head: (-head.priority, head.place))
        return Head(self.replica.member, first.priority, self.replica.served_at, tuple(first.cost))

    def _end_sharing(self, reason: str) -> None:
        """Decide alone from now on: the attempts of the others no longer count, and nothing more is appended."""
        replica = self.replica
        self.reason = reason
        self._changed(0, reason)
        with suppress(Exception):
            self.close()
        self._log = None
        replica.talks = replica.shared = False
        replica.held_until = -INFINITY
        replica.others = ()
        replica.said.clear()
        replica.lose(0, self._clock())


def _look_after(since: float, now: float) -> float:
    """Return when a head looks again that has waited for its log since then."""
    return now + max(LOCKED_LOOK_SECONDS, WAITED_LOOK_SHARE * (now - since))


def _yield(seconds: float) -> None:
    time.sleep(0)


class SharedKeys:
    """The keys that a key table shares with other processes through the logs of `carrier`.

    `step` runs a step of the key table. `notify` receives the events of sharing, `records` what is to be done with the
    table's lock free.
    """

    def __init__(
        self,
        carrier: Carrier,
        settings: Settings,
        clock: Callable[[], float],
        secret: bytes,
        notify: Callable[[events.Event], object],
        step: Callable[..., Any],
        records: deque[Callable[[], object]],
    ) -> None:
        self._carrier = carrier
        self._notify = notify
        self._settings = settings
        self._clock = clock
        self._secret = secret
        # A registry that is held no more ends at once: no cycle holds it.
        self._step = WeakMethod(step)
        self._records = records
        # Time that a test moves does not pass while a thread sleeps.
        self._sleep: Callable[[float], None] = time.sleep if clock is time.monotonic else _yield
        self.opened: list[LogSession] = []
        self.sessions: dict[bytes, LogSession] = {}
        self._reasons: dict[Key, str] = {}

    def controller(
        self, key: Key, window: float, now: float, account: SharingModels | None
    ) -> ReplicatedController | None:
        """Return the controller of a key, which may have been in use by other processes; None if it is not shared."""
        if key.provider == CUSTOM and not self._carrier.is_chosen:
            return None
        name = self._digest(key if account is None else account.controller.key)
        session = self.sessions.get(name)
        if session is None or session.left:
            session = self._join(key, name, window, now, account)
        if session is None:
            self._reasons[key] = self._carrier.reason or "its log cannot be joined"
            self._notify(events.ShareLost(key, now, self._reasons[key]))
            return None
        replica = session.replica
        tag = "" if account is None else self._digest(key).hex()[:16]
        found = replica.controllers.get(tag)
        if found is None:
            found = self._make(key, window, now, account)
            found.begin_replica(replica, tag)
        found.key = key
        return found

    def attach(self, queue: KeyQueue) -> None:
        """Give the queue of a shared key its log, and that of another one the reason why its log was not joined."""
        admission = queue.admission
        if isinstance(admission, ReplicatedController):
            queue.log = next(each for each in self.sessions.values() if each.replica is admission.replica)
            queue.log.queues.append(queue)
        queue.unshared_reason = self._reasons.pop(admission.key, "")

    def enter(self, queue: KeyQueue | None, now: float) -> float:
        """Begin a step at the log of a queue, if it has one; return the time after that."""
        admission = queue.admission if queue is not None else None
        if not isinstance(admission, ReplicatedController):
            return now
        replica = admission.replica
        if replica.stepping:
            return now
        replica.begin(now)
        # Another process may have used its own clock since: no event is earlier than one that was read.
        return max(now, self._clock()) if replica.shared else now

    def end_steps(self) -> None:
        """End the steps at the logs; an interrupt of the program leaves the rest to the next end."""
        while self.opened:
            session = self.opened[-1]
            if session.end() and not session.waits:
                self._records.append(partial(self._append, session))
            self.opened.pop()

    def _append(self, session: LogSession) -> None:
        """Append events that no later step may: this process may never use the key again."""

        def step(out: Out) -> tuple[list[Waiter], bool]:
            session.begin(self._clock())
            left = session.end()
            self.opened.clear()
            return [], left

        for attempt in range(APPEND_TRIES):
            self._sleep(0.0 if attempt < APPEND_TRIES // 2 else LOCKED_LOOK_SECONDS)
            run = self._step()
            if run is None or not run(step, lambda: True):
                return

    def before_fork(self) -> None:
        """Number the attempts in flight, so that parent and child know each by one number."""
        for session in self.sessions.values():
            session.replica.begin_sharing()

    def after_fork(self) -> None:
        """Become new members of all logs in a child process."""
        self.opened.clear()
        self._carrier.after_fork()
        for session in self.sessions.values():
            session.forked()

    def close(self) -> None:
        """Leave all logs."""
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        self._carrier.close()

    def _note_change(self, key: Key, members: int, reason: str) -> None:
        event: events.Event = events.ShareJoined(key, self._clock(), members, self._carrier.kind)
        if reason:
            event = events.ShareLost(key, self._clock(), reason)
        self._notify(event)

    def _join(
        self, key: Key, name: bytes, window: float, now: float, account: SharingModels | None
    ) -> LogSession | None:
        try:
            log = self._carrier.join(name, now)
        except Exception:
            # A carrier that fails must not fail a call: the key is not shared.
            return None
        if log is None:
            return None

        def make(tag: str, at: float) -> ReplicatedController:
            if account is None:
                raise UnreadableRecord("record unreadable: the log has one key")
            return self._make(account.controller.key._replace(scope=tag), window, at, account)

        replica = Replica(log.member, make)
        replica.account = account.controller if account is not None else None
        named = key if account is None else account.controller.key
        for left in [name for name, each in self.sessions.items() if each.left]:
            del self.sessions[left]
        session = self.sessions[name] = LogSession(
            log, self._carrier.kind, replica, self._clock, self.opened, partial(self._note_change, named)
        )
        return session

    def _make(self, key: Key, window: float, now: float, account: SharingModels | None) -> ReplicatedController:
        if account is None:
            return ReplicatedKey(key, self._settings, window, now)
        return ReplicatedModel(key, self._settings, window, now, account.controller)

    def _digest(self, key: Key) -> bytes:
        return hashlib.blake2b(repr(tuple(key)).encode(), key=self._secret[:64], digest_size=16).digest()
