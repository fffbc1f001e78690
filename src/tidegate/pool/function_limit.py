"""Limit of the functions in flight in one runner: it follows the keys, the machine, and the speed of own work.

Theory of operation. A function is *in a call* while one of its governed calls is in flight, or waits in a key's queue.
Otherwise it is *at work*: before, between and after its calls. The keys bound the functions in calls, because the
dispatcher starts a function only with a permit of the key that it asks first. This module bounds the others.

*At work* at most `WorkMargin.allowed` functions may be at once. It starts at `LEAST_FUNCTIONS`. By Little's law, the
functions at work divided by the seconds that each one works is the number that finish work per second. The margin
doubles while twice as many at work finish more per second: then they mostly wait. Functions that compute share the
processors, so twice as many take twice as long. The margin then goes back, and is tried again later.

*In all* at most `bound` functions may be in flight. It starts at `FIRST_FUNCTIONS` and doubles each time it is reached,
as long as free memory and file descriptors carry more. Their rows are bounded in bytes, by a share of the free memory.

A configured `max_concurrency` replaces the margin and the bound. A function that waits in a queue does not count there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from tidegate.admission.process import FreeResources, measure

LEAST_FUNCTIONS = 20
"""Functions at work that are always allowed (Phoenix: 20), and rows that may be in flight however large they are."""

FIRST_FUNCTIONS = 1000
"""First bound of the functions in flight, and highest number at work (openai, anthropic: max_connections=1000)."""

MAX_FUNCTIONS = 100_000
"""Highest bound of the functions in flight. Chosen: no machine carries more threads or connections."""

MEASURE_SECONDS = 1.0
"""Seconds between two measurements of free memory and descriptors, at least."""

MIN_MEASURED_FUNCTIONS = 100
"""Functions in flight from which on the machine is measured: fewer always fit."""

FIRST_CHARACTERS = 64 * 1024 * 1024
"""Characters of rows in flight, where free memory is unknown."""

MIN_CHARACTERS = 16 * 1024 * 1024
"""Characters of rows in flight that are always allowed."""

BYTES_PER_CHARACTER = 16
"""Bytes of free memory that each further character of a row in flight needs. A row of 1 MB takes some 6 bytes a
character while it is sent: row, request, encoded body."""

WORTHWHILE_GAIN_SHARE = 0.3
"""Share of the due gain that a higher margin has to bring: twice as many at work must finish 1.3 times as many."""

SATURATED_SHARE = 0.8
"""Share of the margin that must be at work when a function begins to work, for its time to count."""

CHANGED_TIME_FACTOR = 2.0
"""Factor on the time at work at which a raised margin is given up: the functions do something else now."""

FIRST_HOLD_SECONDS = 10.0
"""Seconds after a raise that brought nothing before the next one; they double each time."""

MAX_HOLD_SECONDS = 160.0
"""Most seconds of that wait."""


class Hold(Enum):
    """Reason for which no other function may start."""

    CONFIGURED = "concurrency"
    OWN_WORK = "own work"
    MEMORY = "memory"
    DESCRIPTORS = "descriptors"
    MOST = "functions"


class Worker(Protocol):
    """Function in flight, as this module counts it: `size` characters of its row, and its present time at work."""

    size: int
    at_work_since: float | None
    beside: int
    over: bool


class WorkMargin:
    """Number of functions that may be at work at once: `allowed`. Instants are monotonic seconds."""

    __slots__ = ("_at_work", "_before", "_count", "_hold", "_hold_until", "_known", "_seconds", "_since", "allowed")

    def __init__(self) -> None:
        self.allowed = LEAST_FUNCTIONS
        self._since = self._hold_until = 0.0
        self._hold = FIRST_HOLD_SECONDS
        # Margin and functions finished per second before the present raise; None where none is on trial.
        self._before: tuple[int, float] | None = None
        # Mean seconds at work at a raised margin.
        self._known: float | None = None
        self._clear()

    def worked(self, beside: int, since: float, now: float) -> bool:
        """Add a function that worked as the `beside`-th at once, if the margin was in use; return whether more may."""
        if since < self._since or beside < SATURATED_SHARE * self.allowed:
            return False
        self._count += 1
        self._at_work += beside
        self._seconds += now - since
        return self._count >= self.allowed and self._judge(now)

    def _judge(self, now: float) -> bool:
        mean = self._seconds / self._count
        rate = self._at_work / self._count / max(mean, 1e-9)
        before, allowed = self._before, self.allowed
        self._clear()
        if before is not None:
            self._before = None
            margin, slower = before
            if rate < slower * (1.0 + WORTHWHILE_GAIN_SHARE * (allowed / margin - 1.0)):
                self._set(margin, now)
                self._hold_until = now + self._hold
                self._hold = min(MAX_HOLD_SECONDS, 2.0 * self._hold)
                return False
            self._hold, self._known = FIRST_HOLD_SECONDS, mean
        elif self._known is not None and allowed > LEAST_FUNCTIONS and mean > CHANGED_TIME_FACTOR * self._known:
            self._known = None
            self._set(LEAST_FUNCTIONS, now)
            return False
        if now < self._hold_until or allowed >= FIRST_FUNCTIONS:
            return False
        self._before = (allowed, rate)
        self._set(min(FIRST_FUNCTIONS, 2 * allowed), now)
        return True

    def _set(self, allowed: int, now: float) -> None:
        self.allowed = allowed
        self._since = now

    def _clear(self) -> None:
        self._count, self._at_work, self._seconds = 0, 0, 0.0


class FunctionLimit:
    """Functions in flight in one runner, and whether another one may start.

    `configured` is an explicit `max_concurrency`. `wake` is called, in any thread, when a function that the margin held
    back may start. The other methods run in the event loop's thread, except `works` and `calls`. `held_by` is what the
    last `has_room` met.
    """

    def __init__(
        self,
        configured: int | None,
        clock: Callable[[], float],
        wake: Callable[[], None],
        free: Callable[[], FreeResources] = measure,
    ) -> None:
        self.configured = configured
        self.in_flight = self.lent = self.size = 0
        self.bound, self.budget = FIRST_FUNCTIONS, FIRST_CHARACTERS
        self.margin = WorkMargin()
        self.held_by: Hold | None = None
        self._wanted = FIRST_FUNCTIONS
        self._scarce = Hold.MOST
        self._clock = clock
        self._wake = wake
        self._free = free
        self._measured_at: float | None = None
        # Threads and signal handlers add to these without a lock; the loop's thread reads them.
        self._at_work: set[Worker] = set()
        self._worked: deque[tuple[int, float, float]] = deque(maxlen=MAX_FUNCTIONS)
        self._short = False

    @property
    def free(self) -> int:
        """Return the number of functions that could start now, as far as counts tell."""
        if self.configured is not None:
            return self.configured - (self.in_flight - self.lent)
        return min(self.bound - self.in_flight, self.margin.allowed - len(self._at_work))

    def has_room(self) -> bool:
        self.held_by = self._holds()
        return self.held_by is None

    def started(self, worker: Worker) -> None:
        self.in_flight += 1
        self.size += worker.size
        if self.in_flight >= MIN_MEASURED_FUNCTIONS:
            self._measure()
        self.works(worker)

    def ended(self, worker: Worker) -> None:
        self.in_flight -= 1
        self.size -= worker.size
        self._stops(worker, over=True)

    def lend(self, change: int) -> None:
        """Count a function that begins (1) to wait in a key's queue, or continues (-1)."""
        self.lent += change

    def works(self, worker: Worker) -> None:
        """Count a function that is not in a call, or no longer; callable in any thread."""
        if worker in self._at_work:
            return
        worker.at_work_since, worker.beside = self._clock(), len(self._at_work) + 1
        self._at_work.add(worker)
        # Last, as it may end in another thread meanwhile.
        if worker.over:
            self._stops(worker, over=True)

    def calls(self, worker: Worker) -> None:
        """Count a function that is in a call now; callable in any thread."""
        self._stops(worker, over=False)

    def _stops(self, worker: Worker, *, over: bool) -> None:
        worker.over = worker.over or over
        since, worker.at_work_since = worker.at_work_since, None
        self._at_work.discard(worker)
        if since is None:
            return
        self._worked.append((worker.beside, since, self._clock()))
        short, self._short = self._short, False
        if short:
            self._wake()

    def _holds(self) -> Hold | None:
        if self.size >= self.budget and self.in_flight >= LEAST_FUNCTIONS:
            self._measure()
            if self.size >= self.budget:
                return Hold.MEMORY
        if self.configured is not None:
            return Hold.CONFIGURED if self.free <= 0 else None
        if self.in_flight >= self.bound:
            self._measure()
            if self.in_flight >= self.bound:
                return self._scarce
        while self._worked:
            self.margin.worked(*self._worked.popleft())
        # Before the look: a function that ends during it wakes the loop, perhaps in vain.
        self._short = True
        self._short = len(self._at_work) >= self.margin.allowed
        return Hold.OWN_WORK if self._short else None

    def _measure(self) -> None:
        """Set the bound and the budget by what the machine has free, at most once in `MEASURE_SECONDS` seconds."""
        now = self._clock()
        if self._measured_at is not None and now < self._measured_at + MEASURE_SECONDS:
            return
        self._measured_at = now
        free = self._free()
        if free.memory is not None:
            self.budget = max(MIN_CHARACTERS, self.size + free.memory // BYTES_PER_CHARACTER)
        more, scarce = free.calls
        if self.in_flight >= self._wanted and more is not None:
            self._wanted = min(MAX_FUNCTIONS, 2 * self._wanted)
        self.bound, self._scarce = self._wanted, Hold.MOST
        if more is not None and self.in_flight + more < self._wanted:
            self.bound, self._scarce = max(LEAST_FUNCTIONS, self.in_flight + more), Hold(scarce)
