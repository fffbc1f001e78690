"""One call's turn at its key: the bridge from the pure dialogue to the registry."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core import events
from tidegate.core.dialogue import Begun, Flow, Policy, Sent
from tidegate.core.exchange import exchange
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import OK, Key, Kind, Outcome
from tidegate.handing import Hand, handed
from tidegate.line import UNPRICED, Waiter, Waker
from tidegate.queues import ABANDONED
from tidegate.registries import RateLimitRegistry


class Turn(Waiter):
    """One call at a key, from its coming to its end; `tidegate.drive` runs it.

    Most calls pass at once and are answered: `begin` and `concluded` are all they need. Any other goes on, or begins,
    as an exchange, in which the turn itself stands in the line (`tidegate.core.dialogue.Seat`). `window` is the
    provider's usual window in seconds; calls of equal `priority` are first come, first served.
    """

    __slots__ = ("began", "given", "hand", "key", "policy", "registry", "window")

    given: Permit | None
    hand: Hand | None

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
        hand = self.hand = handed()
        permit = self._handed(hand) if hand is not None else self.registry.enter(self.key, self.price, self.window)
        self.began = permit.sent_at if permit is not None else self.registry.clock()
        return permit

    def concluded(self, permit: Permit, sent: Sent) -> bool:
        """Settles an attempt that was simply answered; False leaves it to the exchange."""
        if sent.outcome.kind is not OK:
            return False
        if self.hand is not None:
            self.hand.came_to(permit, sent.outcome, False)
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
    def immediate(self) -> bool:
        """Return whether the call goes now or not at all, whatever was learned: its caller gave it no time to wait."""
        return self.policy.max_wait == 0.0 and self.policy.patient

    @property
    def stood(self) -> bool:
        """Return whether it had to stand in the line, before its first attempt or since."""
        return getattr(self, "waker", None) is not None

    @property
    def gate(self) -> str:
        """Return what is closed for the head of the line."""
        return self.slots.gate if self.slots is not None else ""

    @property
    def recalled(self) -> bool:
        """Return whether the scheduler that handed down this work wants it back."""
        return self.hand is not None and self.hand.recalled

    def stand(self, now: float, deadline: float) -> Permit | None:
        """Joins the queue, or passes at once."""
        self.deadline = deadline
        if self.hand is not None:
            given = self.given
            if given is not None:
                self.given = None
                self.registry.seat(self, self.key, self.window)
                return given
        permit = self.registry.stand(self, self.key, self.window)
        if permit is None and self.hand is not None:
            self.hand.stands(self, now)
        return permit

    def look(self, now: float) -> Permit | None:
        """The permit, if it was given meanwhile."""
        permit = self.registry.look(self)
        if permit is not None and self.hand is not None:
            self.hand.goes(self, now)
        return permit

    def leave(self) -> None:
        """Gives up the place, or the permit that was never used."""
        if self.hand is not None:
            self.hand.goes(self, self.now())
        self.registry.leave(self)

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Takes in the headers of a streaming answer."""
        self.registry.learn(permit, outcome)

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> None:
        """Gives the slot back with what the attempt came to."""
        if self.hand is not None:
            self.hand.came_to(permit, outcome, not self.policy.patient)
            if rejoin:
                self.hand.stands(self, now)
        self.registry.settle(permit, outcome, self if rejoin else None)

    def settle_stream(self, permit: Permit, outcome: Outcome) -> None:
        """Gives the slot back with what a streaming answer came to at its end."""
        if self.hand is not None:
            self.hand.came_to(permit, outcome, False)
        self.registry.settle(permit, outcome)

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        self.registry.settle(permit, ABANDONED)

    def resent(self, after: Kind) -> None:
        """Counts an attempt of a call whose last one came to `after`."""
        self.registry.resent(self, after)

    def gave_up(self, unsent: bool) -> None:
        """Counts a call that is given up for want of capacity."""
        self.registry.gave_up(self, unsent)

    def failed(self) -> None:
        """Counts a call whose failure is handed back."""
        self.registry.count_failed(self)

    def replayed(self, outcome: Outcome, unsent: bool) -> None:
        """Counts a call that is given the answer of another one."""
        if self.hand is not None:
            self.hand.was_given(self.key, outcome)
        self.registry.count_replayed(self, unsent)

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        if self.registry.listening:
            self.registry.tell(event(self.key, self.registry.clock(), *facts))

    def _handed(self, hand: Hand) -> Permit | None:
        """As `begin`, where a permit may have been handed down; where somebody listens, `stand` gives it."""
        registry, policy = self.registry, self.policy
        self.given = None
        permit = hand.take(registry, self.key)
        if permit is not None:
            self.policy = policy._replace(patient=False)
            permit.sent_at = registry.clock()
            if registry.listening:
                self.given = permit
                return None
            return permit
        hand.asked(self.key, UNPRICED)
        if hand.refused_at == self.key:
            # Whatever repeats the refused attempt must not wait in its stead.
            self.policy = policy._replace(max_wait=0.0, patient=False)
        return registry.enter(self.key, self.price, self.window)
