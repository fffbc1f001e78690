"""What a key does now, as frozen values for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.core.admission import Admission
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
    `calls` is of those that were sent or `given_up` for want of capacity.

    `ready_in` is when the next call could go (who waits first, else one request): 0 now, infinity when an attempt under
    way must end first; `gate` says what is closed meanwhile. `ignored` counts unusable values in responses. Latencies
    are of the last hundred answered attempts, None before the first. `chars_per_token` and `mean_output` (tokens an
    answer) are what costs are estimated by.
    """

    key: Key
    limit: int
    in_flight: int
    waiting: int
    ready_in: float
    gate: str
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


def key_snapshot(admission: Admission, waiting: int, head: Cost, now: float) -> KeySnapshot:
    """The state of one key at `now`, with `waiting` calls in its line, of which the first costs `head`."""
    ready, gate = admission.ready_at(head, now)
    counts = admission.counts
    latencies = sorted(counts.latencies)
    return KeySnapshot(
        key=admission.key,
        limit=admission.limit.slots,
        in_flight=admission.in_flight,
        waiting=waiting,
        ready_in=max(0.0, ready - now),
        gate=gate,
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
        calls=counts.attempts - counts.resent + counts.unsent,
        given_up=counts.given_up,
        absorbed=counts.absorbed,
        latency_mean=sum(latencies) / len(latencies) if latencies else None,
        latency_p50=_percentile(latencies, 0.5),
        latency_p99=_percentile(latencies, 0.99),
        chars_per_token=admission.estimate.chars_per_token,
        mean_output=admission.estimate.mean_output,
    )


def _percentile(ascending: list[float], share: float) -> float | None:
    return ascending[int((len(ascending) - 1) * share)] if ascending else None
