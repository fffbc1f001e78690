"""One call's turn at its key: the bridge from the pure dialogue to the registry."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core import events
from tidegate.core.dialogue import Begun, Flow, Policy, Sent
from tidegate.core.exchange import exchange
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import OK, Key, Kind, Outcome
from tidegate.line import Waiter, Waker
from tidegate.queues import ABANDONED
from tidegate.registries import RateLimitRegistry


class Turn(Waiter):
    """One call at a key, from its coming to its end; `tidegate.drive` runs it.

    Most calls pass at once and are answered: `begin` and `concluded` are all they need. Any other goes on, or begins,
    as an exchange, in which the turn itself stands in the line (`tidegate.core.dialogue.Seat`). `window` is the
    provider's usual window in seconds; calls of equal `priority` are first come, first served.
    """

    __slots__ = ("began", "key", "policy", "registry", "window")

    def __init__(self, registry: RateLimitRegistry, key: Key, policy: Policy, window: float, priority: int) -> None:
        # What only standing needs is set by `flow`: most calls never stand.
        self.registry = registry
        self.key = key
        self.policy = policy
        self.window = window
        self.priority = priority

    def now(self) -> float:
        """Monotonic seconds."""
        return self.registry.clock()

    def begin(self) -> Permit | None:
        """The permit, where the call may go at once."""
        permit = self.registry.enter(self.key, self.price, self.window)
        self.began = permit.sent_at if permit is not None else self.registry.clock()
        return permit

    def concluded(self, permit: Permit, sent: Sent) -> bool:
        """Settles an attempt that was simply answered; False leaves it to the exchange."""
        if sent.outcome.kind is not OK:
            return False
        if sent.streaming:
            self.registry.learn(permit, sent.outcome)
        else:
            self.registry.settle(permit, sent.outcome)
        return True

    def flow(self, make_waker: Callable[[], Waker], permit: Permit | None, sent: Sent | None) -> Flow:
        """The dialogue, from the beginning or from an attempt that came to `sent`."""
        registry = self.registry
        Waiter.__init__(self, make_waker, self.priority)
        if permit is None or sent is None:
            return exchange(self, self.policy, self.began, registry.draw)
        self.place = permit.place
        self.deadline = self.began + self.policy.max_wait
        registry.seat(self, self.key, self.window)
        return exchange(self, self.policy, registry.clock(), registry.draw, Begun(permit, sent, self.began))

    @property
    def stood(self) -> bool:
        """Whether it had to stand in the line, before its first attempt or since."""
        return getattr(self, "waker", None) is not None

    @property
    def gate(self) -> str:
        """What is closed for the head of the line."""
        return self.slots.gate if self.slots is not None else ""

    def stand(self, now: float, deadline: float) -> Permit | None:
        """Joins the queue, or passes at once."""
        self.deadline = deadline
        return self.registry.stand(self, self.key, self.window)

    def look(self, now: float) -> Permit | None:
        """The permit, if it was given meanwhile."""
        return self.registry.look(self)

    def leave(self) -> None:
        """Gives up the place, or the permit that was never used."""
        self.registry.leave(self)

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Takes in the headers of a streaming answer."""
        self.registry.learn(permit, outcome)

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> None:
        """Gives the slot back with what the attempt came to."""
        self.registry.settle(permit, outcome, self if rejoin else None)

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        self.registry.settle(permit, ABANDONED)

    def resent(self, after: Kind) -> None:
        """Counts an attempt of a call whose last one came to `after`."""
        self.registry.resent(self, after)

    def gave_up(self, unsent: bool) -> None:
        """Counts a call that is given up for want of capacity."""
        self.registry.gave_up(self, unsent)

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        if self.registry.listening:
            self.registry.tell(event(self.key, self.registry.clock(), *facts))
