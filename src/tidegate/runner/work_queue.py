"""Queues of the work of one run: ready items of each stage, and retries that are not ready.

Theory of operation. Each stage (tasks, each evaluator) has two queues: what is to be tried first, and retries that are
ready. A stage stands behind a *gate*: the key that its function asks first, or a gate of its own while that is not
known. Evaluations go before retries, retries before new tasks; a queue that was passed over often enough goes next
whatever its rank, and retries that have their share of the slots go last, so that a poisoned cluster cannot starve
progress. What was refused for want of capacity goes back to the head of its queue. Retries that are not ready wait in
one heap. Tasks are taken from the store in pages, between two water marks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from tidegate.runner.item import TASK, Item

EVALS, RETRIES, TASKS, OVER_SHARE = range(4)
AGED = -1
"""The rank of a queue that was passed over often enough."""


MAX_QUEUE_BYTES = 16 * 1024 * 1024
"""Characters of the rows and answers of one stage that wait in memory, retries included: more hold more of it, fewer
fetch large rows again and again."""


class StageQueue:
    """Items of one stage in the order in which they go; `age` counts how often others went instead.

    `size` is that of all its items.
    """

    __slots__ = ("age", "items", "rank", "size", "stage")

    def __init__(self, stage: int, rank: int) -> None:
        self.stage = stage
        self.rank = rank
        self.items: deque[Item] = deque()
        self.age = 0
        self.size = 0

    def append(self, item: Item) -> None:
        """Add an item behind the others."""
        self.items.append(item)
        self.size += item.size

    def appendleft(self, item: Item) -> None:
        """Add an item before the others."""
        self.items.appendleft(item)
        self.size += item.size

    def popleft(self) -> Item:
        """Take the first item."""
        item = self.items.popleft()
        self.size -= item.size
        return item

    def remove(self, gone: set[Item]) -> None:
        """Take out the items of `gone` that are here."""
        if not gone.isdisjoint(self.items):
            self.items = deque(item for item in self.items if item not in gone)
            self.size = sum(item.size for item in self.items)

    def clear(self) -> None:
        """Forget every item."""
        self.items.clear()
        self.size = 0


class WorkQueue:
    """The queues of one experiment of so many `stages`; it decides, and does nothing.

    `high` is how many items of a stage are held at most, `ageing` how often a queue is passed over, and `retry_slots`
    how many slots retries may have while anything else could go.
    """

    def __init__(self, stages: int, *, high: int, ageing: int, retry_slots: int) -> None:
        self.high = high
        self.low = high // 2
        self.ageing = ageing
        self.retry_slots = retry_slots
        self.retries_under_way = 0
        self._gates: list[Hashable] = [None] * stages
        self._fresh = [StageQueue(stage, TASKS if stage == TASK else EVALS) for stage in range(stages)]
        self._ready = [StageQueue(stage, RETRIES) for stage in range(stages)]
        self._queues = [queue for pair in zip(self._fresh, self._ready, strict=True) for queue in pair]
        self._later: list[tuple[float, int, Item]] = []
        self._later_size = [0] * stages
        self._count = 0

    def stand_behind(self, stage: int, gate: Hashable) -> None:
        """That stage's items ask `gate` from now on."""
        self._gates[stage] = gate

    def gate(self, stage: int) -> Hashable:
        """Return what that stage's items ask."""
        return self._gates[stage]

    def gates(self) -> Iterator[Hashable]:
        """The gates behind which something is ready, each as often as it has queues."""
        return (self._gates[queue.stage] for queue in self._queues if queue.items)

    def has(self, gate: Hashable) -> bool:
        """Return whether something is ready behind that gate."""
        return any(queue.items and self._gates[queue.stage] == gate for queue in self._queues)

    def room(self, stage: int) -> int:
        """Return the number of items of a stage that fit; 0 where those that wait are too large together."""
        return 0 if self._size(stage) >= MAX_QUEUE_BYTES else max(0, self.high - len(self._fresh[stage].items))

    def runs_low(self, stage: int) -> bool:
        """Return whether the next page of a stage is wanted."""
        return len(self._fresh[stage].items) <= self.low and self._size(stage) <= MAX_QUEUE_BYTES // 2

    def add(self, items: Iterable[Item]) -> None:
        """New items, in their order."""
        for item in items:
            self._fresh[item.stage].append(item)

    def back(self, item: Item) -> None:
        """A refused item: it comes straight back, to the head."""
        queue = self._ready[item.stage] if item.attempts else self._fresh[item.stage]
        queue.appendleft(item)

    def delay(self, item: Item, ready_at: float) -> None:
        """An item that is to be tried again at `ready_at`, in monotonic seconds."""
        self._count += 1
        heappush(self._later, (ready_at, self._count, item))
        self._later_size[item.stage] += item.size

    def ripen(self, now: float) -> None:
        """Moves the retries that are ready to their queues."""
        while self._later and self._later[0][0] <= now:
            _, _, item = heappop(self._later)
            self._later_size[item.stage] -= item.size
            self._ready[item.stage].append(item)

    @property
    def ripe_at(self) -> float | None:
        """When the next retry is ready; None where none is waiting for its time."""
        return self._later[0][0] if self._later else None

    def rank(self, gate: Hashable) -> int:
        """Return how urgent what is next behind a gate is; less goes first."""
        queue = self._next(gate)
        return OVER_SHARE if queue is None else self._urgency(queue)

    def peek(self, gate: Hashable) -> Item | None:
        """Return what is next behind a gate."""
        queue = self._next(gate)
        return queue.items[0] if queue is not None else None

    def take(self, gate: Hashable) -> Item | None:
        """Takes what is next behind a gate; every other queue that has something is passed over."""
        chosen = self._next(gate)
        if chosen is None:
            return None
        for queue in self._queues:
            if queue.items:
                queue.age += 1
        chosen.age = 0
        item = chosen.popleft()
        if item.attempts:
            self.retries_under_way += 1
        return item

    def ended(self, retried: bool) -> None:
        """An item that was taken has ended; `retried` says that it had been tried before."""
        if retried:
            self.retries_under_way -= 1

    def items(self, stage: int) -> list[Item]:
        """Return every item of a stage that is not under way, in the order in which they go."""
        waiting = [*self._ready[stage].items, *self._fresh[stage].items]
        return waiting + [item for _, _, item in self._later if item.stage == stage]

    def take_out(self, items: Iterable[Item]) -> None:
        """Take out items that are not under way."""
        gone = set(items)
        for queue in self._queues:
            queue.remove(gone)
        self._later = [entry for entry in self._later if entry[2] not in gone]
        heapify(self._later)
        self._later_size = [0] * len(self._fresh)
        for _, _, item in self._later:
            self._later_size[item.stage] += item.size

    def clear(self) -> None:
        """Forgets everything that is not under way."""
        for queue in self._queues:
            queue.clear()
        self._later.clear()
        self._later_size = [0] * len(self._fresh)

    def depth(self, stage: int) -> int:
        """Return how many items of a stage are ready."""
        return len(self._fresh[stage].items) + len(self._ready[stage].items)

    def _size(self, stage: int) -> int:
        """Return the size of all items of a stage that are not under way."""
        return self._fresh[stage].size + self._ready[stage].size + self._later_size[stage]

    def _next(self, gate: Hashable) -> StageQueue | None:
        best: StageQueue | None = None
        best_rank = 0
        for queue in self._queues:
            if queue.items and self._gates[queue.stage] == gate:
                rank = self._urgency(queue)
                if best is None or rank < best_rank or (rank == best_rank and queue.age > best.age):
                    best, best_rank = queue, rank
        return best

    def _urgency(self, queue: StageQueue) -> int:
        if queue.rank == RETRIES and self.retries_under_way >= self.retry_slots:
            return OVER_SHARE
        return AGED if queue.age >= self.ageing else queue.rank
