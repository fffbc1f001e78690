"""The line before one key: who waits, who is next, whose deadline comes first.

Theory of operation. A waiter is anything with a `wake()`, so threads, several asyncio loops and trio stand in one
line. Waiters of equal priority form a lane, first come first served; a call that was refused returns to its old place.
Deadlines that do not come in the order of arrival are kept in a heap besides. Joining, leaving from any place and
finding the head cost the same however many wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from tidegate.core.estimate import Estimate
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Cost

NEVER = float("inf")


class Waker(Protocol):
    """How a waiting call is told to look again, from any thread."""

    def wake(self) -> bool:
        """Makes it look at once; returns False where it can never run again (its loop is closed)."""
        ...

    def arm(self, until: float) -> bool:
        """Makes it look at `until` (monotonic seconds), whatever it waits for now; returns as `wake` does."""
        ...


Price = Callable[[Estimate], Cost]
"""What a call is expected to be charged, by what its key has learned so far."""

UNPRICED = Cost()


class Waiter:
    """One call standing in a line. Instants are monotonic seconds; `place` orders calls of equal priority.

    A call may wait for long: `price` is asked when it comes to the head, by what has been learned until then. `slots`
    is whose line it stands in.
    """

    __slots__ = (
        "before",
        "behind",
        "cost",
        "deadline",
        "joined_at",
        "make_waker",
        "permit",
        "place",
        "priced_by",
        "priority",
        "slots",
        "standing",
        "timed",
        "until",
        "waker",
    )

    def __init__(self, make_waker: Callable[[], Waker], priority: int) -> None:
        self.priced_by = -1
        self.cost = UNPRICED
        self.make_waker = make_waker
        self.waker: Waker | None = None
        self.priority = priority
        self.standing = False
        self.timed: list[Any] | None = None
        self.place = 0
        self.joined_at = 0.0
        self.deadline = NEVER
        self.permit: Permit | None = None
        self.until: float | None = None
        self.slots: Any = None
        self.before: Waiter | None = None
        self.behind: Waiter | None = None

    def price(self, estimate: Estimate) -> Cost:
        """What the call is expected to be charged, by what its key has learned so far; one request, unless told."""
        return UNPRICED

    def belong(self, slots: object) -> None:
        """Ties the call to the line it stands in; its key may have been forgotten and made anew since it last stood."""
        if self.slots is not slots:
            self.slots = slots
            self.timed = None

    def alarm(self) -> Waker:
        """What the call waits on; made on first use, since most calls never wait."""
        if self.waker is None:
            self.waker = self.make_waker()
        return self.waker


class Lane:
    """Waiters of one priority; those that were refused stand before those never admitted.

    The latter are linked to each other from `fresh` on, so that any of them steps out at once and none costs more than
    itself.
    """

    __slots__ = ("_last", "count", "fresh", "latest", "returned")

    def __init__(self) -> None:
        self.returned: list[Waiter] = []
        self.count = 0
        self.latest = -NEVER
        self.fresh: Waiter | None = None
        self._last: Waiter | None = None

    def first(self) -> Waiter:
        """The earliest place; the lane is not empty."""
        waiter = self.returned[0] if self.returned else self.fresh
        assert waiter is not None, "an empty lane is taken out of the line"
        return waiter

    def append(self, waiter: Waiter) -> None:
        """Stands at the tail."""
        last = self._last
        waiter.before = last
        if last is None:
            self.fresh = waiter
        else:
            last.behind = waiter
        self._last = waiter
        self.count += 1

    def come_back(self, waiter: Waiter) -> None:
        """Stands at its old place."""
        insort(self.returned, waiter, key=_place)
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        """Takes a waiter that stands here out from its place."""
        self.count -= 1
        at = bisect_left(self.returned, waiter.place, key=_place)
        if at < len(self.returned) and self.returned[at] is waiter:
            del self.returned[at]
            return
        before, behind = waiter.before, waiter.behind
        waiter.before = waiter.behind = None
        if before is None:
            self.fresh = behind
        else:
            before.behind = behind
        if behind is None:
            self._last = before
        else:
            behind.before = before


class Line:
    """The calls that wait for one key, first come first served within a priority; `count` says how many."""

    __slots__ = ("_deadlines", "_lanes", "_places", "_timed", "count")

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._deadlines: list[list[Any]] = []
        self._timed = 0
        self._places = 0
        self.count = 0

    def join(self, waiter: Waiter) -> None:
        """Stands at the tail; a call that has stood before returns to its old place, at the head."""
        lane = self._lanes.get(waiter.priority)
        if lane is None:
            lane = self._lanes[waiter.priority] = Lane()
        ordered = False
        if waiter.place:
            lane.come_back(waiter)
        else:
            waiter.place = self.next_place()
            lane.append(waiter)
            if waiter.deadline >= lane.latest:
                # In order of arrival, as nearly all are: the lane's first fresh one stands for it.
                lane.latest = waiter.deadline
                ordered = True
        waiter.standing = True
        self.count += 1
        if not ordered:
            self._timed += 1
            waiter.timed = [waiter.deadline, self._timed, waiter]
            heappush(self._deadlines, waiter.timed)
            self._compact()

    def next_place(self) -> int:
        """The place of a call that comes now, also of one that passes without standing: it may have to return to it."""
        self._places += 1
        return self._places

    def leave(self, waiter: Waiter) -> bool:
        """Steps out from any place; returns False for one who does not stand here."""
        if not waiter.standing:
            return False
        lane = self._lanes[waiter.priority]
        lane.remove(waiter)
        waiter.standing = False
        self.count -= 1
        if waiter.timed is not None:
            # The entry stays in the heap for a while; the call and its request need not.
            waiter.timed[2] = None
            waiter.timed = None
        if not lane.count:
            del self._lanes[waiter.priority]
        self._compact()
        return True

    def head(self) -> Waiter | None:
        """Who is next: the highest priority, then the earliest place."""
        if not self._lanes:
            return None
        return self._lanes[max(self._lanes)].first()

    def standing(self) -> Iterator[Waiter]:
        """Those who wait, in the order in which they will go."""
        for priority in sorted(self._lanes, reverse=True):
            lane = self._lanes[priority]
            yield from lane.returned
            waiter = lane.fresh
            while waiter is not None:
                yield waiter
                waiter = waiter.behind

    def earliest(self) -> Waiter | None:
        """Whose deadline comes first."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2] is None:
            heappop(deadlines)
        soonest: Waiter | None = deadlines[0][2] if deadlines else None
        for lane in self._lanes.values():
            first = lane.fresh
            if first is not None and (soonest is None or first.deadline < soonest.deadline):
                soonest = first
        return soonest

    def clear(self) -> None:
        """Forgets everybody: after a fork they wait in the parent."""
        for lane in self._lanes.values():
            while lane.count:
                gone = lane.first()
                lane.remove(gone)
                gone.standing = False
                gone.timed = None
        self._lanes = {}
        self._deadlines = []
        self.count = 0

    def _compact(self) -> None:
        if len(self._deadlines) <= 2 * self.count + 64:
            return
        self._deadlines = [entry for entry in self._deadlines if entry[2] is not None]
        heapify(self._deadlines)


def _place(waiter: Waiter) -> int:
    return waiter.place
