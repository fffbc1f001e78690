"""Logs in the memory of one process, which serves the exchanges of others in turn; it does what a server's script does.

The memory may be that of an actor of Ray. Time is an argument: seconds of the serving process's wall clock.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from itertools import islice

from tidegate.shared_log.redis_log import MEMBERS
from tidegate.shared_log.store_carrier import EXPIRY, GONE_AFTER
from tidegate.shared_log.store_log import ENTRIES, FULL, Answer, Ask, Stored, StoredState

LOOK_EVERY = 60.0
"""Seconds between two searches for logs that no process uses. Derived: a tenth of `EXPIRY`."""


class TableMember:
    """One live member of a log: its last beat, its rank, and the number of the last record that it stored."""

    __slots__ = ("beat", "head", "rank", "stored")

    def __init__(self, beat: float, rank: int) -> None:
        self.beat = beat
        self.rank = rank
        self.stored = 0
        self.head = b""


class TableLog:
    """One log. `base` is the place of its first entry, `last_at` the last instant of the clock, which runs forwards."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.base = 0
        self.entries: deque[Stored] = deque(maxlen=ENTRIES)
        self.tail = 0
        self.last_number = 0
        self.members: dict[int, TableMember] = {}
        self.state: StoredState | None = None
        self.states = 0
        self.wanted = False
        self.last_at = -math.inf

    def exchange(self, ask: Ask, now: float) -> Answer | None:
        """Append, beat and read for one member; None where it leaves or the log has too many members."""
        now = self.last_at = max(now, self.last_at)
        for number in [number for number, each in self.members.items() if now - each.beat > GONE_AFTER]:
            self._remove(number, now)
        member = self.members.get(ask.member) if ask.epoch == self.epoch else None
        if ask.leaves:
            if member is not None:
                self._remove(ask.member, now)
            return None
        number, cursor = ask.member, ask.cursor
        if member is not None:
            self._store(member, ask, now)
        elif len(self.members) >= MEMBERS:
            return None
        else:
            self.last_number = number = self.last_number + 1
            self.members[number] = TableMember(now, ask.rank if self.members else FULL)
            cursor = self.tail
        others = len(self.members) > 1
        if not others:
            self.state, self.wanted = None, False
        state, cursor = self._state_for(ask, cursor) if others or cursor < self.base else (None, cursor)
        if others and self.tail - (self.state.position if self.state is not None else 0) > ENTRIES / 2:
            self.wanted = True
        return Answer(
            now, self.epoch, number, self.tail,
            list(islice(reversed(self.entries), self.tail - max(cursor, self.base)))[::-1],
            {each: found.head for each, found in self.members.items() if found.head},
            {each: found.rank for each, found in self.members.items()},
            state, self.wanted, self.state.rank if self.state is not None else 0,
        )  # fmt: skip

    def _store(self, member: TableMember, ask: Ask, now: float) -> None:
        for number, (at, payload) in enumerate(ask.records, ask.sequence):
            # A record that comes again, after an exchange that failed, is stored already.
            if number > member.stored:
                self._append(ask.member, at, payload)
                member.stored = number
        member.beat, member.rank, member.head = now, ask.rank, ask.head
        if ask.state is not None:
            position, at, payload = ask.state
            self.states += 1
            self.state = StoredState(self.states, position, self.tail, ask.member, ask.rank, at, payload)
            self.wanted = False

    def _state_for(self, ask: Ask, cursor: int) -> tuple[StoredState | None, int]:
        """Return the state for a member that needs one, and the place from which it continues to read."""
        if cursor >= self.base and ask.state_since == math.inf:
            return None, cursor
        state, since = self.state, ask.state_since if ask.state_since != math.inf else -math.inf
        if state is None or state.position < self.base or state.at < since:
            self.wanted = True
        elif state.number != ask.known_state:
            return state, state.position
        return None, cursor

    def _remove(self, number: int, now: float) -> None:
        """End a member: an entry without a payload says so, at one place of the order."""
        del self.members[number]
        self._append(number, now, b"")

    def _append(self, number: int, at: float, payload: bytes) -> None:
        self.entries.append(Stored(self.tail, number, at, payload))
        self.tail += 1
        self.base = self.tail - len(self.entries)


class LogTable:
    """The logs by name."""

    def __init__(self) -> None:
        self._logs: dict[bytes, TableLog] = {}
        self._looked_at = -math.inf

    def exchange(self, name: bytes, ask: Ask, now: float) -> Answer | None:
        if now >= self._looked_at + LOOK_EVERY:
            self._looked_at = now
            for unused in [each for each, log in self._logs.items() if now - log.last_at > EXPIRY]:
                del self._logs[unused]
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = TableLog()
        return log.exchange(ask, now)
