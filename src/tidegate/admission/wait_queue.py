"""Wait queue of one key: the waiting calls, the next one, and the first deadline.

Theory of operation. A waiter is anything with a `wake()`, so threads, asyncio loops and trio share one queue. Waiters
of equal priority form a lane, first come, first served; a refused call returns to its old place. A heap holds the
deadlines that are not in order of arrival. The calls of one executor (an event loop or a thread) form a group. The
queue is a heap of groups by their first calls. A group whose call did not take its permit is passed over, until one of
its calls looks again, and keeps its places. Joining, leaving from any place and finding the head cost the same for any
number of waiters. The queue only holds the order: `key_queue.KeyQueue.pump` admits the head and names the calls to
wake, and `steps.StepTable` wakes them after the lock.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from typing import Any, Protocol

from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cost


class Waker(Protocol):
    """Wake-up of a waiting call, from any thread.

    A waker may also have these attributes. `loop` is the event loop of the call, None for a thread; `thread` is the
    identifier of its thread. `blocks` says that this thread has a running event loop, which the call blocks.
    `exiting` says that nobody waits for the call but the end of an interrupted program.
    `nudge()` makes the call look soon, from a finalizer, which may run inside any code; without it `wake` does.
    """

    def wake(self) -> bool:
        """Make the call look at once; return False if it can never run again (its loop is closed)."""
        ...

    def arm(self, until: float) -> bool:
        """Make the call look at `until` (monotonic seconds) instead of its present timer; return as `wake` does."""
        ...


Price = Callable[[CostEstimator], Cost]
"""Function that returns the expected charge of a call, from the knowledge of its key so far."""

UNPRICED = Cost()

UNTAKEN_SECONDS = 1.0
"""Seconds within which a call must take its permit, and an event loop answer a probe. Raising it makes all others wait
longer for a blocked loop. Lowering it passes over loops that are only busy. Chosen: above long steps of parsing."""

UNKNOWN = object()
"""Executor of the calls whose wakers name no event loop."""


def executor_of(waker: Waker) -> object:
    """Return what runs a waiting call: its event loop, or for a thread the waker itself."""
    loop = getattr(waker, "loop", UNKNOWN)
    return waker if loop is None else loop


class Waiter:
    """One call in a wait queue. Instants are monotonic seconds; `place` orders calls of equal priority.

    A call may wait long, so its price is computed when it is the head, from the knowledge by then. `queue` is its key
    queue, and `executor` is its event loop or thread, None until it waits. `opens_at` is set for a call that need not
    wait: the instant, after its deadline, at which its gate (a limiter of the key) opens. `number` joins its events, 0
    where nothing reports them. `held` is the last permit that it took, and settles. `twin_of` is its identity, once it
    waits. `inside` are the permits of calls of its key that wait for its end.
    """

    __slots__ = (
        "cost",
        "deadline",
        "deadline_entry",
        "executor",
        "held",
        "inside",
        "is_queued",
        "is_unsent",
        "joined_at",
        "make_waker",
        "number",
        "opens_at",
        "permit",
        "place",
        "priced_version",
        "priority",
        "queue",
        "twin_of",
        "until",
        "waker",
    )

    held: Permit | None

    def __init__(self, make_waker: Callable[[], Waker], priority: int) -> None:
        # A call that was admitted at once holds its permit already.
        self.priced_version = -1
        self.cost = UNPRICED
        self.make_waker = make_waker
        self.inside: tuple[Permit, ...] = ()
        self.twin_of: Hashable | None = None
        self.waker: Waker | None = None
        self.executor: object = None
        self.priority = priority
        self.is_queued = False
        self.is_unsent = True
        self.number = 0
        self.deadline_entry: list[Any] | None = None
        self.place = 0
        self.joined_at = 0.0
        self.deadline = INFINITY
        self.permit: Permit | None = None
        self.opens_at: float | None = None
        self.until: float | None = None
        self.queue: Any = None

    @property
    def immediate(self) -> bool:
        """Return whether the call goes now or not at all."""
        return False

    def identity(self) -> Hashable | None:
        """Return what makes two calls of one key the same request; None for a call that has no equals."""
        return None

    def price(self, estimate: CostEstimator) -> Cost:
        """Return the expected charge of the call, from the knowledge of its key so far; here one request."""
        return UNPRICED

    def bind_queue(self, queue: object) -> None:
        """Tie the call to its key queue, which may have been forgotten and made again since it last waited."""
        if self.queue is not queue:
            self.queue = queue
            self.deadline_entry = None

    def get_waker(self) -> Waker:
        """Return the waker of the call, made on first use, since most calls never wait."""
        if self.waker is None:
            self.waker = self.make_waker()
        return self.waker

    def wake_up(self) -> bool:
        """Make the call look now, or at its new timer; return whether its executor can still run."""
        waker = self.waker
        if waker is None:
            return True
        if self.permit is None and self.until is not None:
            return waker.arm(self.until)
        return waker.wake()


class PriorityLane:
    """Waiters of one priority; refused ones precede the `fresh` ones, which were never admitted."""

    __slots__ = ("fresh", "latest", "returned")

    def __init__(self) -> None:
        self.returned: list[Waiter] = []
        self.latest = -INFINITY
        self.fresh: OrderedDict[Waiter, None] = OrderedDict()

    def first(self) -> Waiter | None:
        """Return the waiter with the earliest place."""
        return self.returned[0] if self.returned else self.first_fresh()

    def first_fresh(self) -> Waiter | None:
        return next(iter(self.fresh), None)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter of this lane from its place."""
        try:
            del self.fresh[waiter]
        except KeyError:
            del self.returned[bisect_left(self.returned, waiter.place, key=_place)]


class ExecutorGroup:
    """The calls of one executor that wait for one key, first come, first served within a priority.

    `first` is the next of them to go. `timer_holder` waits with a timeout for all of them, until its `until`. `entry`
    is the group's entry in the queue's order, None while the group is `passed_over`.
    """

    __slots__ = (
        "_deadlines",
        "_entry_count",
        "_lanes",
        "count",
        "entry",
        "executor",
        "first",
        "passed_over",
        "timer_holder",
        "waiting",
    )

    def __init__(self, waiting: WaitQueue, executor: object) -> None:
        self.waiting = waiting
        self.executor = executor
        self.first: Waiter | None = None
        self.timer_holder: Waiter | None = None
        self.entry: list[Any] | None = None
        self.passed_over = False
        self.count = 0
        self._lanes: dict[int, PriorityLane] = {}
        self._deadlines: list[list[Any]] = []
        self._entry_count = 0

    def enqueue(self, waiter: Waiter) -> None:
        """Add a call at the tail, or at its old place if it has one."""
        lane = self._lanes.get(waiter.priority)
        if lane is None:
            lane = self._lanes[waiter.priority] = PriorityLane()
        ordered = False
        if waiter.place:
            insort(lane.returned, waiter, key=_place)
        else:
            waiter.place = self.waiting.next_place()
            lane.fresh[waiter] = None
            if waiter.deadline >= lane.latest:
                # Nearly all deadlines are in order of arrival: the lane's first fresh call then has the earliest.
                lane.latest = waiter.deadline
                ordered = True
        waiter.is_queued = True
        self.count += 1
        if not ordered:
            self._entry_count += 1
            waiter.deadline_entry = [waiter.deadline, self._entry_count, waiter]
            heappush(self._deadlines, waiter.deadline_entry)
            self._compact()
        first = self.first
        if first is None or (-waiter.priority, waiter.place) < (-first.priority, first.place):
            self.first = waiter

    def dequeue(self, waiter: Waiter) -> None:
        """Remove a call from any place."""
        lane = self._lanes[waiter.priority]
        lane.remove(waiter)
        waiter.is_queued = False
        self.count -= 1
        if waiter.deadline_entry is not None:
            # The entry stays in the heap for a while; the call and its request are released.
            waiter.deadline_entry[2] = None
            waiter.deadline_entry = None
        if not (lane.fresh or lane.returned):
            del self._lanes[waiter.priority]
        if self.first is waiter:
            self.first = self._lanes[max(self._lanes)].first() if self._lanes else None
        if self.timer_holder is waiter:
            self.timer_holder = None
        self._compact()

    def in_order(self) -> Iterator[Waiter]:
        """Yield the waiting calls in the order in which they will go."""
        for priority in sorted(self._lanes, reverse=True):
            yield from self._lanes[priority].returned
            yield from self._lanes[priority].fresh

    def unsent(self) -> Iterator[Waiter]:
        """Yield the next call of each priority that was never sent."""
        return (first for lane in self._lanes.values() if (first := lane.first_fresh()) is not None)

    def earliest(self) -> Waiter | None:
        """Return the call with the first deadline."""
        deadlines = self._deadlines
        if not deadlines and len(self._lanes) == 1:
            for lane in self._lanes.values():
                return lane.first_fresh()
        while deadlines and deadlines[0][2] is None:
            heappop(deadlines)
        soonest: Waiter | None = deadlines[0][2] if deadlines else None
        for lane in self._lanes.values():
            first = lane.first_fresh()
            if first is not None and (soonest is None or first.deadline < soonest.deadline):
                soonest = first
        return soonest

    def set_timer(self, ready: float, to_wake: list[Waiter]) -> None:
        """Make the first call the holder of its timer, and wake it if the timer must be shortened."""
        timer_holder, earliest = self.first, self.earliest()
        if timer_holder is None or earliest is None:
            return
        until = min(ready, self.waiting.look_at, earliest.deadline)
        if self.timer_holder is not timer_holder:
            if self.timer_holder is not None:
                self.timer_holder.until = None
            self.timer_holder = timer_holder
        sooner = timer_holder.until is None or until < timer_holder.until - 1e-6
        timer_holder.until = until if until < INFINITY else None
        if sooner and until < INFINITY:
            to_wake.append(timer_holder)

    def ensure_timer(self, to_wake: list[Waiter]) -> None:
        """Ensure that the group's timer meets its first deadline, wherever the group is in the queue."""
        earliest, timer_holder = self.earliest(), self.timer_holder
        if earliest is None or self.passed_over:
            return
        due = min(earliest.deadline, self.waiting.look_at)
        if timer_holder is None or (timer_holder.until is None and due < INFINITY):
            self.set_timer(INFINITY, to_wake)
        elif timer_holder.until is not None and due < timer_holder.until - 1e-6:
            self.set_timer(timer_holder.until, to_wake)

    def _compact(self) -> None:
        if len(self._deadlines) <= 2 * self.count + 64:
            return
        self._deadlines = [entry for entry in self._deadlines if entry[2] is not None]
        heapify(self._deadlines)


class WaitQueue:
    """The calls that wait for one key; `count` is their number. `aside` calls wait outside the queue.

    `groups` holds those of each executor. `active_groups` counts the groups that are not passed over. Each group looks
    at `look_at` at the latest. `next_place()` returns the place of a call that arrives now; a call admitted at once
    needs one too, to return to.
    """

    __slots__ = ("_order", "_sequence", "active_groups", "aside", "count", "groups", "look_at", "next_place")

    def __init__(self) -> None:
        self.groups: dict[object, ExecutorGroup] = {}
        self.look_at = INFINITY
        self.active_groups = self.aside = 0
        self._order: list[list[Any]] = []
        self._sequence = 0
        self.next_place: Callable[[], int] = itertools.count(1).__next__
        self.count = 0

    def enqueue(self, waiter: Waiter) -> ExecutorGroup:
        """Add a call at the tail; a call that has waited before returns to its old place, near the head."""
        executor = waiter.executor
        group = self.groups.get(executor)
        if group is None:
            group = self.groups[executor] = ExecutorGroup(self, executor)
        group.enqueue(waiter)
        self.count += 1
        if group.first is waiter:
            self.enlist(group)
        return group

    def dequeue(self, waiter: Waiter) -> bool:
        """Remove a call from any place; return False for a call that is not queued."""
        if not waiter.is_queued:
            return False
        group = self.groups[waiter.executor]
        was_first = group.first is waiter
        group.dequeue(waiter)
        self.count -= 1
        if not group.count:
            self._delist(group)
            del self.groups[waiter.executor]
        elif was_first and group.entry is not None:
            self.enlist(group)
        return True

    def head(self) -> Waiter | None:
        """Return the next call of groups not passed over: the highest priority, then the earliest place."""
        group = self.head_group()
        return group.first if group is not None else None

    def head_group(self) -> ExecutorGroup | None:
        """Return the group of the head."""
        order = self._order
        while order:
            group: ExecutorGroup | None = order[0][3]
            if group is not None:
                return group
            heappop(order)
        return None

    def enlist(self, group: ExecutorGroup) -> None:
        """Put a group into the order by its first call, unless it is passed over."""
        first, entry = group.first, group.entry
        if group.passed_over or first is None:
            return
        if entry is not None and len(self._order) == 1:
            entry[0], entry[1] = -first.priority, first.place
            return
        self._delist(group)
        self._sequence += 1
        group.entry = [-first.priority, first.place, self._sequence, group]
        heappush(self._order, group.entry)
        self.active_groups += 1
        if len(self._order) > 2 * self.active_groups + 64:
            self._order = [entry for entry in self._order if entry[3] is not None]
            heapify(self._order)

    def first_unsent(self) -> Waiter | None:
        """Return the next call that was never sent, of groups not passed over."""
        active = (group for group in self.groups.values() if not group.passed_over)
        return min((each for group in active for each in group.unsent()), key=_order, default=None)

    def pass_over(self, group: ExecutorGroup) -> None:
        """Take a group out of the order, until `restore`; its calls keep their places."""
        group.passed_over = True
        self._delist(group)

    def restore(self, group: ExecutorGroup) -> None:
        """Put a group that was passed over back into the order: one of its calls looked."""
        if group.passed_over:
            group.passed_over = False
            self.enlist(group)

    def in_order(self) -> Iterator[Waiter]:
        """Yield the waiting calls in the order in which they will go if no group is passed over."""
        return merge(*(group.in_order() for group in self.groups.values()), key=_order)

    @property
    def length(self) -> int:
        """Return the number of calls that wait, also outside the queue."""
        return self.count + self.aside

    def put_aside(self, change: int) -> None:
        """Count a call that begins (1) or ends (-1) to wait outside the queue, before it returns."""
        self.aside = max(0, self.aside + change)

    def clear(self) -> None:
        """Forget all calls: after a fork they wait in the parent."""
        for waiter in self.in_order():
            waiter.is_queued = False
        self.aside = 0
        self._reset()

    def rebuild(self, waiters: Iterable[Waiter]) -> None:
        """Rebuild the queue of these calls in their order, whatever an interrupt has left half done."""
        self._reset()
        for waiter in sorted(waiters, key=_order):
            waiter.deadline_entry = waiter.until = None
            self.enqueue(waiter)

    def _reset(self) -> None:
        self.groups = {}
        self._order = []
        self.active_groups = 0
        self.count = 0

    def _delist(self, group: ExecutorGroup) -> None:
        if group.entry is not None:
            group.entry[3] = None
            group.entry = None
            self.active_groups -= 1


def _order(waiter: Waiter) -> tuple[int, int]:
    return -waiter.priority, waiter.place


def _place(waiter: Waiter) -> int:
    return waiter.place
