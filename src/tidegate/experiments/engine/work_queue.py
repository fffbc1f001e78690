"""Work queues of one run: ready items of each stage, and retries that are not ready.

Theory of operation. Each stage (tasks, each evaluator) has a queue of new items and a queue of ready retries. A stage
waits behind a *gate*: the key that its function asks first, or a placeholder of the stage while that key is unknown.
Evaluations go before retries, and retries before new tasks. A queue that was passed over `ageing` times goes first.
Retries that already use their share of the slots go last, so a cluster of failing items cannot stop progress. An item
refused for lack of capacity returns to the head of its queue. Retries that are not ready wait in one heap. Items are
read from the store in pages, between a low and a high mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from tidegate.experiments.engine.item import TASK, Item

EVALS, RETRIES, TASKS, OVER_SHARE = range(4)
"""Ranks of a queue: the lowest goes first. OVER_SHARE is for retries that already use their share of the slots."""
AGED = -1
"""Rank of a queue that was passed over `ageing` times."""


MAX_QUEUE_BYTES = 16 * 1024 * 1024
"""Characters of the waiting rows and answers of one stage, retries included, at which no more are read. Raising it uses
more memory; lowering it reads large rows again more often. Chosen: two pages of
`experiments.storage.paging.PAGE_BYTES`."""


class StageQueue:
    """Items of one stage in dispatch order.

    `age` counts how often other queues went instead. `size` is the total of its items' sizes.
    """

    __slots__ = ("age", "items", "rank", "size", "stage")

    def __init__(self, stage: int, rank: int) -> None:
        self.stage = stage
        self.rank = rank
        self.items: deque[Item] = deque()
        self.age = 0
        self.size = 0

    def append(self, item: Item) -> None:
        """Add an item at the end."""
        self.items.append(item)
        self.size += item.size

    def appendleft(self, item: Item) -> None:
        """Add an item at the head."""
        self.items.appendleft(item)
        self.size += item.size

    def popleft(self) -> Item:
        """Remove and return the first item."""
        item = self.items.popleft()
        self.size -= item.size
        return item

    def remove(self, gone: set[Item]) -> None:
        """Remove the items of `gone` that are in this queue."""
        if not gone.isdisjoint(self.items):
            self.items = deque(item for item in self.items if item not in gone)
            self.size = sum(item.size for item in self.items)

    def clear(self) -> None:
        """Remove every item."""
        self.items.clear()
        self.size = 0


PAGE_ITEMS = 200
"""New items of a stage held in memory at most; half of it is the low mark. Raising it uses more memory and reads less
often. Chosen: a page lasts for seconds where hundreds of functions run."""

AGEING = 8
"""How often a queue is passed over for a more urgent one before it goes next. Raising it delays new rows beside
evaluations. Chosen: one in nine."""


class WorkQueue:
    """Queues of one experiment with `stages` stages. It only decides the order; it starts nothing.

    `high` is the maximum number of new items held per stage. `ageing` is how often a queue may be passed over.
    `retry_slots` is the number of slots for retries while other work is ready.
    """

    def __init__(self, stages: int, *, high: int, ageing: int, retry_slots: int) -> None:
        self.high = high
        self.low = high // 2
        self.ageing = ageing
        self.retry_slots = retry_slots
        self.retries_in_flight = 0
        self._gates: list[Hashable] = [None] * stages
        self._fresh = [StageQueue(stage, TASKS if stage == TASK else EVALS) for stage in range(stages)]
        self._ready = [StageQueue(stage, RETRIES) for stage in range(stages)]
        self._queues = [queue for pair in zip(self._fresh, self._ready, strict=True) for queue in pair]
        self._later: list[tuple[float, int, Item]] = []
        self._later_size = [0] * stages
        self._count = 0

    def set_gate(self, stage: int, gate: Hashable) -> None:
        """Put the items of a stage behind `gate` from now on."""
        self._gates[stage] = gate

    def gate(self, stage: int) -> Hashable:
        """Return the gate of a stage."""
        return self._gates[stage]

    def gates(self) -> Iterator[Hashable]:
        """Return the gates with ready items, once for each of their queues."""
        return (self._gates[queue.stage] for queue in self._queues if queue.items)

    def has(self, gate: Hashable) -> bool:
        """Return whether an item is ready behind a gate."""
        return any(queue.items and self._gates[queue.stage] == gate for queue in self._queues)

    def room(self, stage: int) -> int:
        """Return the number of items of a stage that fit; 0 if the waiting ones are too large together."""
        return 0 if self._size(stage) >= MAX_QUEUE_BYTES else max(0, self.high - len(self._fresh[stage].items))

    def runs_low(self, stage: int) -> bool:
        """Return whether the next page of a stage is needed."""
        return len(self._fresh[stage].items) <= self.low and self._size(stage) <= MAX_QUEUE_BYTES // 2

    def add(self, items: Iterable[Item]) -> None:
        """Add new items in their order."""
        for item in items:
            self._fresh[item.stage].append(item)

    def put_back(self, item: Item) -> None:
        """Return a refused item to the head of its queue."""
        queue = self._ready[item.stage] if item.attempts else self._fresh[item.stage]
        queue.appendleft(item)

    def delay(self, item: Item, ready_at: float) -> None:
        """Schedule a retry of an item for `ready_at`, in monotonic seconds."""
        self._count += 1
        heappush(self._later, (ready_at, self._count, item))
        self._later_size[item.stage] += item.size

    def queue_ready(self, now: float) -> None:
        """Move the retries that are ready to their queues."""
        while self._later and self._later[0][0] <= now:
            _, _, item = heappop(self._later)
            self._later_size[item.stage] -= item.size
            self._ready[item.stage].append(item)

    @property
    def next_ready_at(self) -> float | None:
        """Return the instant of the next retry; None if no retry waits."""
        return self._later[0][0] if self._later else None

    def rank(self, gate: Hashable) -> int:
        """Return the rank of the next item behind a gate; the lowest goes first."""
        queue = self._next(gate)
        return OVER_SHARE if queue is None else self._urgency(queue)

    def peek(self, gate: Hashable) -> Item | None:
        """Return the next item behind a gate."""
        queue = self._next(gate)
        return queue.items[0] if queue is not None else None

    def take(self, gate: Hashable) -> Item | None:
        """Remove and return the next item behind a gate, and age every other queue that has items."""
        chosen = self._next(gate)
        if chosen is None:
            return None
        for queue in self._queues:
            if queue.items:
                queue.age += 1
        chosen.age = 0
        item = chosen.popleft()
        if item.attempts:
            self.retries_in_flight += 1
        return item

    def reset_age(self, stage: int) -> None:
        """Let the items of a stage that cannot start now wait without a claim to the next turn."""
        self._fresh[stage].age = self._ready[stage].age = 0

    def on_job_done(self, retried: bool) -> None:
        """Count the end of an item that was taken; `retried` means that it had been tried before."""
        if retried:
            self.retries_in_flight -= 1

    def items(self, stage: int) -> list[Item]:
        """Return every item of a stage that is not in flight, in dispatch order."""
        waiting = [*self._ready[stage].items, *self._fresh[stage].items]
        return waiting + [item for _, _, item in self._later if item.stage == stage]

    def remove(self, items: Iterable[Item]) -> None:
        """Remove items that are not in flight."""
        gone = set(items)
        for queue in self._queues:
            queue.remove(gone)
        self._later = [entry for entry in self._later if entry[2] not in gone]
        heapify(self._later)
        self._later_size = [0] * len(self._fresh)
        for _, _, item in self._later:
            self._later_size[item.stage] += item.size

    def clear(self) -> None:
        """Remove everything that is not in flight."""
        for queue in self._queues:
            queue.clear()
        self._later.clear()
        self._later_size = [0] * len(self._fresh)

    def depth(self, stage: int) -> int:
        """Return the number of ready items of a stage."""
        return len(self._fresh[stage].items) + len(self._ready[stage].items)

    def _size(self, stage: int) -> int:
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
        if queue.rank == RETRIES and self.retries_in_flight >= self.retry_slots:
            return OVER_SHARE
        return AGED if queue.age >= self.ageing else queue.rank
