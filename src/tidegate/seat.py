"""One call's place in the queue of its key: the bridge from the pure dialogue to the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from tidegate.core import events
from tidegate.core.admission import Permit
from tidegate.core.estimate import Estimate
from tidegate.core.exchange import Begun, Flow, Policy, Sent, exchange
from tidegate.core.vocabulary import Cost, Key, Kind, Outcome
from tidegate.line import Price, Waiter, Waker
from tidegate.registries import ABANDONED, RateLimitRegistry


class Seat(Waiter):
    """Implements `tidegate.core.exchange.Seat` for one call, by standing in the line itself.

    `window` is the provider's usual window in seconds; calls of equal `priority` are first come, first served.
    """

    __slots__ = ("_registry", "_window", "key")

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
        super().__init__(price, make_waker, priority)
        self._registry = registry
        self._window = window
        self.key = key

    @property
    def gate(self) -> str:
        """What is closed for the head of the line."""
        return self.slots.gate if self.slots is not None else ""

    def stand(self, now: float, deadline: float) -> Permit | None:
        """Joins the queue, or passes at once."""
        self.deadline = deadline
        return self._registry.stand(self, self.key, self._window)

    def resume(self, permit: Permit, deadline: float) -> None:
        """Takes over a call that has passed without standing: its place is that of its `permit`."""
        self.place = permit.place
        self.deadline = deadline
        self._registry.seat(self, self.key, self._window)

    def look(self, now: float) -> Permit | None:
        """The permit, if it was given meanwhile."""
        return self._registry.look(self)

    def leave(self) -> None:
        """Gives up the place, or the permit that was never used."""
        self._registry.leave(self)

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Takes in the headers of a streaming answer."""
        self._registry.learn(permit, outcome)

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> None:
        """Gives the slot back with what the attempt came to."""
        self._registry.settle(permit, outcome, self if rejoin else None)

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        self._registry.settle(permit, ABANDONED)

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        if self._registry.listening:
            self._registry.tell(event(self.key, self._registry.clock(), *facts))


class Turn(ABC):
    """One call at a key, from its coming to its end: what `tidegate.drive` runs.

    Most calls pass at once and are answered: `begin` and `concluded` are all they need. Any other goes on, or begins,
    as an exchange.
    """

    __slots__ = ("began", "key", "policy", "priority", "registry", "window")

    def __init__(self, registry: RateLimitRegistry, key: Key, policy: Policy, window: float, priority: int) -> None:
        self.registry = registry
        self.key = key
        self.policy = policy
        self.window = window
        self.priority = priority
        self.began = 0.0

    @abstractmethod
    def price(self, estimate: Estimate) -> Cost:
        """What the call is expected to be charged, by what its key has learned so far."""

    def __call__(self, estimate: Estimate) -> Cost:
        """The price: a turn is its own price function, so that no bound method is kept for each that waits."""
        return self.price(estimate)

    def begin(self) -> Permit | None:
        """The permit, where the call may go at once."""
        permit = self.registry.enter(self.key, self, self.window)
        self.began = permit.sent_at if permit is not None else self.registry.clock()
        return permit

    def concluded(self, permit: Permit, sent: Sent) -> bool:
        """Settles an attempt that was simply answered; False leaves it to the exchange."""
        if sent.outcome.kind is not Kind.OK:
            return False
        if sent.streaming:
            self.registry.learn(permit, sent.outcome)
        else:
            self.registry.settle(permit, sent.outcome)
        return True

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        self.registry.settle(permit, ABANDONED)

    def flow(self, make_waker: Callable[[], Waker], permit: Permit | None, sent: Sent | None) -> Flow:
        """The dialogue, from the beginning or from an attempt that came to `sent`."""
        registry = self.registry
        seat = Seat(registry, self.key, self, make_waker, window=self.window, priority=self.priority)
        begun = None
        if permit is not None and sent is not None:
            begun = Begun(permit, sent, self.began)
            seat.resume(permit, self.began + self.policy.max_wait)
        now = self.began if begun is None else registry.clock()
        return exchange(seat, self.policy, now, registry.draw, begun)
