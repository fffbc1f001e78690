"""Rows of a pool: their state while they are under way, and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from contextvars import Context
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

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


class PoolRow:
    """One row under way; `body` is what the source gave, `context` the consumer's context at that time.

    `key` and `cost` are those of its first call. `error` is its newest failure, until it is answered. `begun` says that
    its function has been called, `is_attempt` that the function itself was the attempt at the pool's key.
    """

    __slots__ = (
        "attempts",
        "begun",
        "body",
        "capacity_retries",
        "closed_before",
        "complete_index",
        "completed_at",
        "context",
        "cost",
        "done",
        "elsewhere",
        "error",
        "index",
        "is_attempt",
        "key",
        "ready_at",
        "refused_at",
        "seconds",
        "size",
        "slow",
        "value",
        "verdict",
    )  # fmt: skip

    def __init__(self, index: int, body: Any, context: Context, now: float) -> None:
        self.index = index
        self.body = body
        self.context = context
        self.ready_at = now
        self.key: Key | None = None
        self.cost: Cost | None = None
        self.attempts = self.capacity_retries = self.elsewhere = self.size = 0
        self.refused_at: float | None = None
        self.closed_before = self.seconds = self.completed_at = 0.0
        self.slow = self.begun = self.done = self.is_attempt = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.verdict = NextStep.ANSWERED
        self.complete_index = -1

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
