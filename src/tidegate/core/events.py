"""Events of tidegate as frozen values: all telemetry starts here.

Every event names its key and `at`, in monotonic seconds. Durations are in seconds. The events of one call share its
number `call`. No event carries a credential, a prompt or an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate.core.values import Cause, Key, Kind, Outcome, Source, Usage


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events."""

    key: Key
    at: float


@dataclass(frozen=True, slots=True)
class CallEvent(Event):
    """Base class of the events of one call; `call` is its number, unique in the process, and 0 where it has none."""

    call: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class SlotAcquired(CallEvent):
    """Admission of an attempt after `waited` seconds in the queue; `in_flight` includes it."""

    waited: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class SlotReleased(CallEvent):
    """End of an attempt after `held` seconds; `in_flight` others remain, and `status` is its answer's, if any."""

    held: float
    in_flight: int
    kind: Kind
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnded(CallEvent):
    """End of an attempt: `index` counts those of its call from 0; it waited `waited` seconds and lasted `held`.

    A stream's attempt ends with the stream. `probe`: it probed an open breaker. Tokens are None where they are unknown;
    `usage` has all kinds of them. `finish_reason` says why the model stopped, and `request_id` is the provider's id of
    the request. Both are None where the answer lacks them, or where no audit is open.
    """

    index: int
    waited: float
    held: float
    kind: Kind
    cause: Cause
    status: int | None
    retry_after: float | None
    input_tokens: int | None
    output_tokens: int | None
    probe: bool
    usage: Usage | None = None
    finish_reason: str | None = None
    request_id: str | None = None


class AttemptTrace:
    """Facts of an attempt in flight, kept only where a listener or an audit gets its `AttemptEnded`.

    `receivers` are those of the audits that were open where the attempt began. `deliver` runs with every lock free.
    """

    __slots__ = ("call", "ended", "finish_reason", "index", "probe", "receivers", "request_id", "waited")

    def __init__(self, call: int, waited: float, probe: bool) -> None:
        self.call = call
        self.waited = waited
        self.probe = probe
        self.index = 0
        self.receivers: Sequence[Callable[[AttemptEnded], object]] = ()
        self.ended: AttemptEnded | None = None
        self.finish_reason: str | None = None
        self.request_id: str | None = None

    def end(self, key: Key, outcome: Outcome, held: float, now: float) -> AttemptEnded:
        """Return the event of the attempt's end at `now`, and keep it for `deliver`."""
        usage = outcome.usage
        ended = self.ended = AttemptEnded(
            key,
            now,
            self.index,
            self.waited,
            held,
            outcome.kind,
            outcome.cause,
            outcome.status,
            outcome.retry_after,
            usage.input_tokens if usage is not None else None,
            usage.output_tokens if usage is not None else None,
            self.probe,
            usage,
            self.finish_reason,
            self.request_id,
            call=self.call,
        )
        return ended

    def deliver(self) -> None:
        """Give the event to the audits, once."""
        ended, self.ended = self.ended, None
        if ended is not None:
            for receiver in self.receivers:
                receiver(ended)


@dataclass(frozen=True, slots=True)
class RateLimitHit(Event):
    """Refusal for lack of capacity; `gate` is the quota that explains it, or empty."""

    kind: Kind
    cause: Cause
    retry_after: float | None
    gate: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RateLimitLearned(Event):
    """First header that names a quota: `limit` units of `unit` per `window` seconds; again if the window is another."""

    quota: str
    unit: str
    limit: float
    window: float


@dataclass(frozen=True, slots=True)
class RateLimitWarning(Event):
    """Warning that only `share` (below 0.1) of `quota` remains and nothing can pace it; concurrency is held back."""

    share: float
    quota: str = ""


@dataclass(frozen=True, slots=True)
class ConcurrencyIncreased(Event):
    """Growth of the concurrency limit to `limit` slots."""

    limit: int


@dataclass(frozen=True, slots=True)
class ConcurrencyDecreased(Event):
    """Cut of the concurrency limit to `limit` slots.

    After a refusal that no quota explains, `cause` and `status` are those of its answer.
    """

    limit: int
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestStarted(CallEvent):
    """Start of a call's first attempt after `waited` seconds in the queue."""

    waited: float


@dataclass(frozen=True, slots=True)
class RequestWaited(CallEvent):
    """End of a wait of `waited` seconds; `gate` is the gate (limiter) that was last closed, or `backoff`."""

    waited: float
    gate: str


@dataclass(frozen=True, slots=True)
class RequestRetrying(CallEvent):
    """Start of a further attempt of a call; `attempt` is the one before it, which ended as `kind`."""

    attempt: int
    kind: Kind
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestCompleted(CallEvent):
    """Answer to a call after `attempts` attempts, `elapsed` seconds after it joined the queue.

    A stream is answered when it begins, and again where it is sent again.
    """

    attempts: int
    elapsed: float
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed(CallEvent):
    """End of a call with a failure; `given_up` is true where the wait, not the provider, ended the call.

    A call that left the queue has the closed `gate` (else None). Without an attempt its kind is `rate_limit`.
    """

    attempts: int
    elapsed: float
    kind: Kind
    cause: Cause
    given_up: bool
    status: int | None = None
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class BreakerOpened(Event):
    """Opening of the breaker after consecutive outage failures or a failed probe: nothing is sent until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class BreakerHalfOpened(Event):
    """Start of the breaker's one probe."""


@dataclass(frozen=True, slots=True)
class BreakerClosed(Event):
    """Closing of the breaker: the provider answered again."""


@dataclass(frozen=True, slots=True)
class KeyPaused(Event):
    """Pause of the key: nothing is sent until `until`. `origin` says if the provider named the time or only refused."""

    until: float
    origin: Source = Source.REFUSALS


@dataclass(frozen=True, slots=True)
class KeyResumed(Event):
    """Start of the first attempt after a pause."""


@dataclass(frozen=True, slots=True)
class KeyRejected(Event):
    """Rejection of the whole key: it lasts until an attempt is admitted (`until`: the reset)."""

    kind: Kind
    cause: Cause
    until: float | None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class KeyAccepted(Event):
    """End of a key's rejection; `rejected` attempts got it."""

    rejected: int


@dataclass(frozen=True, slots=True)
class ShareJoined(Event):
    """Further processes share the limits of the key: `members` in all, this one included, through `carrier`.

    Where the models of an account share limits, `key` names the account.
    """

    members: int
    carrier: str


@dataclass(frozen=True, slots=True)
class ShareLost(Event):
    """End of the sharing of the key's limits in this process: it decides alone from now on.

    `ShareJoined` follows where the server, away for a minute, is back.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class QueueDeadline(CallEvent):
    """Exit of a call from the queue after `waited` seconds, at its deadline or because `gate` opens only after it.

    `queued` seconds of them are those since it last joined the queue. `RequestFailed` follows.
    """

    waited: float
    gate: str
    queued: float = 0.0
