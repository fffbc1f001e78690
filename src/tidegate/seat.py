"""One call's place in the queue of its key: the bridge from the pure dialogue to the registry."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core import events
from tidegate.core.admission import Permit
from tidegate.core.vocabulary import Key, Outcome
from tidegate.registries import ABANDONED, RateLimitRegistry
from tidegate.slots import Price, Waiter, Waker


class Seat:
    """Implements `tidegate.core.exchange.Seat` for one call.

    `window` is the provider's usual window in seconds; calls of equal `priority` are first come, first served.
    """

    __slots__ = ("_registry", "_waiter", "_window", "key")

    def __init__(
        self,
        registry: RateLimitRegistry,
        key: Key,
        price: Price,
        make_waker: Callable[[], Waker],
        *,
        window: float,
        priority: int,
    ) -> None:
        self._registry = registry
        self._waiter = Waiter(price, make_waker, priority)
        self._window = window
        self.key = key

    @property
    def until(self) -> float | None:
        """When to look again at the latest; None: when woken."""
        return self._waiter.until

    @property
    def waker(self) -> Waker:
        """What the driver waits on."""
        waiter = self._waiter
        if waiter.waker is None:
            waiter.waker = waiter.make_waker()
        return waiter.waker

    @property
    def gate(self) -> str:
        """What is closed for the head of the line."""
        slots = self._waiter.slots
        return slots.gate if slots is not None else ""

    def stand(self, now: float, deadline: float) -> Permit | None:
        """Joins the queue, or passes at once."""
        self._waiter.deadline = deadline
        return self._registry.stand(self._waiter, self.key, self._window)

    def look(self, now: float) -> Permit | None:
        """The permit, if it was given meanwhile."""
        return self._registry.look(self._waiter)

    def leave(self) -> None:
        """Gives up the place, or the permit that was never used."""
        self._registry.leave(self._waiter)

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Takes in the headers of a streaming answer."""
        self._registry.learn(permit, outcome)

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> None:
        """Gives the slot back with what the attempt came to."""
        self._registry.settle(permit, outcome, self._waiter if rejoin else None)

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        self._registry.settle(permit, ABANDONED)

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        if self._registry.listening:
            self._registry.tell(event(self.key, self._registry.clock(), *facts))
