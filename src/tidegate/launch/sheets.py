"""Where the processes of one run keep what they count: a mapped file each, read by the parent whenever it likes.

Theory of operation. Every key that a registry opens gets a row of its process's sheet, and counts in it from then on:
a store into mapped memory in the place of an attribute. So there is no thread, no socket and no message at the end, and
a process that dies by a signal or `os._exit` has said everything (a worker of `multiprocessing.Pool` always does). A
row has one writer, under its registry's lock; the parent may see it between two stores, and looks again later.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.admission.key_queue import Slots
from tidegate.admission.wait_queue import Line
from tidegate.core.circuit_breaker import CLOSED
from tidegate.core.limiter_state import Counts
from tidegate.core.quota import Quotas
from tidegate.core.snapshot import outlook
from tidegate.launch import rows

QUOTAS_EVERY = 0.1
"""Seconds after which a key's quotas are written again while more than half of each is left."""

OUTLOOK_EVERY = 0.5
"""Seconds after which it is written again what lies before those who wait (the status line is drawn as often)."""


class Sheets:
    """The sheets of this process: a further file where one is full, and files of its own after a fork."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: weakref.WeakSet[KeptCounts] = weakref.WeakSet()
        self.forked()

    def forked(self) -> None:
        """Begins anew: the rows so far are the parent's."""
        self._born = time.time_ns()
        self._files = 0
        self._next = rows.ROWS
        for counts in self._counts:
            counts.detach()

    def keep(self, slots: Slots) -> None:
        """Counts in a row what happens at `slots` from now on."""
        counts = KeptCounts(slots, self.row)
        slots.admission.counts = counts
        slots.line = KeptLine(counts)
        self._counts.add(counts)

    def row(self) -> memoryview:
        """A row that nobody has; in memory of our own where there can be no file."""
        if self._next == rows.ROWS:
            self._sheet, self._next = self._make(), 0
        start = self._next * rows.ROW_BYTES
        self._next += 1
        return self._sheet[start : start + rows.ROW_BYTES]

    def _make(self) -> memoryview:
        blank = bytes(rows.ROWS * rows.ROW_BYTES)
        path = Path(self._folder) / f"{os.getpid()}-{self._born}-{self._files}{rows.SUFFIX}"
        self._files += 1
        try:
            with path.open("x+b", buffering=0) as file:
                # Written, not just lengthened: a store for which the disk has no room would be the end of the program.
                file.write(blank)
                return memoryview(mmap.mmap(file.fileno(), len(blank)))
        except OSError:
            return memoryview(bytearray(blank))


def _kept(name: str, looks: bool = False) -> Any:
    place = rows.PLACES[name]

    def read(counts: KeptCounts) -> int:
        return counts.integers[place]

    def write(counts: KeptCounts, value: int) -> None:
        counts.integers[place] = value
        if looks:
            counts.look()

    return property(read, write)


class KeptCounts(Counts):
    """The counts of one key in a row of a sheet; what is sent and what ends also writes the key's limits."""

    __slots__ = (
        "__weakref__",
        "_doubles",
        "_get_row",
        "_named",
        "_numbers",
        "_outlook_at",
        "_quotas_at",
        "_row",
        "_slots",
        "integers",
    )

    attempts = _kept("attempts", True)
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
    spared = _kept("spared")

    def __init__(self, slots: Slots, get_row: Callable[[], memoryview]) -> None:
        self.latencies: deque[float] = deque(maxlen=100)
        self._slots = slots
        self._get_row = get_row
        self._quotas_at = self._outlook_at = float("-inf")
        self.detach()

    def detach(self) -> None:
        """Counts from nothing, in a row that is taken when there is something to say."""
        row = memoryview(bytearray(rows.ROW_BYTES))
        self._row: memoryview | None = None
        self._take(row)

    def look(self) -> None:
        """Writes what stands beside the counts: the limit, the quotas, the time."""
        if self._row is None:
            self._attach()
        admission = self._slots.admission
        now = admission.used_at
        self.integers[rows.PLACES["slots"]] = admission.limit.slots
        self._doubles[rows.CHANGED_AT] = now
        quotas = admission.quotas
        if not quotas.ample or now >= self._quotas_at:
            self._quotas_at = now + QUOTAS_EVERY
            self._write_quotas(quotas)
        if now >= self._outlook_at:
            self._outlook_at = now + OUTLOOK_EVERY
            self._look_ahead(now)
        elif admission.breaker.state is not CLOSED:
            # Nobody need wait here for it: a runner asks before it gives a slot away.
            self._close()

    def _write_quotas(self, quotas: Quotas) -> None:
        # A quota keeps its place also where one before it is forgotten.
        for name, mirror in quotas.mirrors.items():
            number = self._numbers.setdefault(name, len(self._numbers))
            if number >= rows.QUOTAS:
                continue
            facts = (mirror.limit, mirror.window, mirror.used, mirror.since, mirror.stood)
            for place, fact in enumerate(facts, rows.QUOTA_CELLS * (number + 1)):
                self._doubles[place] = fact
            if number == self._named and self._row is not None:
                rows.name_quota(self._row, number, name)
                self._named += 1
                self._outlook_at = float("-inf")

    def waited(self, count: int) -> None:
        """Writes that so many wait now, and until when nobody goes."""
        if count and not self.integers[_WAITING]:
            self._outlook_at = float("-inf")
        self.integers[_WAITING] = count
        self._close()

    def _close(self) -> None:
        admission = self._slots.admission
        self._doubles[rows.PAUSED_UNTIL] = max(0.0, admission.pause.until)
        self._doubles[rows.BROKEN_UNTIL] = 0.0 if admission.breaker.closed else max(0.0, admission.breaker.ready_at)

    def _look_ahead(self, now: float) -> None:
        self._close()
        admission = self._slots.admission
        seen = outlook(admission, self.integers[_WAITING], self._slots.mean_cost(), now)
        self._doubles[rows.LOOKED_AT] = now
        self._doubles[rows.LATENCY] = seen.latency or 0.0
        self._doubles[rows.PACE] = seen.pace
        known = {quota.name: quota for quota in seen.quotas}
        for name, number in list(self._numbers.items())[: rows.QUOTAS]:
            quota = known.get(name)
            facts = (0.0, rows.CONTINUOUS, 0.0)  # of one that was forgotten: nobody is charged
            if quota is not None:
                back_at = rows.CONTINUOUS if quota.boundary_in is None else now + quota.boundary_in
                facts = quota.level, back_at, quota.amount
            for place, fact in enumerate(facts, rows.QUOTA_CELLS * (number + 1) + 5):
                self._doubles[place] = fact

    def _attach(self) -> None:
        begun = self.integers
        self._row = self._get_row()
        self._take(self._row)
        self.integers[:] = begun
        rows.name_key(self._row, str(self._slots.admission.key))

    def _take(self, row: memoryview) -> None:
        self.integers = rows.integers(row)
        self._doubles = rows.doubles(row)
        self._named = 0
        self._numbers: dict[str, int] = {}
        self._quotas_at = self._outlook_at = float("-inf")


class KeptLine(Line):
    """A line whose length stands in the row of its key."""

    __slots__ = ("_counts",)

    def __init__(self, counts: KeptCounts) -> None:
        self._counts = counts
        super().__init__()

    @property
    def count(self) -> int:
        """Return how many wait."""
        return self._counts.integers[_WAITING]

    @count.setter
    def count(self, value: int) -> None:
        self._counts.waited(value)


_WAITING = rows.PLACES["waiting"]
