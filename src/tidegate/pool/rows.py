"""Rows of a pool: their state while they are under way, their results, and the statistics of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextvars import Context
from dataclasses import asdict, dataclass, field, fields
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

from tidegate.core.snapshot import KeySnapshot
from tidegate.core.values import Cost, Key, NextStep

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failed:
    """Value of a row that failed, with `errors="return"`: its `index` in the source, and its `error`."""

    index: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class RowResult(Generic[T]):
    """End of one row: its `value`, or the `error` for which it has none.

    `verdict` is the class of its end: `answered`, `permanent`, `transient`, `unusable`, `parked` (a day quota), or
    `capacity`. `attempts` excludes the `capacity_retries`. `submit_index` counts the rows as they were pulled, and
    `complete_index` as they ended. Instants are in monotonic seconds. `seconds` is the time that its function ran,
    `waited` the rest of the time from `submitted_at` to `completed_at`, `buffer_wait` the time from then until it was
    taken.
    """

    index: int
    value: T | None
    error: BaseException | None
    verdict: NextStep
    attempts: int
    capacity_retries: int
    submit_index: int
    complete_index: int
    submitted_at: float
    completed_at: float
    buffer_wait: float
    waited: float
    seconds: float


@dataclass(slots=True, eq=False)
class PoolRow:
    """One row under way; `body` is what the source gave, `context` the consumer's context at that time.

    `key` and `cost` are those of its first call. `error` is its newest failure, until it is answered. `begun` says that
    its function has been called, `is_attempt` that the function itself was the attempt at the pool's key.
    """

    index: int
    body: Any
    context: Context
    ready_at: float
    key: Key | None = None
    cost: Cost | None = None
    attempts: int = 0
    capacity_retries: int = 0
    elsewhere: int = 0
    size: int = 0
    refused_at: float | None = None
    closed_before: float = 0.0
    seconds: float = 0.0
    completed_at: float = 0.0
    slow: bool = False
    begun: bool = False
    done: bool = False
    is_attempt: bool = False
    value: Any = None
    error: BaseException | None = None
    verdict: NextStep = NextStep.ANSWERED
    complete_index: int = -1

    def waited(self, now: float) -> float:
        """Return the seconds since its submission in which its function did not run."""
        return max(0.0, now - self.ready_at - self.seconds)

    def end(self, now: float, verdict: NextStep, complete_index: int) -> None:
        """Record the end, and drop what only its function needed."""
        self.done = True
        self.completed_at, self.verdict, self.complete_index = now, verdict, complete_index
        del self.body, self.context

    def result(self, taken_at: float) -> RowResult[Any]:
        return RowResult(
            self.index,
            self.value,
            self.error,
            self.verdict,
            self.attempts,
            self.capacity_retries,
            self.index,
            self.complete_index,
            self.ready_at,
            self.completed_at,
            max(0.0, taken_at - self.completed_at),
            self.waited(self.completed_at),
            self.seconds,
        )


class RowQueue:
    """Rows that may start, behind their gates: `fresh` ones behind a guessed gate, others behind their key.

    The row with the lowest index among the open gates goes first, so a row that comes back is at the head.
    """

    def __init__(self) -> None:
        self.fresh: deque[PoolRow] = deque()
        self._known: dict[Hashable, list[tuple[int, PoolRow]]] = {}
        self._closed: set[Hashable] = set()

    def open(self, gate: Hashable) -> None:
        self._closed.discard(gate)

    def close(self, gate: Hashable) -> None:
        self._closed.add(gate)

    def remove(self, gate: Hashable) -> None:
        self._closed.discard(gate)

    def is_closed(self, gate: Hashable) -> bool:
        return gate in self._closed

    def put_back(self, row: PoolRow, gate: Hashable) -> None:
        heappush(self._known.setdefault(gate, []), (row.index, row))

    def next(self, fresh_gate: Hashable) -> tuple[PoolRow, Hashable] | None:
        """Return the row that goes first, and its gate; None if no gate with rows is open."""
        found: tuple[PoolRow, Hashable] | None = None
        if self.fresh and fresh_gate not in self._closed:
            found = self.fresh[0], fresh_gate
        for gate, heap in self._known.items():
            if gate not in self._closed and (found is None or heap[0][0] < found[0].index):
                found = heap[0][1], gate
        return found

    def take(self, row: PoolRow, gate: Hashable) -> None:
        if self.fresh and self.fresh[0] is row:
            self.fresh.popleft()
            return
        heap = self._known[gate]
        heappop(heap)
        if not heap:
            del self._known[gate]

    def count_held(self, fresh_gate: Hashable) -> int:
        """Return the number of rows behind closed gates."""
        closed = self._closed
        if not closed:
            return 0
        held = len(self.fresh) if fresh_gate in closed else 0
        return held + sum(len(heap) for gate, heap in self._known.items() if gate in closed)

    def waiting(self, fresh_gate: Hashable) -> Iterator[tuple[PoolRow, Hashable]]:
        for row in self.fresh:
            yield row, fresh_gate
        for gate, heap in self._known.items():
            for _, row in heap:
                yield row, gate

    def discard(self, rows: set[PoolRow]) -> None:
        self.fresh = deque(row for row in self.fresh if row not in rows)
        for gate, heap in list(self._known.items()):
            left = sorted(entry for entry in heap if entry[1] not in rows)
            if left:
                self._known[gate] = left
            else:
                del self._known[gate]

    def clear(self) -> None:
        self.fresh.clear()
        self._known.clear()


KEY_FACTS = (
    "limit", "attempts", "refused", "calls", "completed_calls", "failed_calls", "retried_calls", "given_up",
    "latency_p50", "latency_p95", "latency_p99", "pace",
)  # fmt: skip
"""Facts of a key's snapshot that the JSON of the statistics has."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of one pool so far, or at its end. Durations are in seconds.

    Of the `submitted` rows, some were `answered`, some `failed`, and some `parked`: they found no capacity in time, or
    the pool's deadline was over. The others are `unended`; after the end of the pool they are dropped.

    `capacity_retries` counts refusals for lack of capacity, `transient_retries` rows that were repeated after another
    failure. At most `max_concurrent` functions were in flight, including those that waited for capacity inside a call.
    At most `max_pending` rows were submitted and not taken, of which at most `max_buffered` had ended.

    Rows waited for capacity for `throttle_seconds` in all: behind a closed key, after a refusal, or inside a call. For
    `throttled_for`, at least one row did so; for `executing_for`, at least one function ran. `peak_pause` is the
    longest pause of a key that held rows back. `buffer_wait_mean` is the mean time from the end of a row until it was
    taken.

    `keys` are the last keys that the rows asked (`MAX_KEYS` at most), as they are now or were at the end.
    `dispatch_interval_at_end` is the longest time between two calls at which a learned rate then paced one of them, 0
    where none did.
    """

    pool_size: int
    submitted: int = 0
    answered: int = 0
    failed: int = 0
    parked: int = 0
    capacity_retries: int = 0
    transient_retries: int = 0
    max_concurrent: int = 0
    max_pending: int = 0
    max_buffered: int = 0
    throttle_seconds: float = 0.0
    throttled_for: float = 0.0
    executing_for: float = 0.0
    peak_pause: float = 0.0
    buffer_wait_mean: float = 0.0
    dispatch_interval_at_end: float = 0.0
    keys: Mapping[Key, KeySnapshot] = field(default_factory=dict)

    @property
    def unended(self) -> int:
        """Return the rows that have not ended, or were dropped at the end of the pool."""
        return self.submitted - self.answered - self.failed - self.parked

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as plain values for JSON; the counts of each key are by its name."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        snapshots = {
            str(key): asdict(seen) | {"completed_calls": seen.completed_calls} for key, seen in self.keys.items()
        }
        keys = {name: {fact: known[fact] for fact in KEY_FACTS} for name, known in snapshots.items()}
        return {**told, "unended": self.unended, "keys": keys}


COUNTED = (
    "answered", "failed", "parked", "capacity_retries", "transient_retries", "max_concurrent", "max_pending",
    "max_buffered", "peak_pause",
)  # fmt: skip
"""Statistics that a pool counts under their own names."""


@dataclass(slots=True, eq=False)
class PoolMeter:
    """Counts and times of a pool while it runs; instants are monotonic seconds.

    Several threads may read it, and see counts of neighbouring instants.
    """

    answered: int = 0
    failed: int = 0
    parked: int = 0
    taken: int = 0
    capacity_retries: int = 0
    transient_retries: int = 0
    max_concurrent: int = 0
    max_pending: int = 0
    max_buffered: int = 0
    peak_pause: float = 0.0
    buffer_wait: float = 0.0
    _throttle_seconds: float = 0.0
    _throttled_for: float = 0.0
    _executing_for: float = 0.0
    _noted_at: float = 0.0
    _waiting: int = 0
    _running: bool = False

    def note_load(self, waiting: int, running: bool, now: float) -> None:
        """Note the rows that wait for capacity from now on, and whether a function runs."""
        if self._waiting or self._running:
            elapsed = now - self._noted_at
            if self._waiting:
                self._throttled_for += elapsed
                self._throttle_seconds += elapsed * self._waiting
            if self._running:
                self._executing_for += elapsed
        self._noted_at, self._waiting, self._running = now, waiting, running

    def add_call(self, waited: float, executed: float) -> None:
        """Add the times of one call of a function, where at most one row is under way."""
        self._throttle_seconds += waited
        self._throttled_for += waited
        self._executing_for += executed

    def note_end(self, row: PoolRow, ended: int) -> None:
        if row.verdict is NextStep.ANSWERED:
            self.answered += 1
        elif row.verdict in (NextStep.CAPACITY, NextStep.PARKED):
            self.parked += 1
        else:
            self.failed += 1
        self.max_buffered = max(self.max_buffered, ended - self.taken)

    def note_taken(self, row: PoolRow, now: float) -> None:
        self.taken += 1
        self.buffer_wait += max(0.0, now - row.completed_at)

    def stats(self, pool_size: int, submitted: int, keys: Mapping[Key, KeySnapshot], now: float) -> PoolStats:
        elapsed, waiting = max(0.0, now - self._noted_at), self._waiting
        return PoolStats(
            pool_size=pool_size,
            submitted=submitted,
            **{name: getattr(self, name) for name in COUNTED},
            throttle_seconds=self._throttle_seconds + elapsed * waiting,
            throttled_for=self._throttled_for + (elapsed if waiting else 0.0),
            executing_for=self._executing_for + (elapsed if self._running else 0.0),
            buffer_wait_mean=self.buffer_wait / self.taken if self.taken else 0.0,
            dispatch_interval_at_end=max((1.0 / seen.pace for seen in keys.values() if seen.pace > 0.0), default=0.0),
            keys=keys,
        )
