"""The words of one call's dialogue: what an exchange asks for, what it is told, how it ends, and where it stands."""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidegate.core import events
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Key, Kind, Outcome


class Ending(StrEnum):
    """The ending of a call."""

    ANSWERED = "answered"
    HANDED_BACK = "handed_back"
    GIVEN_UP = "given_up"
    EXPIRED = "expired"
    REPLAYED = "replayed"


class Wait(NamedTuple):
    """Suspend until `until` (monotonic seconds; None: for ever) or until `waker` is woken."""

    until: float | None
    waker: Any


class Send(NamedTuple):
    """Perform one attempt under `permit`."""

    permit: Permit


class Sent:
    """The result of one attempt: its outcome, and the response or exception that carried it.

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
    """The result of an exchange: how it ended, the last thing the provider said (if it said any), and the waiting.

    `gate` is what was closed at the end, and opens in `opens_in` seconds where that was known to be too late. The end
    of a call that is `REPLAYED` is another call's answer, which its `sent` carries in the outcome.
    """

    ending: Ending
    sent: Sent | None
    waited: float
    gate: str = ""
    opens_in: float | None = None


class Policy(NamedTuple):
    """The limits of a call: it waits `max_wait` seconds in all, and repeats transient failures up to `attempts`.

    `replayable` is False for a body that can be sent only once; back-off runs from `backoff_base` to `backoff_cap`
    seconds with full jitter. One that is not `patient` hands a refusal straight back: somebody above asks again.
    """

    max_wait: float
    attempts: int = 1
    replayable: bool = True
    backoff_base: float = 1.0
    backoff_cap: float = 60.0
    patient: bool = True


class Begun(NamedTuple):
    """A first attempt that passed at once and was not simply answered: the dialogue goes on from here."""

    permit: Permit
    sent: Sent
    began: float


class Seat(Protocol):
    """One call's place in its key's queue; no method blocks."""

    @property
    def key(self) -> Key:
        """Return whose queue it is."""
        ...

    @property
    def until(self) -> float | None:
        """When to look again at the latest; None: when woken."""
        ...

    @property
    def gate(self) -> str:
        """Return what is closed."""
        ...

    @property
    def recalled(self) -> bool:
        """Return whether the caller wants no permit any more: the call ends as at its deadline."""
        ...

    @property
    def replay(self) -> Outcome | None:
        """The answer that the call is given in the place of an attempt."""
        ...

    @property
    def opens_at(self) -> float | None:
        """When its gate opens, where that is known to be beyond the deadline."""
        ...

    def alarm(self) -> Any:
        """Return what the driver waits on."""
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

    def failed(self) -> None:
        """Counts a call whose failure is handed back."""
        ...

    def replayed(self, outcome: Outcome, unsent: bool) -> None:
        """Counts a call that is given the answer of another one; `unsent` where no attempt of it was ever made."""
        ...

    def tell(self, event: type[events.Event], *facts: object) -> None:
        """Reports an event of this call."""
        ...


Effect: TypeAlias = Wait | Send
Flow: TypeAlias = Generator[Effect, Resume, Ended]
