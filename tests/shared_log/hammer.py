"""Processes at one log that are killed, stopped and forked at random instants, each with a replica of what was said.

Run as a program it is the parent: it forks members, does to them what its mode says, and prints its findings as JSON. A
replica is a dictionary of the last number that each member said. Numbers follow one another, so that a lost, doubled or
scrambled entry is seen by everybody.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tidegate.shared_log.carrier import ALONE, Head, Record
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_log import LOCK_WAIT_SECONDS

MOST_SECONDS = 240.0
"""For which the survivors may differ: on a machine that does nothing else, it takes two."""

FIELDS = STEPS, BROKEN, LATE, DIGEST, MEMBERS, AWAY, STOPPED, ERRORS, LONGEST = range(9)
SLOTS = 16
STORM = 40
"""Children that are forked at once in a storm. With their own children they stay below the members of a log."""
SPEAK, LISTEN, SPEAK_ONLY, END = range(4)


class Board:
    """Numbers that all processes see: a phase, and a row for each slot."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * (1 + SLOTS * len(FIELDS)))).cast("q")

    @property
    def phase(self) -> int:
        return self._numbers[0]

    @phase.setter
    def phase(self, value: int) -> None:
        self._numbers[0] = value

    def get(self, slot: int, field: int) -> int:
        return self._numbers[1 + slot * len(FIELDS) + field]

    def set(self, slot: int, field: int, value: int) -> None:
        self._numbers[1 + slot * len(FIELDS) + field] = value

    def add(self, slot: int, field: int) -> None:
        self._numbers[1 + slot * len(FIELDS) + field] += 1

    def total(self, field: int) -> int:
        return sum(self.get(slot, field) for slot in range(SLOTS))


class Replica:
    """A member with its replica, which was heard `since` a place of the log by the member that is named there.

    A member that joins or returns asks for the state of those who have heard the log before; `asked` is whether such a
    question has no answer yet. `whole` is whether it knows of everybody from the beginning.
    """

    def __init__(self, folder: Path, board: Board, slot: int) -> None:
        self.board, self.slot = board, slot
        self.carrier = HostCarrier.at(folder)
        log = self.carrier.join(b"hammered", time.monotonic())
        assert log is not None, self.carrier.reason
        self.log = log
        self.number, self.said = -1, 0
        self.last: dict[int, int] = {}
        self.since = 0, -1
        self.asked = self.whole = False
        self._none_since = self._none_last = 0.0

    def begin(self, slot: int) -> None:
        """In a child: a process that has said nothing, and is no member yet."""
        self.slot, self.number, self.said = slot, -1, 0

    def step(self, speaks: bool, stops: bool = False) -> None:
        now = time.monotonic()
        step = self.log.enter(now)
        taken = int(1e6 * (time.monotonic() - now))
        self.board.set(self.slot, LONGEST, max(taken, self.board.get(self.slot, LONGEST)))
        assert not self.log.ended, self.log.ended
        if step is None:
            self._wait(now)
            return
        self._none_since = 0.0
        self.board.add(self.slot, STEPS)
        if stops and step is not ALONE and not step.away:
            self.board.add(self.slot, STOPPED)
            os.kill(os.getpid(), signal.SIGSTOP)
        if step is ALONE:
            if self.log.member != self.number:
                self.since = 0, self.log.member
            self.whole = True
            self.log.leave([], None)
            return
        records = []
        joins = not step.away and self.log.member != self.number
        if joins:
            # What a new process kept before it joined is said under its number.
            self.number, self.said = self.log.member, self.said if self.number < 0 else 0
        if joins or step.returned:
            self.last.clear()
            self.whole = False
        for entry in step.entries:
            self._replay(entry.member, entry.payload)
        if joins or step.returned:
            self.since, self.asked = (step.place, self.number), False
            records.append(Record(now, b"? %d" % step.place))
        # While it is away, a member says less than what it may keep.
        if speaks and (random.random() < 0.1 if step.away else step.members > 1):
            for _ in range(random.randrange(1, 4)):
                records.append(Record(now, b"%d %s" % (self.said, b"x" * random.randrange(300))))
                self.said += 1
        if self.said and self.number >= 0:
            self.last[self.number] = self.said - 1
        if step.away:
            self.board.add(self.slot, AWAY)
        head = Head(0, 0, now, (1.0,) * 10) if random.random() < 0.5 else None
        if self.asked and not step.away:
            self.asked = False
            records.append(Record(now, b"= " + json.dumps([self.since, self.last, self.whole]).encode()))
        self.log.leave(records, head)
        self.board.set(self.slot, MEMBERS, step.members)
        self.board.set(self.slot, DIGEST, hash(tuple(sorted(self.last.items()))))

    def _replay(self, member: int, payload: bytes) -> None:
        if not payload:
            self.last.pop(member, None)
            return
        word, rest = payload.split(b" ", 1)
        if word == b"?":
            self.asked = self.asked or self.since < (int(rest), member)
            return
        if word == b"=":
            since, last, whole = json.loads(rest)
            if tuple(since) <= self.since:
                self.asked = False
            if tuple(since) < self.since:
                self.since = since[0], since[1]
                self.last = {int(each): number for each, number in last.items()}
                self.whole = whole
            return
        number = int(word)
        if number != self.last.get(member, -1 if self.whole else number - 1) + 1:
            self.board.add(self.slot, BROKEN)
            sys.stderr.write(f"{member} said {number} after {self.last.get(member)}\n")
        self.last[member] = number

    def _wait(self, now: float) -> None:
        """A member waits for a state once, and then for the lock once, by the instants that it gives itself.

        Each look may be `LOCK_WAIT_SECONDS` after the one before, so that the lock is first found taken after twice of
        it.
        """
        if not self._none_since or now - self._none_last > LOCK_WAIT_SECONDS:
            self._none_since = now
        self._none_last = now
        if now - self._none_since >= 3 * LOCK_WAIT_SECONDS:
            self.board.add(self.slot, LATE)


def member(replica: Replica, slot: int, seed: int, parent: int) -> None:
    """Steps until told to end, or until the parent has ended; never returns."""
    code = 1
    try:
        random.seed(seed)
        board = replica.board
        replica.begin(slot)
        while board.phase != END and os.getppid() == parent:
            replica.step(board.phase in (SPEAK, SPEAK_ONLY))
            if board.phase == SPEAK and random.random() < 0.01:
                _grandchild(replica)
            time.sleep(random.random() * 0.002)
        replica.carrier.close()
        code = 0
    except BaseException:
        traceback.print_exc()
        replica.board.add(slot, ERRORS)
    finally:
        os._exit(code)


def _grandchild(replica: Replica) -> None:
    """Forks a process that takes some steps as a member of its own, and ends without a word."""
    pid = os.fork()
    if not pid:
        replica.begin(SLOTS - 1)
        for _ in range(3):
            replica.step(True)
        os._exit(0)
    os.waitpid(pid, 0)


class Parent:
    """The members of slots 0 to `count` - 1, and the parent's own in the slot after these."""

    def __init__(self, folder: Path, count: int, seed: int, inherits: bool) -> None:
        self.folder, self.count, self.inherits = folder, count, inherits
        self.board = Board()
        self.own = Replica(folder, self.board, count)
        self.pids: dict[int, int] = {}
        self.seed = seed
        random.seed(seed)
        for slot in range(count):
            self.fork(slot)

    def fork(self, slot: int) -> None:
        self.seed += 1
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            replica = self.own if self.inherits else Replica(self.folder, self.board, slot)
            member(replica, slot, self.seed, parent)
        self.pids[slot] = pid

    def kill(self, slot: int) -> None:
        os.kill(self.pids[slot], signal.SIGKILL)
        os.waitpid(self.pids.pop(slot), 0)

    def agree(self) -> bool:
        """Whether all replicas become equal once nobody speaks, each with all live members and no other."""
        self.board.phase = LISTEN
        deadline = time.monotonic() + MOST_SECONDS
        slots = [*self.pids, self.count]
        while time.monotonic() < deadline:
            self.own.step(False)
            seen = {(self.board.get(slot, DIGEST), self.board.get(slot, MEMBERS)) for slot in slots}
            if len(seen) == 1 and next(iter(seen))[1] == len(slots):
                return True
            time.sleep(0.002)
        sys.stderr.write(f"{[[self.board.get(slot, field) for field in FIELDS] for slot in slots]}\n")
        return False

    def end(self) -> dict[str, int]:
        self.board.phase = END
        failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in self.pids.values())
        self.own.carrier.close()
        names = {"steps": STEPS, "broken": BROKEN, "late": LATE, "away": AWAY, "errors": ERRORS}
        longest = max(self.board.get(slot, LONGEST) for slot in range(SLOTS))
        found = {name: self.board.total(field) for name, field in names.items()}
        return {**found, "failed": failed, "longest_us": longest}


def kills(parent: Parent, count: int) -> dict[str, int]:
    """Kills a member at a random instant and forks another, again and again; at last all at once."""
    for _ in range(count):
        time.sleep(random.random() * 0.006)
        parent.own.step(True)
        slot = random.randrange(parent.count)
        parent.kill(slot)
        parent.fork(slot)
    agreed = parent.agree()
    parent.board.phase = SPEAK_ONLY
    time.sleep(0.02)
    for slot in list(parent.pids):
        parent.kill(slot)
    # All others are dead, so nobody has the lock, whatever they were doing.
    free = parent.own.log.enter(time.monotonic())
    parent.own.log.leave([], None)
    return {"agreed": agreed, "free": free is not None, **parent.end()}


def storms(parent: Parent, count: int) -> dict[str, int]:
    """Forks many children at once, again and again; each speaks for some steps, and every other one is killed."""
    failed = 0
    for _ in range(count):
        pids = []
        for place in range(STORM):
            parent.seed += 1
            pid = os.fork()
            if not pid:
                _gust(parent, dies=place % 2 == 0)
            pids.append(pid)
        for place, pid in enumerate(pids):
            _, status = os.waitpid(pid, 0)
            failed += status != (signal.SIGKILL if place % 2 == 0 else 0)
            parent.own.step(True)
    return {"agreed": parent.agree(), "storms_failed": failed, **parent.end()}


def _gust(parent: Parent, dies: bool) -> None:
    """Take ten steps as a child of a storm, and end by a kill or without a word; never returns."""
    code = 1
    try:
        random.seed(parent.seed)
        replica = parent.own if parent.inherits else Replica(parent.folder, parent.board, SLOTS - 1)
        replica.begin(SLOTS - 1)
        for _ in range(random.randrange(1, 20) if dies else 10):
            replica.step(True)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def stops(parent: Parent, count: int) -> dict[str, int]:
    """Stops a member inside its step; the others must go on without it, and be one again when it continues."""
    moved = 0
    for _ in range(count):
        slot = parent.count + 1
        pid = os.fork()
        if not pid:
            stopped = Replica(parent.folder, parent.board, slot)
            while not parent.board.get(slot, STEPS):
                stopped.step(True)
                time.sleep(0.001)
            while not parent.board.get(slot, STOPPED):
                stopped.step(True, stops=True)
            stopped.carrier.close()
            os._exit(0)
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        _advance(parent, lambda slot: parent.board.get(slot, AWAY))
        moved += 1
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        _advance(parent, lambda slot: parent.board.get(slot, STEPS) - parent.board.get(slot, AWAY))
        parent.board.set(slot, STEPS, 0)
        parent.board.set(slot, STOPPED, 0)
    return {"agreed": parent.agree(), "moved": moved, **parent.end()}


def _advance(parent: Parent, count: Callable[[int], int]) -> None:
    """Wait until a count of each member has grown."""
    before = {slot: count(slot) for slot in parent.pids}
    deadline = time.monotonic() + MOST_SECONDS
    while any(count(slot) == number for slot, number in before.items()):
        assert time.monotonic() < deadline, "a member takes no step"
        time.sleep(0.005)


def main(folder: str, mode: str, count: str, seed: str, inherits: str) -> None:
    parent = Parent(Path(folder), 4, int(seed), inherits == "inherits")
    try:
        sys.stdout.write(json.dumps({"kills": kills, "stops": stops, "storms": storms}[mode](parent, int(count))))
    finally:
        # Members that outlive a parent that failed would keep its output open.
        parent.board.phase = END


if __name__ == "__main__":
    main(*sys.argv[1:])
