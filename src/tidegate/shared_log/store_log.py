"""One member's end of a log that a server keeps, as seen by the calls of this process: they never wait for the server.

Theory of operation. `leave` puts records into an outbox, and `enter` takes entries from an inbox. The thread of
`store_carrier` exchanges both with the server in one round trip. Two members may decide at the same time, before they
see each other's records: their heads are ordered by arithmetic, so they do not take the same unit.

The order of entries is that of the server.

While the server is away nothing is kept for it: an event that arrives late would be taken for news. After the return
each member announces its attempts in flight, and asks the others for their state.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidegate.shared_log.carrier import (
    ALONE,
    ENDED,
    CorruptLog,
    Entry,
    Head,
    Record,
    Step,
    packed_head,
    unpacked_head,
)

JOIN_WAIT_SECONDS = 0.25
"""Seconds for which a joiner waits for the server and for a state. Chosen: the time limit of an exchange."""

KEPT_ENTRIES = 4096
"""Entries that a server keeps of a log. Chosen: the events of 2,000 calls."""

BEAT_SECONDS = 2.0
"""Seconds between two exchanges of a member without calls: a third of those after which it counts as dead."""

SOLE_EXCHANGE_SECONDS = 0.5
"""Seconds between two exchanges of a member without others whose calls go. Measured: an exchange takes 72 us of CPU."""

HEAD_EXCHANGE_SECONDS = 0.01
"""Seconds between two exchanges while a call or an event waits: the core looks again after 10 ms."""

STEP_EXCHANGE_SECONDS = 0.05
"""Seconds between two exchanges while calls go and none waits. Derived: the core looks again after 50 ms."""

STALE_EVENT_SECONDS = 1.0
"""Seconds after which an event that this member could not hear is outdated. Chosen: four time limits of an exchange."""


class Stored(NamedTuple):
    """One entry at its place in the log; `at` is in the server's seconds."""

    place: int
    member: int
    at: float
    payload: bytes


class Ask(NamedTuple):
    """One exchange. `member` is 0 for a joiner; `sequence` numbers the first record, so that none is stored twice."""

    member: int
    epoch: str
    cursor: int
    sequence: int
    records: Sequence[tuple[float, bytes]]
    head: bytes
    leaves: bool = False


class Answer(NamedTuple):
    """The server's part of an exchange. `member` is another one than asked with where this member was not known.

    `members` are the numbers of the live members.
    """

    now: float
    epoch: str
    member: int
    tail: int
    entries: Sequence[Stored]
    heads: Mapping[int, bytes]
    members: Sequence[int]


def checked(answer: Answer) -> Answer:
    """Return an answer that the steps of calls can read; raise `CorruptLog`: others may write to the server."""
    numbers: list[object] = [answer.member, answer.tail, *answer.members]
    instants: list[object] = [answer.now]
    contents: list[object] = []
    for entry in answer.entries:
        numbers += entry.place, entry.member
        instants.append(entry.at)
        contents.append(entry.payload)
    if not (
        isinstance(answer.epoch, str)
        and all(isinstance(each, int) and each >= 0 for each in numbers)
        and all(isinstance(each, float) and math.isfinite(each) for each in instants)
        and all(isinstance(each, bytes) for each in contents)
    ):
        raise CorruptLog("its content is not that of a log")
    for member, packed in answer.heads.items():
        if not isinstance(member, int) or not isinstance(packed, bytes):
            raise CorruptLog("a head is not that of a member")
        unpacked_head(member, packed)
    return answer


class Limits(NamedTuple):
    """Least seconds for which a process waits for its server: in an exchange, and for the server to start at a join."""

    exchange: float = 0.0
    join: float = 0.0


PROMPT = Limits()
"""The limits for a server that runs already and answers soon: `JOIN_WAIT_SECONDS` for both."""


class StoreLog:
    """One member's end. The caller's steps and the thread's exchanges meet under a lock that is held for no I/O.

    A finalizer may make a call in the thread's part: its step finds a part of an answer, and waits for nothing.
    """

    def __init__(
        self,
        name: bytes,
        now: float,
        wake: Callable[[], None],
        forget: Callable[[StoreLog], None],
        limits: Limits = PROMPT,
    ) -> None:
        self.name, self._limits = name, limits
        self.ended = ""
        self._closed = False
        self.keeps = False
        self.restart(now, wake, forget)

    def restart(self, now: float, wake: Callable[[], None], forget: Callable[[StoreLog], None]) -> None:
        """Forget the membership; the lock may have been taken by a thread that a fork has removed."""
        self.member = -1
        self._lock = threading.RLock()
        self._wake, self._forget = wake, forget
        self._joined_at, self.joins_until = now, now + max(JOIN_WAIT_SECONDS, self._limits.join)
        self._epoch, self._number = "", 0
        self._received = 0
        self._sequence, self._sent = 1, 0
        self._outbox: list[Record] = []
        self._inbox: list[Stored] = []
        self._heads: Mapping[int, bytes] = {}
        self._live: Sequence[int] = ()
        self._own_head: Head | None = None
        self._away = self._returned = False
        self._offset = 0.0
        self._heard_at = now
        self._last_at = -math.inf
        self._asked_at = -math.inf
        self._woken, self._asking = True, False

    @property
    def sole(self) -> bool:
        return self._number != 0 and len(self._live) == 1

    def due_at(self) -> float:
        """Return the instant of the next exchange; the carrier's thread asks."""
        with self._lock:
            if not self._number:
                return self._asked_at
            if self._outbox:
                return self._asked_at + HEAD_EXCHANGE_SECONDS
            if not self._woken:
                return self._asked_at + BEAT_SECONDS
            if self.sole:
                return self._asked_at + SOLE_EXCHANGE_SECONDS
            return self._asked_at + (HEAD_EXCHANGE_SECONDS if self._own_head else STEP_EXCHANGE_SECONDS)

    def is_alone(self, now: float) -> bool:
        """Return False: each step asks the carrier's thread for news."""
        return False

    def enter(self, now: float) -> Step | None:
        if self.ended or self._closed:
            return ENDED if self.ended else ALONE
        with self._lock:
            self._woken = True
            self._wake()
            members = max(1, len(self._live))
            if self._away or (
                self._asking and now - self._asked_at > 2 * max(JOIN_WAIT_SECONDS, self._limits.exchange)
            ):
                self._lose()
                return Step(members=members, away=True)
            if not self._number:
                return None if self._joined_at <= now < self.joins_until else Step(members=members, away=True)
            if self.sole and not self._inbox and not self._returned:
                return ALONE
            self.member = self._number
            return self._step(members)

    def _step(self, members: int) -> Step:
        entries = []
        for each in self._inbox:
            if each.member != self._number:
                self._last_at = max(self._last_at, each.at)
                entries.append(Entry(each.member, self._last_at - self._offset, each.payload, each.place))
        self._inbox.clear()
        heads = [unpacked_head(member, head) for member, head in self._heads.items() if member != self._number]
        heads = [each._replace(served_at=each.served_at - self._offset) for each in heads]
        returned, self._returned = self._returned, False
        return Step(entries, heads, members, self._received, returned=returned, heard_at=self._heard_at)

    def _lose(self) -> None:
        """Forget what was not exchanged in time: this member and the others announce their attempts again."""
        self._returned = True
        self._outbox.clear()
        self._inbox.clear()
        self._own_head = None

    def leave(self, records: Sequence[Record], head: Head | None) -> None:
        """Give the thread the records; while the server is away, drop them."""
        if self.ended or self._closed:
            return
        with self._lock:
            if self.sole or self._away:
                self._own_head = None
                return
            self._outbox += records[: max(0, KEPT_ENTRIES - len(self._outbox))]
            self._own_head = head
            self._wake()

    def ask(self, now: float, leaves: bool = False) -> Ask:
        with self._lock:
            self._asked_at, self._woken, self._asking = now, False, True
            self._sent = len(self._outbox) if self._number else 0
            records = [(each.at + self._offset, each.payload) for each in self._outbox[: self._sent]]
            own = self._own_head
            head = b"" if own is None else packed_head(own._replace(served_at=own.served_at + self._offset))
            return Ask(self._number, self._epoch, self._received, self._sequence, records, head, leaves)

    def answered(self, ask: Ask, answer: Answer, offset: float) -> None:
        with self._lock:
            self._offset, self._away, self._asking = offset, False, False
            self._heard_at = answer.now - offset
            same = (answer.member, answer.epoch) == (ask.member, ask.epoch)
            if not ask.member:
                self._epoch, self._number = answer.epoch, answer.member
                self._received = answer.tail
                # From now on only a state is waited for.
                self._joined_at = self._asked_at
                self.joins_until = self._asked_at + max(JOIN_WAIT_SECONDS, self._limits.exchange)
            elif not same:
                # The others took this member for dead, or the server lost everything: then its log begins again.
                self._lose()
                # What was said in the absence is not read: the others' state has it.
                self._received = answer.tail if answer.epoch == ask.epoch else 0
                self._epoch, self._number = answer.epoch, answer.member
                self._sequence = 1
            else:
                self._sequence += self._sent
                del self._outbox[: self._sent]
            self._sent = 0
            self._heads, self._live = answer.heads, answer.members
            if same:
                self._take_entries(ask, answer)

    def _take_entries(self, ask: Ask, answer: Answer) -> None:
        entries = answer.entries
        if entries and entries[0].place > ask.cursor:
            # The server has removed entries that this member has not read.
            self._lose()
        if self._returned:
            entries = [each for each in entries if each.at >= answer.now - STALE_EVENT_SECONDS]
        self._inbox += [each for each in entries if each.place >= ask.cursor]
        self._received = answer.tail

    def failed(self) -> None:
        with self._lock:
            # The server may have stored what was sent: its numbers are used up.
            self._sequence += self._sent
            self._away, self._asking, self._sent = True, False, 0
            self._lose()

    def end(self, reason: str) -> None:
        self.ended = reason
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget(self)
