"""The present state of a key, as frozen values for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.core.admission import Admission
from tidegate.core.breaker import State
from tidegate.core.gates import INFINITY
from tidegate.core.lesson import Learnt
from tidegate.core.mirror import Mirror
from tidegate.core.outlook import Outlook, QuotaOutlook, foresee
from tidegate.core.vocabulary import Cost, Key


@dataclass(frozen=True, slots=True)
class QuotaSnapshot:
    """One mirrored quota: `limit` units of `unit` per `window` seconds, `level` of them left as far as is known."""

    name: str
    unit: str
    limit: float
    window: float
    level: float


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """One key. Durations are in seconds.

    A call is one or more `attempts`: the `absorbed` refusals were repeated, so that the caller never saw them.
    `calls` is of those that were sent, `given_up` for want of capacity, or `replayed`: given another call's answer.
    `failed` counts attempts; `failed_calls` counts calls whose failure was handed back, each `replayed` one among them;
    `retried` counts the attempts that followed a transient failure.

    `ready_in` is when the next call could go (who waits first, else one request): 0 now, infinity when an attempt under
    way must end first; `gate` says what is closed meanwhile. `eta` is when the last of those who wait now will be let
    through, if nobody goes before them: 0 where nobody waits, None where nothing known says it; `eta_gate` is the gate
    that binds until then. `learnt` says what each gate's state was learnt from, and how far to trust it.

    While the provider rejects the whole key, `rejected` is the cause (`auth`, `money`, `day`), and `rejected_for` the
    time until one call asks again, or until the reset that the provider named.

    `ignored` counts unusable values in responses. Latencies are of the last hundred answered attempts, None before the
    first. `chars_per_token` and `mean_output` (tokens an answer) are what costs are estimated by. `at` is when all of
    this was so, in seconds of the registry's clock.
    """

    key: Key
    at: float
    limit: int
    in_flight: int
    waiting: int
    ready_in: float
    gate: str
    eta: float | None
    eta_gate: str
    learnt: tuple[Learnt, ...]
    breaker: str
    paused_for: float
    quotas: tuple[QuotaSnapshot, ...]
    attempts: int
    answered: int
    refused: int
    failed: int
    abandoned: int
    ignored: int
    calls: int
    given_up: int
    absorbed: int
    latency_mean: float | None
    latency_p50: float | None
    latency_p99: float | None
    chars_per_token: float
    mean_output: float
    failed_calls: int = 0
    retried: int = 0
    replayed: int = 0
    rejected: str = ""
    rejected_for: float = 0.0

    @property
    def ready_at(self) -> float:
        """When the next call could go, in seconds of the registry's clock."""
        return self.at + self.ready_in


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """Every key the registry knows, least recently used first."""

    keys: Mapping[Key, KeySnapshot]

    @property
    def attempts(self) -> int:
        """Requests sent, over all keys."""
        return sum(each.attempts for each in self.keys.values())

    @property
    def answered(self) -> int:
        """Requests answered, over all keys."""
        return sum(each.answered for each in self.keys.values())

    @property
    def refused(self) -> int:
        """Requests refused for want of capacity, over all keys."""
        return sum(each.refused for each in self.keys.values())

    @property
    def in_flight(self) -> int:
        """Requests under way, over all keys."""
        return sum(each.in_flight for each in self.keys.values())

    @property
    def waiting(self) -> int:
        """Calls in a queue, over all keys."""
        return sum(each.waiting for each in self.keys.values())


def key_snapshot(admission: Admission, waiting: int, head: Cost, mean: Cost, now: float) -> KeySnapshot:
    """The state of one key at `now`, with `waiting` calls in line: the first costs `head`, each `mean` on average."""
    ready, gate = admission.ready_at(head, now)
    rejection = admission.rejection
    opens = now if rejection is None else rejection.opens_at(INFINITY, now)
    if rejection is not None and opens > ready:
        ready, gate = opens, rejection.gate
    foreseen = foresee(outlook(admission, waiting, mean, now))
    counts = admission.counts
    latencies = sorted(counts.latencies)
    return KeySnapshot(
        key=admission.key,
        at=now,
        limit=admission.limit.slots,
        in_flight=admission.in_flight,
        waiting=waiting,
        ready_in=max(0.0, ready - now),
        gate=gate,
        eta=foreseen.seconds,
        eta_gate=foreseen.gate,
        learnt=tuple(_learnt(admission, now)),
        breaker=admission.breaker.state.value,
        paused_for=max(0.0, admission.pause.until - now),
        quotas=tuple(
            QuotaSnapshot(mirror.name, mirror.unit, mirror.limit, mirror.window, mirror.level(now))
            for mirror in admission.quotas.mirrors.values()
        ),
        attempts=counts.attempts,
        answered=counts.answered,
        refused=counts.refused,
        failed=counts.failed,
        abandoned=counts.abandoned,
        ignored=counts.ignored,
        calls=counts.attempts - counts.resent + counts.unsent + counts.spared,
        given_up=counts.given_up,
        absorbed=counts.absorbed,
        latency_mean=sum(latencies) / len(latencies) if latencies else None,
        latency_p50=_percentile(latencies, 0.5),
        latency_p99=_percentile(latencies, 0.99),
        chars_per_token=admission.estimate.chars_per_token,
        mean_output=admission.estimate.mean_output,
        failed_calls=counts.failed_calls,
        retried=counts.resent - counts.absorbed,
        replayed=counts.replayed,
        rejected=rejection.outcome.cause.value if rejection is not None else "",
        rejected_for=max(0.0, opens - now),
    )


def outlook(admission: Admission, waiting: int, mean: Cost, now: float) -> Outlook:
    """Return what the gates of one key know at `now` of `waiting` calls that cost `mean` on average."""
    closed, by = max((admission.pause.opens_at(now), "pause"), (admission.breaker.opens_at(now), "breaker"))
    latencies = admission.counts.latencies
    return Outlook(
        waiting=waiting,
        closed_for=closed - now,
        closed_by=by if closed > now else "",
        slots=admission.limit.slots,
        flights=tuple(now - permit.sent_at for permit in admission.flying.values()),
        latency=sum(latencies) / len(latencies) if latencies else None,
        quotas=tuple(_quota_outlook(mirror, mean, now) for mirror in admission.quotas.mirrors.values()),
        pace=admission.pacer.rate if admission.pacer.active else 0.0,
    )


def _quota_outlook(mirror: Mirror, mean: Cost, now: float) -> QuotaOutlook:
    back = mirror.comes_back_at(now)
    amount = mean.amount(mirror.unit) * mirror.scale + mean.reserve(mirror.unit)
    boundary = None if back is None else back - now
    return QuotaOutlook(mirror.name, mirror.level(now), mirror.limit, mirror.window, boundary, amount)


def _learnt(admission: Admission, now: float) -> Iterator[Learnt]:
    quotas, lessons = admission.quotas, admission.lessons
    for mirror in quotas.mirrors.values():
        lesson = quotas.lessons[mirror.name]
        yield lesson.learnt(f"quota {mirror.name}", now, mirror.window)
        yield lesson.learnt_window(f"window of {mirror.name}", now, mirror.window)
    yield lessons.limit.learnt("concurrency", now)
    if admission.pacer.active:
        yield lessons.pace.learnt("pace", now)
    if admission.pause.until > now:
        yield lessons.pause.learnt("pause", now)
    if admission.breaker.state is not State.CLOSED:
        yield lessons.breaker.learnt("breaker", now)


def _percentile(ascending: list[float], share: float) -> float | None:
    return ascending[int((len(ascending) - 1) * share)] if ascending else None
