"""The events of tidegate, as frozen values: all telemetry starts here.

Every event names its key and `at`, in monotonic seconds. Durations are in seconds. No event carries a credential, a
prompt or an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.core.provenance import Source
from tidegate.core.values import Cause, Key, Kind


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    key: Key
    at: float


@dataclass(frozen=True, slots=True)
class SlotAcquired(Event):
    """An attempt was let through after `waited` seconds in the queue."""

    waited: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class SlotReleased(Event):
    """An attempt ended after holding its slot for `held` seconds; `status` is that of its answer, if it had one."""

    held: float
    in_flight: int
    kind: Kind
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RateLimitHit(Event):
    """The provider refused for want of capacity; `gate` is the quota that explains it, or empty."""

    kind: Kind
    cause: Cause
    retry_after: float | None
    gate: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RateLimitLearned(Event):
    """A header named a quota for the first time: `limit` units of `unit` per `window` seconds."""

    quota: str
    unit: str
    limit: float
    window: float


@dataclass(frozen=True, slots=True)
class RateLimitWarning(Event):
    """Less than 10 % of `quota` remains, which nothing can pace; concurrency is held back meanwhile."""

    share: float
    quota: str = ""


@dataclass(frozen=True, slots=True)
class ConcurrencyIncreased(Event):
    """The limit won a slot."""

    limit: int


@dataclass(frozen=True, slots=True)
class ConcurrencyDecreased(Event):
    """The limit was cut, for the `cause` of a refusal that no quota explains; `status` is that of its answer."""

    limit: int
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestStarted(Event):
    """A call's first attempt is on its way."""

    waited: float


@dataclass(frozen=True, slots=True)
class RequestWaited(Event):
    """A call has waited for `waited` seconds until now; `gate` is what it last saw closed, or `backoff`."""

    waited: float
    gate: str


@dataclass(frozen=True, slots=True)
class RequestRetrying(Event):
    """A call goes back to the head of the queue; `attempt` is the one that ended."""

    attempt: int
    kind: Kind
    cause: Cause = Cause.NONE
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestCompleted(Event):
    """A call was answered after `attempts` attempts, `elapsed` seconds after it joined the queue."""

    attempts: int
    elapsed: float
    status: int | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """A call's failure was handed back; `given_up` says that the wait, not the provider, ended it."""

    attempts: int
    elapsed: float
    kind: Kind
    cause: Cause
    given_up: bool
    status: int | None = None


@dataclass(frozen=True, slots=True)
class BreakerOpened(Event):
    """Consecutive outage failures, or a failed probe: nothing is sent until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class BreakerHalfOpened(Event):
    """One probe is on its way."""


@dataclass(frozen=True, slots=True)
class BreakerClosed(Event):
    """The provider answered again."""


@dataclass(frozen=True, slots=True)
class KeyPaused(Event):
    """Nothing is sent until `until`: the provider said so, or it refused without a word (`origin`)."""

    until: float
    origin: Source = Source.REFUSALS


@dataclass(frozen=True, slots=True)
class KeyResumed(Event):
    """The first attempt after a pause is on its way."""


@dataclass(frozen=True, slots=True)
class KeyRejected(Event):
    """The provider rejects the whole key: calls get this answer until one that asks is let in (`until`: the reset)."""

    kind: Kind
    cause: Cause
    until: float | None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class KeyAccepted(Event):
    """The provider rejects the key no more; `replayed` calls had got its rejection without a request."""

    replayed: int


@dataclass(frozen=True, slots=True)
class QueueDeadline(Event):
    """A call left the queue after `waited` seconds, at its deadline or as `gate` opens only after it."""

    waited: float
    gate: str
