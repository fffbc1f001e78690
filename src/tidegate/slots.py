"""The slots of one key: who holds one, who waits, and whom a change wakes.

Theory of operation. Whoever is at the head of the line holds the clock: it alone waits with a timeout, until its call
could be admitted or the first deadline in the line has come; everybody else waits to be woken. Every change (`settle`,
`stand`, `leave`, a tick of the clock) ends in `pump`, which admits from the head as many as may go and returns whom to
wake; the caller wakes them after it has let go of the registry's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tidegate.core.admission import Admission
from tidegate.core.estimate import Estimate
from tidegate.core.gates import Out
from tidegate.core.permit import Permit
from tidegate.core.snapshot import KeySnapshot, key_snapshot
from tidegate.core.vocabulary import Cost
from tidegate.line import NEVER, UNPRICED, Line, Price, Waiter

SAMPLE = 256
"""Calls in the line whose cost is looked at, at the most: a mean of so many is right within a few per cent."""


class Asker(Waiter):
    """Somebody who does not stand in the line, and is told once when it may be worth to ask again."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[], object]) -> None:
        super().__init__(lambda: self, 0)
        self.waker = self
        self._told = told

    def wake(self) -> bool:
        """Tells it."""
        self._told()
        return True

    def arm(self, until: float) -> bool:
        """Tells it, who keeps its own time."""
        return self.wake()


class Slots:
    """One key's admission and its line."""

    __slots__ = ("_holder", "admission", "asking", "gate", "line")

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.line = Line()
        self.gate = ""
        self.asking: dict[Callable[[], object], Asker] = {}
        self._holder: Waiter | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody waits and nothing is under way."""
        return not self.line.count and not self.admission.flying

    def snapshot(self, now: float) -> KeySnapshot:
        """The state of the key at `now`."""
        head = self.line.head()
        first = head.cost if head is not None else UNPRICED
        return key_snapshot(self.admission, self.line.count, first, self.mean_cost(), now)

    def mean_cost(self) -> Cost:
        """What one of those who wait costs on average, as far as the first of them show; one request of nobody."""
        total, count = [0.0] * len(UNPRICED), 0
        for waiter in islice(self.line.standing(), SAMPLE):
            self._price(waiter)
            total = [sum(pair) for pair in zip(total, waiter.cost, strict=True)]
            count += 1
        return Cost(*(each / count for each in total)) if count else UNPRICED

    def enter(self, price: Price, now: float) -> Permit | None:
        """The permit of a call that may go at once, nobody standing before it; else None, and nothing happened."""
        line, admission = self.line, self.admission
        if line.count:
            return None
        cost = _priced(price, admission.estimate, UNPRICED)
        ready, self.gate = admission.ready_at(cost, now)
        if ready > now:
            return None
        permit = admission.admit(cost, now, 0.0, None)
        permit.place = line.next_place()
        return permit

    def stand(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Admits a call at once where nobody stands before it and the gates are open, else puts it in the line.

        Returns whom to wake; never the caller itself.
        """
        waiter.joined_at = now
        if not self.line.count:
            self._price(waiter)
            ready, self.gate = self.admission.ready_at(waiter.cost, now)
            if ready <= now:
                waiter.place = waiter.place or self.line.next_place()
                waiter.permit = self.admission.admit(waiter.cost, now, now - waiter.joined_at, out)
                self._given(now)
                return []
        waiter.alarm()
        self.line.join(waiter)
        return [woken for woken in self.pump(now, out) if woken is not waiter]

    def take(self, waiter: Waiter) -> Permit | None:
        """The permit that was given to a call while it stood, where there is one."""
        permit, waiter.permit = waiter.permit, None
        if permit is not None and self.admission.untaken:
            self.admission.untaken -= 1
        return permit

    def rejoin(self, waiter: Waiter, now: float) -> None:
        """Puts a refused call back to its old place; the caller pumps."""
        waiter.joined_at = now
        waiter.alarm()
        self.line.join(waiter)

    def leave(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Takes a call out of the line; returns whom to wake."""
        if not self.line.leave(waiter):
            return []
        if self._holder is not waiter:
            return []
        self._holder = None
        return self.pump(now, out)

    def pump(self, now: float, out: Out) -> list[Waiter]:
        """Admits from the head while the gates are open; returns whom to wake: admitted, expired, a new head."""
        woken: list[Waiter] = []
        while (head := self.line.head()) is not None:
            self._price(head)
            ready, gate = self.admission.ready_at(head.cost, now)
            self.gate = gate
            if ready > now:
                self._expire(now, woken)
                if self.line.head() is head:
                    self._hold_clock(head, ready, woken)
                    break
                continue
            # In this order: whoever leaves without the lock looks at `standing` first, then at `permit`.
            head.permit = self.admission.admit(head.cost, now, now - head.joined_at, out)
            self._given(now)
            self.line.leave(head)
            head.until = None
            self._holder = None if self._holder is head else self._holder
            woken.append(head)
        if self.asking and not self.line.count and self.admission.ready_at(UNPRICED, now)[0] < NEVER:
            woken += self.asking.values()
            self.asking.clear()
        return woken

    def _given(self, now: float) -> None:
        self.admission.untaken += 1
        self.admission.given_at = now

    def _price(self, waiter: Waiter) -> None:
        estimate = self.admission.estimate
        if waiter.priced_by != estimate.version:
            waiter.priced_by = estimate.version
            waiter.cost = _priced(waiter.price, estimate, waiter.cost)

    def _expire(self, now: float, woken: list[Waiter]) -> None:
        # An expired waiter steps out here, so that one whose loop never runs again cannot hold up the line.
        while (first := self.line.earliest()) is not None and first.deadline <= now:
            self.line.leave(first)
            self._holder = None if self._holder is first else self._holder
            first.until = first.deadline
            woken.append(first)

    def _hold_clock(self, head: Waiter, ready: float, woken: list[Waiter]) -> None:
        """Makes `head` the one that waits with a timeout, and wakes it if it must wait less than it does."""
        earliest = self.line.earliest()
        until = min(ready, earliest.deadline if earliest is not None else NEVER)
        if self._holder is not head:
            if self._holder is not None:
                self._holder.until = None
            self._holder = head
        sooner = head.until is None or until < head.until - 1e-6
        head.until = until if until < NEVER else None
        if sooner and until < NEVER:
            woken.append(head)


def _priced(price: Price, estimate: Estimate, otherwise: Cost) -> Cost:
    # Runs under the lock and in anybody's step: a price that fails leaves the cost there was.
    try:
        return price(estimate)
    except Exception:
        return otherwise
