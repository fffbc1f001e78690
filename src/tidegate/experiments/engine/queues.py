"""Items, the queues of one run, and the fair choice between experiments.

A run has a queue for each stage (tasks, each evaluator), in which ready retries and new items take turns. So a cluster
of failing items cannot stop progress. A stage waits behind a *gate*: the key that its function asks first, or a
placeholder of the stage while that key is unknown. Evaluations go before tasks. A queue that was passed over
`AGEING_TURNS` times goes first. An item refused for lack of capacity returns to the head of its queue. Retries that are
not ready wait for a timer each. Items are read from the store in pages, between a low and a high mark.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from tidegate.experiments.storage import AttemptRecord, ItemUsage

TASK = 0
"""Stage number of tasks; the evaluators of an experiment are stages 1, 2, …, in their order."""


TASK_STAGE = "task"
"""Name of the stage of tasks beside the names of the evaluators; no evaluator may have it."""


class Place(NamedTuple):
    """Position of an item in its dataset: rows count from 0, repetitions from 1."""

    ordinal: int
    repetition: int


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One unit of work and its cost so far; a job runs it and keeps no state.

    `attempts` counts spent attempts; refusals for lack of capacity spend none. `seconds` is the run time of its
    function. `refused_at` is its first refusal for lack of capacity (monotonic seconds, None: never). `closed_before`
    is the total time that its gate (the key that it waits for) had been closed until a known reset by then. `elsewhere`
    counts refusals at another key than the one asked for it. `ready_at` is the time since when it could be dispatched
    (monotonic seconds). `size` is the stored size of its row and answer in characters. `slow`: a call of it took all
    its time, though the provider answered others.

    For the audit, `calls` counts the attempts under this claim, and `audit` has those that are not written yet.
    `queued_at` is when its last job began or ended (None: it was never dispatched), and `waited` the seconds until its
    last dispatch. `usage` is what its governed calls have cost under this claim, None without any. It is `released`
    when it has a result.
    """

    stage: int
    place: Place
    body: Any
    output: Any = None
    size: int = 0
    attempts: int = 0
    seconds: float = 0.0
    ready_at: float = 0.0
    refused_at: float | None = None
    closed_before: float = 0.0
    elsewhere: int = 0
    slow: bool = False
    audit: list[AttemptRecord] = field(default_factory=list)
    calls: int = 0
    queued_at: float | None = None
    waited: float = 0.0
    usage: ItemUsage | None = None
    released: bool = False

    @property
    def identity(self) -> tuple[int, int, int]:
        """Return the row, the repetition and the stage; at most one item with this identity is in flight."""
        return (*self.place, self.stage)

    def release(self) -> None:
        """Drop the row, the answer and the attempts: only its result, which has these, must become durable."""
        self.body = self.output = None
        self.usage = None
        self.released = True
        if self.audit:
            self.audit = []


def own_id(body: Any) -> str:
    """Return the `id` of a row; empty if it has none. Raise `ValueError` for a number that is too long for a text."""
    name = body.get("id") if isinstance(body, Mapping) else None
    return str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""


def copied(value: Any) -> Any:
    """Return a copy of JSON that its receiver may change; a retry or the next evaluator gets the original row."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


AGED, EVALS, TASKS = range(3)
"""Ranks of a queue: the lowest goes first. AGED is for one that was passed over `AGEING_TURNS` times."""


MAX_QUEUE_BYTES = 16 * 1024 * 1024
"""Characters of the waiting rows and answers of one stage, retries included, at which no more are read. Chosen: two
pages of `experiments.storage.pending.PAGE_BYTES`."""


@dataclass(slots=True, eq=False)
class StageQueue:
    """Items of one stage: `ready` retries and `fresh` items take turns, each in their order.

    `retried` says that a retry went last. `age` counts how often other queues went instead. `size` is the total of the
    sizes of these items.
    """

    stage: int
    ready: deque[Item] = field(default_factory=deque)
    fresh: deque[Item] = field(default_factory=deque)
    retried: bool = False
    age: int = 0
    size: int = 0

    def __bool__(self) -> bool:
        return bool(self.ready or self.fresh)

    @property
    def rank(self) -> int:
        return AGED if self.age >= AGEING_TURNS else TASKS if self.stage == TASK else EVALS

    @property
    def _first(self) -> deque[Item]:
        return self.fresh if self.fresh and (self.retried or not self.ready) else self.ready

    @property
    def next(self) -> Item:
        return self._first[0]

    def popleft(self) -> Item:
        first = self._first
        self.retried = first is self.ready
        item = first.popleft()
        self.size -= item.size
        return item

    def remove(self, gone: set[Item]) -> None:
        self.ready, self.fresh = (
            deque(item for item in items if item not in gone) for items in (self.ready, self.fresh)
        )
        self.size = sum(item.size for item in (*self.ready, *self.fresh))


PAGE_ITEMS = 200
"""New items of a stage held in memory at most; half of it is the low mark. Chosen: a page lasts for seconds where
hundreds of functions run."""

AGEING_TURNS = 8
"""How often a queue is passed over for a more urgent one before it goes next. Chosen: one in nine."""


class WorkQueue:
    """Queues of one experiment with `stages` stages. It only decides the order; it starts nothing."""

    def __init__(self, stages: int) -> None:
        self._gates: list[Hashable] = [None] * stages
        self._queues = [StageQueue(stage) for stage in range(stages)]
        self._later: dict[Item, TimerHandle] = {}
        self._later_size = [0] * stages

    def set_gate(self, stage: int, gate: Hashable) -> None:
        """Put the items of a stage behind `gate` from now on."""
        self._gates[stage] = gate

    def gate(self, stage: int) -> Hashable:
        return self._gates[stage]

    def gates(self) -> Iterator[Hashable]:
        return (self._gates[queue.stage] for queue in self._queues if queue)

    def has(self, gate: Hashable) -> bool:
        return any(queue and self._gates[queue.stage] == gate for queue in self._queues)

    def room(self, stage: int) -> int:
        """Return the number of items of a stage that fit; 0 if the waiting ones are too large together."""
        return 0 if self._size(stage) >= MAX_QUEUE_BYTES else max(0, PAGE_ITEMS - len(self._queues[stage].fresh))

    def runs_low(self, stage: int) -> bool:
        return len(self._queues[stage].fresh) <= PAGE_ITEMS // 2 and self._size(stage) <= MAX_QUEUE_BYTES // 2

    def add(self, items: Iterable[Item]) -> None:
        for item in items:
            queue = self._queues[item.stage]
            queue.fresh.append(item)
            queue.size += item.size

    def put_back(self, item: Item) -> None:
        queue = self._queues[item.stage]
        (queue.ready if item.attempts else queue.fresh).appendleft(item)
        queue.size += item.size

    def delay(self, item: Item, timer: TimerHandle) -> None:
        """Hold an item until `retry`, which `timer` calls."""
        self._later[item] = timer
        self._later_size[item.stage] += item.size

    def retry(self, item: Item) -> None:
        """Put a delayed item behind the other ready retries of its stage."""
        self._end_delay(item)
        queue = self._queues[item.stage]
        queue.ready.append(item)
        queue.size += item.size

    def rank(self, gate: Hashable) -> int:
        """Return the rank of the next item behind a gate; the lowest goes first."""
        queue = self._next(gate)
        return TASKS if queue is None else queue.rank

    def peek(self, gate: Hashable) -> Item | None:
        queue = self._next(gate)
        return queue.next if queue is not None else None

    def take(self, gate: Hashable) -> Item | None:
        """Remove and return the next item behind a gate, and age every other queue that has items."""
        chosen = self._next(gate)
        if chosen is None:
            return None
        for queue in self._queues:
            if queue:
                queue.age += 1
        chosen.age = 0
        return chosen.popleft()

    def reset_age(self, stage: int) -> None:
        """Let the items of a stage that cannot start now wait without a claim to the next turn."""
        self._queues[stage].age = 0

    def items(self, stage: int) -> list[Item]:
        queue = self._queues[stage]
        return [*queue.ready, *queue.fresh, *(item for item in self._later if item.stage == stage)]

    def remove(self, items: Iterable[Item]) -> None:
        gone = set(items)
        for queue in self._queues:
            queue.remove(gone)
        for item in gone & self._later.keys():
            self._end_delay(item)

    def clear(self) -> None:
        self._queues = [StageQueue(queue.stage) for queue in self._queues]
        for item in list(self._later):
            self._end_delay(item)

    def depth(self, stage: int) -> int:
        return len(self._queues[stage].ready) + len(self._queues[stage].fresh)

    def _size(self, stage: int) -> int:
        return self._queues[stage].size + self._later_size[stage]

    def _end_delay(self, item: Item) -> None:
        self._later.pop(item).cancel()
        self._later_size[item.stage] -= item.size

    def _next(self, gate: Hashable) -> StageQueue | None:
        found = [queue for queue in self._queues if queue and self._gates[queue.stage] == gate]
        return min(found, key=lambda queue: (queue.rank, -queue.age), default=None)


DISPATCH_CREDIT = 1.0 - 1e-9
"""Credit of one dispatch. Derived from the rounding of sums of weights."""


@dataclass(slots=True, eq=False)
class QueuedExperiment:
    """One experiment: the gates behind which it has ready work, and the dispatches that are left of its turn.

    `credit` is their number, with a fraction for the next turn.
    """

    weight: float
    credit: float = 0.0
    offers: dict[Hashable, None] = field(default_factory=dict)
    held: bool = False


class FairQueue:
    """Dispatch order of all live experiments by their numbers: of those with ready work, the one served longest ago.

    Every turn of an experiment puts it behind all others. A turn has as many dispatches as the experiment's weight, in
    units of the smallest weight; a remainder counts for the next turn (deficit round robin, Shreedhar and Varghese
    1995). With equal weights each dispatch is a turn. A throttled experiment keeps its place, but no turns add up for
    it.
    """

    def __init__(self) -> None:
        self._new: dict[int, QueuedExperiment] = {}
        self._served: dict[int, QueuedExperiment] = {}
        self._closed: set[Hashable] = set()
        self._least = 1.0

    def join(self, experiment: int, weight: float = 1.0) -> None:
        """Add a new experiment before all that were served; several new ones go in their order.

        Of the dispatches that several experiments compete for, each gets a share in proportion to its `weight`.
        """
        self._new[experiment] = QueuedExperiment(weight)
        self._set_least()
        self._new[experiment].credit = weight / self._least

    def leave(self, experiment: int) -> None:
        """Remove an experiment that has ended; a repeated call does nothing."""
        self._new.pop(experiment, None)
        self._served.pop(experiment, None)
        self._set_least()

    def offer(self, experiment: int, gate: Hashable) -> None:
        self._member(experiment).offers[gate] = None

    def withdraw(self, experiment: int, gate: Hashable) -> None:
        if experiment in self._new or experiment in self._served:
            self._member(experiment).offers.pop(gate, None)

    def hold(self, experiment: int, held: bool = True) -> None:
        """Suspend an experiment that has its maximum of jobs in flight, or let it continue at its old place."""
        if experiment in self._new or experiment in self._served:
            self._member(experiment).held = held

    def close(self, gate: Hashable) -> None:
        """Close a gate: no work behind it is dispatched."""
        self._closed.add(gate)

    def open(self, gate: Hashable) -> None:
        """Open a gate: the experiments behind it may be dispatched again."""
        self._closed.discard(gate)

    remove = open
    """Forget a gate that no experiment will use."""

    def next(self, rank: Callable[[int, Hashable], int]) -> tuple[int, Hashable] | None:
        """Return the next experiment and the gate of its most urgent work; None if no work can be dispatched.

        `rank` returns the urgency of an experiment's work behind a gate; the lowest value is the most urgent.
        """
        for experiment, member in chain(self._new.items(), self._served.items()):
            if not member.held and (gates := [gate for gate in member.offers if gate not in self._closed]):
                gate = gates[0] if len(gates) == 1 else min(gates, key=partial(rank, experiment))
                return experiment, gate
        return None

    def dispatched(self, experiment: int) -> None:
        """Count a dispatch of an experiment, and move it behind all others at the end of its turn."""
        member = self._member(experiment)
        turn = member.weight / self._least
        # A turn that began beside a smaller weight is worth less once that one has left.
        member.credit = min(member.credit, turn + 1.0) - 1.0
        if member.credit >= DISPATCH_CREDIT:
            return
        member.credit += turn
        self._new.pop(experiment, None)
        self._served.pop(experiment, None)
        self._served[experiment] = member

    def _member(self, experiment: int) -> QueuedExperiment:
        return self._new.get(experiment) or self._served[experiment]

    def _set_least(self) -> None:
        members = chain(self._new.values(), self._served.values())
        self._least = min((each.weight for each in members), default=1.0)
