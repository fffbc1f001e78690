"""Log of events in the memory of one process, whose members share a clock: for tests and virtual time.

Theory of operation. The entries are in one list, and each member remembers how far it has read. A member that joins
others reads from the end of the list on. Only one member is between `enter` and `leave` at a time; `hold` lets a test
be such a member.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from tidegate.shared_log.carrier import ALONE, Carrier, Entry, Head, Record, Step


class MemoryStore:
    """The logs that the carriers of several registries have in common, by name. Nothing reaches them while `away`.

    The members hear each event `delay` seconds after it was appended, as from a server.
    """

    def __init__(self, delay: float = 0.0) -> None:
        self.away = False
        self.delay = delay
        self.logs: dict[bytes, MemoryLog] = {}

    def set_away(self, away: bool) -> None:
        """Take the logs out of the reach of all members, with the loss of their content, or bring them back."""
        self.away = away
        if away:
            for log in self.logs.values():
                log.lost, log.holder = len(log.entries), None
                log.heads.clear()


class MemoryLog:
    """One log. `entries` are all events, `members` the live members by number, `holder` the one inside a step."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.appended_at: list[float] = []
        self.members: dict[int, MemoryMember] = {}
        self.heads: dict[int, Head] = {}
        # The heads after each step, with its instant, where members hear them later.
        self.head_history: deque[tuple[float, dict[int, Head]]] = deque()
        # The entries of which the content was lost.
        self.lost = 0
        self.holder: int | None = None
        self.numbers = 0

    def hold(self, held: bool) -> None:
        """Keep the log locked against all members, or unlock it."""
        self.holder = -1 if held else None

    def remove(self, member: int) -> None:
        """End a member, as if its process had been killed."""
        self.members.pop(member, None)
        self.heads.pop(member, None)
        if self.holder == member:
            self.holder = None
        # The end of a member is an entry without a payload, at one place of the order.
        ended_at = self.entries[-1].at if self.entries else 0.0
        self.append([Entry(member, ended_at, b"")])
        if self.head_history:
            self.head_history.append((max(ended_at, self.head_history[-1][0]), dict(self.heads)))

    def heads_at(self, at: float) -> dict[int, Head]:
        history = self.head_history
        while len(history) > 1 and history[1][0] <= at:
            history.popleft()
        return history[0][1] if history and history[0][0] <= at else {}

    def append(self, entries: Sequence[Entry]) -> None:
        self.entries += [each._replace(place=place) for place, each in enumerate(entries, len(self.entries))]
        latest = max((each.at for each in entries), default=0.0)
        before = self.appended_at[-1] if self.appended_at else latest
        self.appended_at += [max(before, latest)] * len(entries)


class MemoryMember:
    """One member's end of a log (`carrier.MemberLog`)."""

    def __init__(self, store: MemoryStore, log: MemoryLog) -> None:
        self._store = store
        self.log = log
        self._members = 1
        self._away = False
        self.keeps = False
        self.joins_until = -math.inf
        self.member = log.numbers
        log.numbers += 1
        self.ended = ""
        self._read = len(log.entries)
        self._left_at = 0.0
        log.members[self.member] = self

    def is_alone(self, now: float) -> bool:
        return len(self.log.members) == 1 and not self._store.away and self._read == len(self.log.entries)

    def enter(self, now: float) -> Step | None:
        log = self.log
        if self.member not in log.members:
            return ALONE
        if self._store.away:
            self._away = True
            return Step(members=self._members, away=True)
        if log.holder is not None:
            return None
        returned, self._away = self._away, False
        if returned:
            self._read = max(self._read, log.lost)
        self._members = len(log.members)
        unread = self._read < len(log.entries)
        if len(log.members) == 1 and not unread:
            return ALONE
        log.holder = self.member
        self._left_at = now
        delay = self._store.delay
        heard = bisect_right(log.appended_at, now - delay, self._read) if delay else len(log.entries)
        entries = [each for each in log.entries[self._read : heard] if each.member != self.member]
        self._read = max(self._read, heard)
        heads = log.heads_at(now - delay) if delay else log.heads
        others = [head for member, head in heads.items() if member != self.member]
        return Step(
            entries, others, len(log.members), self._read, returned=returned,
            heard_at=now - delay if delay else math.inf,
        )  # fmt: skip

    def leave(self, records: Sequence[Record], head: Head | None) -> None:
        log = self.log
        if self.member not in log.members:
            return
        if self._store.away:
            return
        log.holder = None
        log.append([Entry(self.member, each.at, each.payload) for each in records])
        self._left_at = max([self._left_at, *(each.at for each in records)])
        if not self._store.delay:
            self._read = len(log.entries)
        if head is None:
            log.heads.pop(self.member, None)
        else:
            log.heads[self.member] = head
        if self._store.delay:
            log.head_history.append((self._left_at, dict(log.heads)))

    def become_new(self) -> None:
        """Become a new member, as in the child of a fork; the former one stays until it is removed."""
        log = self.log
        self.member = log.numbers
        log.numbers += 1
        log.members[self.member] = self

    def close(self) -> None:
        self.log.remove(self.member)


class MemoryCarrier(Carrier):
    """The logs of one registry (`carrier.Carrier`)."""

    kind = "memory"
    reason = ""
    is_chosen = True
    place = "the memory of this process"
    secret = b"the memory of one process"

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.joined: list[MemoryMember] = []

    def join(self, name: bytes, now: float) -> MemoryMember | None:
        member = MemoryMember(self.store, self.store.logs.setdefault(name, MemoryLog()))
        self.joined.append(member)
        return member

    def after_fork(self) -> None:
        """Do nothing: the memory of a child is its own."""

    def close(self) -> None:
        for each in self.joined:
            each.close()
        self.joined.clear()
