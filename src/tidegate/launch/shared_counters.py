"""Counter files of the processes of one run: one mapped file each, which the parent may read at any time.

Theory of operation. Every key that a registry opens gets a row in its process's counter file, and counts there from
then on: a store into mapped memory replaces an attribute. No thread, socket or final message is needed, and the counts
survive a death by a signal or `os._exit` (a worker of `multiprocessing.Pool` always ends so). A row has one writer,
under its registry's lock. The parent may read it between two stores, and reads it again later.

A file begins with the header of `shared_file`. A row holds integers, then doubles, then the name of the key, then the
names of its quotas.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import ExecutorGroup, Waiter, WaitQueue
from tidegate.core.circuit_breaker import CLOSED
from tidegate.core.display import printable
from tidegate.core.limiter_state import KeyCounts, KeyQuotas
from tidegate.core.snapshot import day_reset, latest_pause, queue_forecast
from tidegate.launch.shared_file import HEADER, packed

COUNTS = (
    "attempts",
    "answered",
    "refused",
    "failed",
    "abandoned",
    "ignored",
    "resent",
    "absorbed",
    "given_up",
    "unsent",
    "failed_calls",
    "replayed",
    "left",
)
INTEGERS = (*COUNTS, "waiting", "slots", "members", "most_members", "carrier")
PLACES = {name: place for place, name in enumerate(INTEGERS)}
"""Index of each integer in a row; the first ones are those of `tidegate.core.limiter_state.KeyCounts`."""

CARRIERS = ("", "file", "redis", "postgresql", "ray")
"""Kinds of carrier by which the limits of a key are shared, by the number that a row has for each; 0 is any other."""

INTEGER_CELLS = 20
"""Integers of 8 bytes in a row. Raising it makes every file larger. Chosen: room for those of `INTEGERS`, and for later
ones."""


QUOTA_CELLS = 8
"""Doubles of 8 bytes for each quota. Raising it makes every file larger. Derived from the numbers of a `QuotaRow`."""

KEY_CELLS = 10
"""Doubles of 8 bytes for a key. Raising it makes every file larger. Derived from the doubles of a `KeyRow`."""


QUOTAS = 4
"""Quotas of one key that are kept; further ones are not. Raising it makes every file larger. Chosen: providers announce
requests, tokens, input tokens and output tokens."""

DOUBLE_CELLS = KEY_CELLS + QUOTA_CELLS * QUOTAS
"""Doubles of a row: the instants and durations of the key, then those of each quota."""

(
    CHANGED_AT, LOOKED_AT, PAUSED_UNTIL, BROKEN_UNTIL, LATENCY, PACE, STATED, STATED_UNTIL, DAY_UNTIL, SUSPENDED_UNTIL,
) = range(KEY_CELLS)  # fmt: skip
"""Indexes of the key's own doubles."""

CONTINUOUS = 0.0
"""Value of `back_at` for a quota that refills continuously and has no boundary."""

DOUBLES_AT = 8 * INTEGER_CELLS
KEY_AT = DOUBLES_AT + 8 * DOUBLE_CELLS

KEY_BYTES = 256

"""Bytes of a key's name, with a final zero; a longer name is cut. Raising it makes every file larger. Chosen: provider,
host, digest and model fit."""

NAME_BYTES = 32
"""Bytes of a quota's name, with a final zero; a longer name is cut. Raising it makes every file larger. Chosen: longer
than the names in the tables of `providers`."""

ROW_BYTES = KEY_AT + KEY_BYTES + QUOTAS * NAME_BYTES

ROWS = 16
"""Keys of one file; a process with more of them creates another file. Raising it makes every file larger. Chosen: most
processes have fewer keys."""

SUFFIX = ".sheet"


class QuotaRow(NamedTuple):
    """One quota as a process sees it: `used` units since `since` (monotonic seconds), when `stood` were left.

    At the last observation `level` units were left and the next boundary was at `back_at` (`CONTINUOUS`: none). A
    waiting call was then charged `amount` on average.
    """

    name: str
    limit: float
    window: float
    used: float
    since: float
    stood: float
    level: float = 0.0
    back_at: float = CONTINUOUS
    amount: float = 0.0


class KeyRow(NamedTuple):
    """One key in one process; `counts` holds the integers that `INTEGERS` names. Instants are monotonic seconds.

    `members` processes share the limits of the key now, this one included, and `most_members` did at one time. The
    limits and what is used of them are then those of all of them.

    `latency` is the mean seconds of an answer, 0 before the first; `pace` is in calls a second, 0 where nothing paces.
    The provider asked for a pause of `stated` seconds, which ends at `stated_until`; `day_until` is the reset that it
    named for a spent quota of the day. All three are 0 where it named none. The program has closed the key until
    `suspended_until`.
    """

    key: str
    counts: dict[str, int]
    changed_at: float
    quotas: tuple[QuotaRow, ...]
    looked_at: float = 0.0
    paused_until: float = 0.0
    broken_until: float = 0.0
    latency: float = 0.0
    pace: float = 0.0
    stated: float = 0.0
    stated_until: float = 0.0
    day_until: float = 0.0
    suspended_until: float = 0.0

    @property
    def carrier(self) -> str:
        """Return by what the limits are or were shared, empty where they never were."""
        number = self.counts["carrier"]
        return CARRIERS[number] if 0 <= number < len(CARRIERS) else ""

    @property
    def in_flight(self) -> int:
        """Return the attempts under way."""
        ended = ("answered", "refused", "failed", "abandoned")
        return max(0, self.counts["attempts"] - sum(self.counts[name] for name in ended))


def integers(row: memoryview) -> memoryview[int]:
    """Return the integers of a row, for reading and writing."""
    return row[:DOUBLES_AT].cast("q")


def doubles(row: memoryview) -> memoryview[float]:
    """Return the doubles of a row, for reading and writing."""
    return row[DOUBLES_AT:KEY_AT].cast("d")


def quota_at(number: int) -> int:
    """Return the index of the first double of a quota."""
    return KEY_CELLS + QUOTA_CELLS * number


def name_key(row: memoryview, key: str) -> None:
    """Write the key's name to the row; readers see the row from then on."""
    _write(row, KEY_AT, KEY_BYTES, key)


def name_quota(row: memoryview, number: int, name: str) -> None:
    """Write the name of a quota to the row; readers see the quota from then on."""
    _write(row, KEY_AT + KEY_BYTES + number * NAME_BYTES, NAME_BYTES, name)


def read(row: memoryview) -> KeyRow | None:
    """Return the content of a row; None for a row without a key."""
    # The text may end up on a terminal, and any process may have written it.
    key = printable(_text(row, KEY_AT, KEY_BYTES))
    if not key:
        return None
    numbers, seconds = integers(row), doubles(row)
    quotas = []
    for number in range(QUOTAS):
        name = printable(_text(row, KEY_AT + KEY_BYTES + number * NAME_BYTES, NAME_BYTES))
        if name:
            at = quota_at(number)
            quotas.append(QuotaRow(name, *seconds[at : at + QUOTA_CELLS]))
    counts = {name: numbers[place] for name, place in PLACES.items()}
    return KeyRow(key, counts, seconds[CHANGED_AT], tuple(quotas), *seconds[LOOKED_AT:KEY_CELLS])


def _write(row: memoryview, at: int, size: int, text: str) -> None:
    cut = text.encode("utf-8", "replace")[: size - 1]
    row[at : at + len(cut)] = cut


def _text(row: memoryview, at: int, size: int) -> str:
    return bytes(row[at : at + size]).partition(b"\0")[0].decode("utf-8", "ignore")


QUOTAS_EVERY = 0.1
"""Seconds after which a key's quotas are written again while more than half of each is left. Raising it saves time per
call and shows older numbers. Chosen: shorter than the refresh period of the status line."""

OUTLOOK_EVERY = 0.5
"""Seconds after which the forecast for the waiting calls is written again. Raising it saves time and shows an older
forecast. Derived from the refresh period of the status line (`cli.watch.LOOK_EVERY`)."""


class CounterFile:
    """Counter files of this process: another file when one is full, and separate files after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: weakref.WeakSet[SharedKeyCounts] = weakref.WeakSet()
        self.forked()

    def forked(self) -> None:
        """Start new rows: the earlier ones are the parent's."""
        self._born = time.time_ns()
        self._files = 0
        self._next = ROWS
        for counts in self._counts:
            counts.detach()

    def track(self, queue: KeyQueue) -> None:
        """Count in a row the events of the key queue `queue` from now on."""
        counts = SharedKeyCounts(queue, self.row)
        queue.admission.counts = counts
        queue.waiting = SharedLineLength(counts)
        self._counts.add(counts)

    def row(self) -> memoryview:
        """Return a free row; in private memory where no file can be created."""
        if self._next == ROWS:
            self._sheet, self._next = self._make(), 0
        start = HEADER.size + self._next * ROW_BYTES
        self._next += 1
        return self._sheet[start : start + ROW_BYTES]

    def _make(self) -> memoryview:
        blank = packed(bytes(ROWS * ROW_BYTES))
        pid = os.getpid()
        path = Path(self._folder) / f"{pid}-{self._born}-{self._files}-{started(pid)}{SUFFIX}"
        self._files += 1
        try:
            with path.open("x+b", buffering=0) as file:
                # Write the zeros instead of extending the file: a store into a page without disk space ends the
                # program.
                file.write(blank)
                return memoryview(mmap.mmap(file.fileno(), len(blank)))
        except OSError:
            return memoryview(bytearray(blank))


def started(pid: int) -> int:
    """Return the start of a process in clock ticks since the boot (proc(5), field 22); 0 where no /proc tells it."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def runs(pid: int, start: int) -> bool:
    """Return whether the process that began at `start` (0: unknown) still runs: its number may be another's by now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not start or started(pid) in (0, start)


_ATTEMPTS, _ANSWERED, _WAITING, _SLOTS, _MEMBERS, _MOST_MEMBERS, _CARRIER = (
    PLACES[name] for name in ("attempts", "answered", "waiting", "slots", "members", "most_members", "carrier")
)


def _kept(name: str, looks: bool = False) -> Any:
    place = PLACES[name]

    def read(counts: SharedKeyCounts) -> int:
        return counts.integers[place]

    def write(counts: SharedKeyCounts, value: int) -> None:
        counts.integers[place] = value
        if looks:
            counts.refresh()

    return property(read, write)


class SharedKeyCounts(KeyCounts):
    """Counters of one key in a row; a sent or ended attempt also writes the key's limits."""

    __slots__ = (
        "__weakref__",
        "_doubles",
        "_get_row",
        "_named",
        "_numbers",
        "_outlook_at",
        "_queue",
        "_quotas_at",
        "_row",
        "integers",
    )

    attempts = _kept("attempts")
    answered = _kept("answered", True)
    refused = _kept("refused", True)
    failed = _kept("failed", True)
    abandoned = _kept("abandoned", True)
    given_up = _kept("given_up", True)
    ignored = _kept("ignored")
    resent = _kept("resent")
    absorbed = _kept("absorbed")
    unsent = _kept("unsent")
    failed_calls = _kept("failed_calls")
    replayed = _kept("replayed")
    left = _kept("left")

    def __init__(self, queue: KeyQueue, get_row: Callable[[], memoryview]) -> None:
        self.latencies: deque[float] = deque(maxlen=100)
        self.retried_calls = 0
        self._queue = queue
        self._get_row = get_row
        self._quotas_at = self._outlook_at = float("-inf")
        self.detach()

    def detach(self) -> None:
        """Restart the counts at zero; a new row is taken at the next count."""
        row = memoryview(bytearray(ROW_BYTES))
        self._row: memoryview | None = None
        self._take(row)

    def note_sent(self, now: float) -> None:
        """Count an attempt; its end writes the other values of the row, which so are written once for most attempts."""
        self.integers[_ATTEMPTS] += 1
        if now >= self._outlook_at:
            self.refresh()

    def note_answered(self, latency: float) -> None:
        """Count an answered attempt, and write the other values of the row."""
        self.latencies.append(latency)
        self.integers[_ANSWERED] += 1
        self.refresh()

    def refresh(self) -> None:
        """Write the other values of the row: the concurrency limit, the quotas, the time."""
        if self._row is None:
            self._attach()
        admission = self._queue.admission
        now = admission.used_at
        self.integers[_SLOTS] = admission.concurrency.limit
        members = self._queue.members
        if members != self.integers[_MEMBERS]:
            self.integers[_MEMBERS] = members
            self.integers[_MOST_MEMBERS] = max(members, self.integers[_MOST_MEMBERS])
            carrier = self._queue.sharing.carrier
            self.integers[_CARRIER] = CARRIERS.index(carrier) if carrier in CARRIERS else 0
        self._doubles[CHANGED_AT] = now
        quotas = admission.quotas
        # A new quota is written at once: the program may make no call for a long time after this one.
        if not quotas.ample or now >= self._quotas_at or len(quotas.counted) > len(self._numbers):
            self._quotas_at = now + QUOTAS_EVERY
            self._write_quotas(quotas)
        if now >= self._outlook_at:
            self._outlook_at = now + OUTLOOK_EVERY
            self._look_ahead(now)
        elif admission.breaker.state is not CLOSED:
            # Also without a waiting call: a runner asks before it gives a slot away, so that no call may wait here.
            self.note_closing()

    def _write_quotas(self, quotas: KeyQuotas) -> None:
        # A quota keeps its place when one before it is forgotten.
        provenance = quotas.provenance
        for name, mirror in quotas.counted.items():
            number = self._numbers.setdefault(name, len(self._numbers))
            if number >= QUOTAS:
                continue
            facts = (mirror.limit, provenance[name].reported_window, mirror.used, mirror.since, mirror.stood)
            at = quota_at(number)
            self._doubles[at : at + len(facts)] = array("d", facts)
            if number == self._named and self._row is not None:
                name_quota(self._row, number, name)
                self._named += 1
                self._outlook_at = float("-inf")

    def waited(self, count: int) -> None:
        """Write the number of waiting calls, and the instants until which the key is closed."""
        if count and not self.integers[_WAITING]:
            self._outlook_at = float("-inf")
        self.integers[_WAITING] = count
        self.note_closing()

    def note_closing(self) -> None:
        """Write the instants until which the key is closed.

        A suspended key is shown from then on, as it may have no attempt for hours. Any other one is shown from its
        first attempt.
        """
        admission = self._queue.admission
        suspended_until = max(0.0, admission.pause.suspended_until)
        if suspended_until and self._row is None:
            self.refresh()
        pause, doubles = latest_pause(admission), self._doubles
        doubles[SUSPENDED_UNTIL] = suspended_until
        doubles[PAUSED_UNTIL] = max(0.0, pause.until)
        doubles[BROKEN_UNTIL] = 0.0 if admission.breaker.closed else max(0.0, admission.breaker.ready_at)
        doubles[STATED], doubles[STATED_UNTIL] = pause.stated, max(0.0, pause.stated_until)
        doubles[DAY_UNTIL] = max(0.0, day_reset(admission))

    def _look_ahead(self, now: float) -> None:
        self.note_closing()
        admission = self._queue.admission
        seen = queue_forecast(admission, self.integers[_WAITING], self._queue.mean_cost(), now)
        self._doubles[LOOKED_AT] = now
        self._doubles[LATENCY] = seen.latency or 0.0
        self._doubles[PACE] = seen.pace
        known = {quota.name: quota for quota in seen.quotas}
        for name, number in list(self._numbers.items())[:QUOTAS]:
            quota = known.get(name)
            facts = (0.0, CONTINUOUS, 0.0)  # a forgotten quota: it charges nothing
            if quota is not None:
                back_at = CONTINUOUS if quota.boundary_in is None else now + quota.boundary_in
                facts = quota.level, back_at, quota.amount
            for place, fact in enumerate(facts, quota_at(number) + 5):
                self._doubles[place] = fact

    def _attach(self) -> None:
        begun = self.integers
        self._row = self._get_row()
        self._take(self._row)
        self.integers[:] = begun
        name_key(self._row, str(self._queue.admission.key))

    def _take(self, row: memoryview) -> None:
        self.integers = integers(row)
        self._doubles = doubles(row)
        self._named = 0
        self._numbers: dict[str, int] = {}
        self._quotas_at = self._outlook_at = float("-inf")


class SharedLineLength(WaitQueue):
    """Wait queue that writes its length to the row of its key."""

    __slots__ = ("_counts",)

    def __init__(self, counts: SharedKeyCounts) -> None:
        super().__init__()
        self._counts = counts

    def enqueue(self, waiter: Waiter) -> ExecutorGroup:
        """Add a call, as the base class."""
        group = super().enqueue(waiter)
        self._counts.waited(self.count)
        return group

    def dequeue(self, waiter: Waiter) -> bool:
        """Remove a call, as the base class."""
        is_removed = super().dequeue(waiter)
        self._counts.waited(self.count)
        return is_removed

    def clear(self) -> None:
        """Forget all calls, as the base class."""
        super().clear()
        self._counts.waited(self.count)
