"""Processes at one shared key that are killed, stopped inside their step and forked in storms, while others make calls.

    python -m bench.kills [--kills 2000] [--stops 20] [--storms 20] [--slots 20] [--members 6] [--seed 0]

A wait is from the first step of a call that finds the lock taken to the first that has it or goes without it, or to the
end of the call. In the first call of a process it is a wait for the state of the others, too. The time for which the
kernel had the thread wait for a processor meanwhile (`/proc/thread-self/schedstat`) is taken off, as the machine may
have other work; *wall* has it. The slots of a killed process are free when another one counts none of its calls in
flight.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum, auto
from functools import partial
from pathlib import Path

from bench.common import Check, conclude, table
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome
from tidegate.settings import Settings
from tidegate.shared_log.carrier import Step
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_log import HostLog

KEY = Key("openai", "https://api.openai.com", "killed", "m")

MOST_WAIT = 60_000
"""Microseconds that a call of a member may wait for the log."""

MOST_FREE = 2.0
"""Seconds after which the slots of a killed process must be free."""

SLOTS = 64
"""Slots of the key, far more than there are calls at once."""

HELD = 4
"""Calls that a process has in flight when it is killed."""

STORM = 40
"""Children forked at once."""

PATIENCE = 120.0
"""Seconds after which a process that does not act is given up."""

MOST_SLEPT = 0.002
"""Seconds of an answer, and of the rest after it, at most."""


class Field(IntEnum):
    """Numbers that a process writes: counts, and the most microseconds."""

    CALLS = 0
    STEPS = auto()
    OVER = auto()
    LONGEST = auto()
    LONGEST_WALL = auto()
    FIRST = auto()
    ERRORS = auto()
    MEMBERS = auto()
    LOST = auto()
    SIGN = auto()


class Phase(IntEnum):
    """What all processes do."""

    CALL = 0
    REST = auto()
    END = auto()


class Board:
    """Numbers that all processes see: the phase, and a row for each place."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._numbers = memoryview(mmap.mmap(-1, 8 * (1 + places * len(Field)))).cast("q")

    @property
    def phase(self) -> int:
        """What all processes do now."""
        return self._numbers[0]

    @phase.setter
    def phase(self, phase: int) -> None:
        self._numbers[0] = phase

    def get(self, place: int, field: Field) -> int:
        """Return a number."""
        return self._numbers[1 + place * len(Field) + field]

    def set(self, place: int, field: Field, value: int) -> None:
        """Write a number."""
        self._numbers[1 + place * len(Field) + field] = value

    def add(self, place: int, field: Field, value: int = 1) -> None:
        """Add to a number."""
        self.set(place, field, self.get(place, field) + value)

    def raise_to(self, place: int, field: Field, value: int) -> None:
        """Write a number that is larger than the one before."""
        self.set(place, field, max(value, self.get(place, field)))

    def total(self, field: Field) -> int:
        """Return the sum over all places."""
        return sum(self.get(place, field) for place in range(self.places))

    def most(self, field: Field) -> int:
        """Return the largest of all places."""
        return max(self.get(place, field) for place in range(self.places))


class Delays:
    """Seconds for which the kernel had this thread wait for a processor; 0 where it does not say so."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def read(self) -> float:
        """Return the sum since the thread began."""
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9 if self._file >= 0 else 0.0


class Member:
    """A process at the log, at one place of the board."""

    def __init__(self, folder: Path, board: Board, place: int) -> None:
        self.board, self.place = board, place
        settings = Settings(max_concurrency=SLOTS, telemetry=False, status=False)
        self.registry = RateLimitRegistry(settings, carrier=HostCarrier.at(folder))
        self._delays = Delays()
        self._is_first = True
        self._since = self._delayed = math.nan
        enter = HostLog.enter

        def timed(log: HostLog, now: float) -> Step | None:
            began, delayed = time.monotonic(), self._delays.read()
            step = enter(log, now)
            self._note(began, delayed, step is None)
            return step

        HostLog.enter = timed  # type: ignore[method-assign, assignment]

    def renew(self, place: int) -> None:
        """Begin in a child."""
        self.place, self._delays, self._is_first, self._since = place, Delays(), True, math.nan

    def _note(self, began: float, delayed: float, is_busy: bool) -> None:
        if math.isnan(self._since):
            self._since, self._delayed = began, delayed
        if is_busy:
            return
        wall = time.monotonic() - self._since
        waited = int(1e6 * (wall - (self._delays.read() - self._delayed)))
        self._since = math.nan
        board, place = self.board, self.place
        if self._is_first:
            board.raise_to(place, Field.FIRST, waited)
            return
        board.add(place, Field.STEPS)
        board.add(place, Field.OVER, waited > MOST_WAIT)
        board.raise_to(place, Field.LONGEST, waited)
        board.raise_to(place, Field.LONGEST_WALL, int(1e6 * wall))

    def call(self) -> None:
        """Make one call."""
        # What no step has appended before is waited for by no call.
        self._since = math.nan
        self.registry.execute(KEY, lambda: time.sleep(random.random() * MOST_SLEPT))
        if not math.isnan(self._since):
            self._note(self._since, self._delayed, is_busy=False)
        self._is_first = False
        self.board.add(self.place, Field.CALLS)

    def look(self) -> None:
        """Write by how many processes the key is shared."""
        state = self.registry.snapshot().keys[KEY]
        self.board.set(self.place, Field.MEMBERS, state.members)
        self.board.set(self.place, Field.LOST, bool(state.share_lost))

    def begin(self) -> Permit:
        """Return the permit of a call that is in flight from now on."""
        while not isinstance(permit := self.registry.try_admit(KEY), Permit):
            time.sleep(0.001)
        return permit

    def foreign(self) -> int:
        """Return the number of calls of other processes that count as in flight here, after a step."""
        self.registry.settle(self.begin(), Outcome(Kind.OK, status=200))
        admission = self.registry._queues[KEY].admission
        return len(admission.permits_in_flight) - admission.in_flight


class Fleet:
    """Processes forked by this one, which is no member itself."""

    def __init__(self, folder: Path, members: int, seed: int) -> None:
        # The last two places are those of victims and of the children of a storm.
        self.folder, self.members, self.board = folder, members, Board(members + 2)
        self.pids: dict[int, int] = {}
        self._seed = seed
        random.seed(seed)

    def fork(self, place: int, work: Callable[[Board, int], object]) -> int:
        """Fork a process that does its work and ends."""
        self._seed += 1
        pid = os.fork()
        if not pid:
            _end_with(self.board, place, self._seed, work)
        self.pids[place] = pid
        return pid

    def fill(self) -> None:
        """Fork the members that make calls."""
        for place in range(self.members):
            self.fork(place, self.serve)
        _until(lambda: all(self.board.get(place, Field.CALLS) for place in range(self.members)), "the first calls")

    def serve(self, board: Board, place: int) -> None:
        """Make calls until told to end."""
        parent = os.getppid()
        member = Member(self.folder, board, place)
        while board.phase != Phase.END and os.getppid() == parent:
            if board.phase == Phase.CALL:
                member.call()
                time.sleep(random.random() * MOST_SLEPT)
            else:
                member.call()
                member.look()
                time.sleep(0.02)

    def kill(self, place: int) -> None:
        """Kill a process, and wait until it is no more."""
        pid = self.pids.pop(place)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def agree(self) -> float:
        """Return after how many seconds all members share by their number, and with nobody else."""
        self.board.phase = Phase.REST
        began = time.monotonic()

        def agreed() -> bool:
            seen = {(self.board.get(place, Field.MEMBERS), self.board.get(place, Field.LOST)) for place in self.pids}
            return seen == {(len(self.pids), 0)}

        _until(agreed, "members that share again")
        return time.monotonic() - began

    def end(self) -> None:
        """Let all processes end."""
        self.board.phase = Phase.END
        for pid in self.pids.values():
            if os.waitpid(pid, 0)[1]:
                self.board.add(0, Field.ERRORS)
        self.pids.clear()


def _end_with(board: Board, place: int, seed: int, work: Callable[[Board, int], object]) -> None:
    """Do the work of a forked process, and end; never return."""
    code = 1
    try:
        random.seed(seed)
        work(board, place)
        code = 0
    except BaseException:
        traceback.print_exc()
        board.add(place, Field.ERRORS)
    finally:
        os._exit(code)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.002)


@contextmanager
def fleet(members: int, seed: int) -> Iterator[Fleet]:
    """Members at a log in a folder of their own; all are killed where something fails."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", dir="/dev/shm") as folder:
        made = Fleet(Path(folder) / "logs", members, seed)
        try:
            yield made
            made.end()
        finally:
            for place in list(made.pids):
                made.kill(place)


def kills(made: Fleet, count: int) -> float:
    """Kill a member at a random instant and fork another, again and again; return seconds until the others are one."""
    made.fill()
    for _ in range(count):
        time.sleep(random.random() * 0.02)
        place = random.randrange(made.members)
        made.kill(place)
        made.fork(place, made.serve)
    return made.agree()


def stops(made: Fleet, count: int) -> float:
    """Stop a process inside its step, again and again, while the others make calls."""
    made.fill()
    place = made.members
    for _ in range(count):
        made.board.set(place, Field.SIGN, 0)
        pid = made.fork(place, lambda board, place: _stop_inside(made.folder, board, place))
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise RuntimeError("a process ended that was to stop")
        before = [made.board.get(each, Field.CALLS) for each in range(made.members)]

        def moved(before: Sequence[int] = before) -> bool:
            return all(made.board.get(each, Field.CALLS) >= calls + 20 for each, calls in enumerate(before))

        _until(moved, "20 calls of each member beside a stopped one")
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        del made.pids[place]
    return made.agree()


def _stop_inside(folder: Path, board: Board, place: int) -> None:
    """Make calls, and stop between the beginning and the end of the step of one of them."""
    member = Member(folder, board, place)
    for _ in range(3):
        member.call()
    leave = HostLog.leave

    def stop(log: HostLog, *given: object) -> None:
        HostLog.leave = leave  # type: ignore[method-assign]
        os.kill(os.getpid(), signal.SIGSTOP)
        leave(log, *given)  # type: ignore[arg-type]

    HostLog.leave = stop  # type: ignore[method-assign, assignment]
    # Its own call takes as long as it is stopped, so nobody measures it.
    member.registry.execute(KEY, lambda: None)


def storms(made: Fleet, count: int) -> float:
    """Fork children of a member, many at once; each makes calls, and every other one is killed amid them."""
    made.fill()
    place = made.members
    made.fork(place, lambda board, place: _storm(made.folder, board, place, count))
    if os.waitpid(made.pids.pop(place), 0)[1]:
        made.board.add(place, Field.ERRORS)
    return made.agree()


def _storm(folder: Path, board: Board, place: int, count: int) -> None:
    member = Member(folder, board, place)
    member.call()
    for storm in range(count):
        pids = []
        for number in range(STORM):
            pid = os.fork()
            if not pid:
                _end_with(board, place + 1, storm * STORM + number, partial(_gust, member, number % 2 == 1))
            pids.append(pid)
        for number, pid in enumerate(pids):
            expected = signal.SIGKILL if number % 2 else 0
            board.add(place, Field.ERRORS, os.waitpid(pid, 0)[1] != expected)
            member.call()


def _gust(member: Member, is_killed: bool, board: Board, place: int) -> None:
    """Be a child of a storm."""
    member.renew(place)
    for _ in range(5):
        member.call()
    if is_killed:
        member.registry.execute(KEY, lambda: os.kill(os.getpid(), signal.SIGKILL))


def freed(made: Fleet, count: int) -> list[float]:
    """Kill a process with calls in flight, again and again; return the seconds until they count no more in another."""
    board, found = made.board, []
    watcher, victim = 0, made.members
    made.fork(watcher, lambda board, place: _watch(made.folder, board, place))
    for _ in range(count):
        made.fork(victim, lambda board, place: _hold(made.folder, board, place))
        _until(lambda: board.get(watcher, Field.SIGN) == HELD, "calls that another process has in flight")
        # At any instant of the period in which members are looked at.
        time.sleep(random.random())
        began = time.monotonic()
        made.kill(victim)
        _until(lambda: board.get(watcher, Field.SIGN) == 0, "the end of the calls of a killed process")
        found.append(time.monotonic() - began)
    return found


def _watch(folder: Path, board: Board, place: int) -> None:
    """Write the number of calls of others in flight."""
    member = Member(folder, board, place)
    while board.phase != Phase.END:
        board.set(place, Field.SIGN, member.foreign())
        time.sleep(0.002)


def _hold(folder: Path, board: Board, place: int) -> None:
    """Hold some calls in flight until the process is killed."""
    member = Member(folder, board, place)
    held = [member.begin() for _ in range(HELD)]
    while held:
        signal.pause()


HEADER = ("", "done", "calls", "steps", "longest us", "wall us", "first us", "over", "errors", "one again s")


def main() -> int:
    """Print the tables; return 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Kills, stops and storms of forks at one shared key")
    parser.add_argument("--kills", type=int, default=2000, help="kills at random instants (default %(default)s)")
    parser.add_argument("--stops", type=int, default=20, help="stops inside a step (default %(default)s)")
    parser.add_argument("--storms", type=int, default=20, help=f"storms of {STORM} forks (default %(default)s)")
    parser.add_argument("--slots", type=int, default=20, help="kills of a process with all slots (default %(default)s)")
    parser.add_argument("--members", type=int, default=6, help="processes that make calls (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows, asked, figures = [], list[Check](), dict[str, object]()
    for name, act, count in (
        ("kills", kills, given.kills),
        ("stops", stops, given.stops),
        ("storms", storms, given.storms),
    ):
        if not count:
            continue
        with fleet(given.members, given.seed) as made:
            again = act(made, count)
        board = made.board
        numbers = {
            field.name.lower(): board.total(field) for field in (Field.CALLS, Field.STEPS, Field.OVER, Field.ERRORS)
        }
        numbers |= {field.name.lower(): board.most(field) for field in (Field.LONGEST, Field.LONGEST_WALL, Field.FIRST)}
        figures[name] = {**numbers, "count": count, "one_again": again}
        shown = [numbers[each] for each in ("calls", "steps", "longest", "longest_wall", "first", "over", "errors")]
        rows.append([name, str(count), *map(str, shown), f"{again:.2f}"])
        asked.append(Check(f"{name}: longest wait for the log, ms", numbers["longest"] / 1000, MOST_WAIT / 1000))
        asked.append(Check(f"{name}: processes that failed", numbers["errors"], 0))
        print(*rows[-1], file=sys.stderr, flush=True)
    if given.slots:
        with fleet(1, given.seed) as made:
            seconds = freed(made, given.slots)
        figures["slots"] = seconds
        asked.append(Check("slots of a killed process: seconds until free", max(seconds), MOST_FREE))
        asked.append(Check("slots: processes that failed", made.board.total(Field.ERRORS), 0))
    table("Kills, stops and storms at one key", HEADER, rows)
    return conclude("kills", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
