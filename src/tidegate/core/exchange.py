"""One call, from the queue to its ending, as a generator that performs no I/O.

Theory of operation. The generator yields what must happen next and is resumed with what did happen: `Wait` (until an
instant, or until woken) or `Send` (one attempt under a permit). It never reads a clock: every `Resume` carries `now`
in monotonic seconds. `tidegate.drive` has its only two interpreters, one that blocks a thread and one that awaits.

We own capacity: a call that the provider refused for want of it goes back to the *head* of its queue, spends no
attempt and waits on, until its deadline. Transient failures belong to whoever owns the retry policy: an SDK gets them
back at once (`attempts` is 1), `registry.execute` repeats them itself. But the failure of the breaker's probe is
nobody's answer: that call returns to the head, so an outage loses no call. Everything else is handed back at once.

However the exchange ends (return, exception, cancellation, an abandoned generator), the place in the queue or the
permit goes back exactly once: a driver that stops early closes the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core import events
from tidegate.core.admission import Permit
from tidegate.core.backoff import full_jitter
from tidegate.core.vocabulary import CAPACITY, TERMINAL, Cause, Key, Kind, Outcome


class Ending(StrEnum):
    """How a call ended."""

    ANSWERED = "answered"
    HANDED_BACK = "handed_back"
    GIVEN_UP = "given_up"
    EXPIRED = "expired"


class Wait(NamedTuple):
    """Suspend until `until` (monotonic seconds; None: for ever) or until `waker` is woken."""

    until: float | None
    waker: Any


class Send(NamedTuple):
    """Perform one attempt under `permit`."""

    permit: Permit


class Sent:
    """What one attempt came to: its outcome, and the response or exception that carried it.

    `streaming` says that the body is still under way: the permit then goes with the stream, which settles it.
    """

    __slots__ = ("error", "outcome", "response", "streaming")

    def __init__(
        self, outcome: Outcome, *, response: Any = None, error: Exception | None = None, streaming: bool = False
    ) -> None:
        self.outcome = outcome
        self.response = response
        self.error = error
        self.streaming = streaming


class Resume:
    """The world as the driver saw it: the time, and what became of a `Send`."""

    __slots__ = ("now", "sent")

    def __init__(self, now: float, sent: Sent | None = None) -> None:
        self.now = now
        self.sent = sent


class Ended(NamedTuple):
    """The result of an exchange: how it ended, the last thing the provider said (if it said any), and the waiting."""

    ending: Ending
    sent: Sent | None
    waited: float
    gate: str = ""


class Policy(NamedTuple):
    """What a call may do by itself: wait `max_wait` seconds in all, repeat transient failures up to `attempts`.

    `replayable` is False for a body that can be sent only once; back-off runs from `backoff_base` to `backoff_cap`
    seconds with full jitter.
    """

    max_wait: float
    attempts: int = 1
    replayable: bool = True
    backoff_base: float = 1.0
    backoff_cap: float = 60.0


class Begun(NamedTuple):
    """A first attempt that passed at once and was not simply answered: the dialogue goes on from here."""

    permit: Permit
    sent: Sent
    began: float


class Seat(Protocol):
    """One call's place in its key's queue; no method blocks."""

    @property
    def key(self) -> Key:
        """Whose queue it is."""
        ...

    @property
    def until(self) -> float | None:
        """When to look again at the latest; None: when woken."""
        ...

    @property
    def gate(self) -> str:
        """What is closed."""
        ...

    def alarm(self) -> Any:
        """What the driver waits on."""
        ...

    def stand(self, now: float, deadline: float) -> Permit | None:
        """Joins the queue, or passes at once; a call that has stood before returns to its old place."""
        ...

    def look(self, now: float) -> Permit | None:
        """The permit, if it was given meanwhile."""
        ...

    def leave(self) -> None:
        """Gives up the place, or the permit that was never used; repeating it does nothing."""
        ...

    def learn(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Takes in the headers of a streaming answer."""
        ...

    def settle(self, permit: Permit, outcome: Outcome, now: float, rejoin: bool) -> None:
        """Gives the slot back with what the attempt came to; with `rejoin` the call stands at its old place at once."""
        ...

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short (cancelled, interrupted): nothing is learned."""
        ...

    def resent(self, after: Kind) -> None:
        """Counts an attempt of a call whose last one came to `after`."""
        ...

    def gave_up(self, unsent: bool) -> None:
        """Counts a call that is given up for want of capacity, sent before or never."""
        ...

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        ...


Effect: TypeAlias = Wait | Send
Flow: TypeAlias = Generator[Effect, Resume, Ended]


def exchange(seat: Seat, policy: Policy, now: float, draw: Callable[[], float], begun: Begun | None = None) -> Flow:
    """The dialogue of one call; `draw` gives uniform numbers in [0, 1)."""
    began = now if begun is None else begun.began
    deadline = began + policy.max_wait
    attempts, failures, waited, standing = 0, 0, 0.0, False
    last: Sent | None = None
    held: Permit | None = None
    try:
        while True:
            stood, gate = now, ""
            if begun is not None:
                permit: Permit | None = begun.permit
            else:
                permit = seat.look(now) if standing else seat.stand(now, deadline)
            while permit is None and now < deadline:
                gate = seat.gate or "queue"
                now = (yield Wait(seat.until, seat.alarm())).now
                permit = seat.look(now)
            if gate:
                seat.tell(events.RequestWaited, now - stood, gate)
            waited += now - stood
            if permit is None:
                seat.gave_up(last is None)
                seat.tell(events.QueueDeadline, now - began, seat.gate)
                return Ended(Ending.EXPIRED if last is None else Ending.GIVEN_UP, last, waited, seat.gate)
            held = permit
            if begun is not None:
                sent: Sent | None = begun.sent
                begun = None
            else:
                if last is None:
                    seat.tell(events.RequestStarted, waited)
                else:
                    seat.resent(last.outcome.kind)
                here = yield Send(permit)
                now, sent = here.now, here.sent
            assert sent is not None, "a Send is resumed with what became of it"
            outcome, held, attempts = sent.outcome, None, attempts + 1
            if outcome.kind is Kind.OK:
                if sent.streaming:
                    seat.learn(permit, outcome, now)
                else:
                    seat.settle(permit, outcome, now, False)
                seat.tell(events.RequestCompleted, attempts, now - began, outcome.status)
                return Ended(Ending.ANSWERED, sent, waited)
            again = _again(policy, permit, outcome, now >= deadline, failures + 1)
            standing = again is Again.AT_ONCE
            seat.settle(permit, outcome, now, standing)
            if again is Again.NO:
                given_up = outcome.kind in CAPACITY and policy.replayable
                if given_up:
                    seat.gave_up(False)
                why = (outcome.kind, outcome.cause, given_up, outcome.status)
                seat.tell(events.RequestFailed, attempts, now - began, *why)
                final = given_up or outcome.kind in TERMINAL
                return Ended(Ending.GIVEN_UP if final else Ending.HANDED_BACK, sent, waited)
            last = sent
            seat.tell(events.RequestRetrying, attempts, outcome.kind, outcome.cause, outcome.status)
            if again is Again.LATER:
                failures += 1
                stood = now
                until = now + full_jitter(failures, policy.backoff_base, policy.backoff_cap, draw())
                until = min(until, deadline)
                while now < until:
                    now = (yield Wait(until, seat.alarm())).now
                seat.tell(events.RequestWaited, now - stood, "backoff")
                if now >= deadline:
                    seat.gave_up(False)
                    why = (outcome.kind, outcome.cause, True, outcome.status)
                    seat.tell(events.RequestFailed, attempts, now - began, *why)
                    return Ended(Ending.GIVEN_UP, last, waited)
    finally:
        if held is not None:
            seat.abandon(held)
        seat.leave()


class Again(StrEnum):
    """Whether and when a call is attempted again."""

    NO = "no"
    AT_ONCE = "at_once"
    LATER = "later"


def _again(policy: Policy, permit: Permit, outcome: Outcome, late: bool, failures: int) -> Again:
    if late or not policy.replayable:
        return Again.NO
    if outcome.kind in CAPACITY:
        return Again.AT_ONCE
    if outcome.kind is not Kind.TRANSIENT:
        return Again.NO
    if permit.probe and outcome.cause is Cause.OUTAGE:
        return Again.AT_ONCE
    return Again.LATER if failures < policy.attempts else Again.NO
