"""Learned state of a key as plain values, exported at the end of one run and loaded at the start of the next.

Theory of operation. Quotas are saved as limit, window and level. The level is brought up to date for the elapsed time,
never above the limit. The concurrency limit, the pacer and the cost estimator export plain numbers.
The state of an earlier run is *unproven*: it may be wrong by now, so it must not cost more than one round trip.
Therefore:

- An unproven quota holds no call back while nothing is in flight: one call tests it.
- The first good answer that is read proves the quotas that it names, and the others are forgotten.
- An unproven quota explains no refusal.
- A pause and a breaker are not saved: the first call finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import NamedTuple

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.concurrency_limit import ConcurrencyLimit
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.pacer import Pacer
from tidegate.core.provenance import QuotaProvenance
from tidegate.core.quota import KeyQuotas, QuotaSet
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.values import QuotaReading, Refill, Source, Unit

Plain = Mapping[str, float]

ANSWER, SECONDS = "answer", "seconds"
"""Names, among the plain numbers, of the mean duration of the last answers. A plan reads it; no limiter starts from it.
"""


class SavedQuota(NamedTuple):
    """Quota as one run knew it: `level` of `limit` units of `unit` were left, and all come back in `window` seconds.

    `back_in` is the seconds until the whole limit comes back at once, None where that is unknown or does not happen.
    `stated` says that a header named the window. `said` is the kind of refill that headers state.
    """

    name: str
    unit: Unit
    refill: Refill
    limit: float
    window: float
    level: float
    back_in: float | None
    stated: bool
    said: Refill

    def after(self, age: float) -> SavedQuota:
        """Return the quota `age` seconds later, if no call used it: never above its limit."""
        age = max(0.0, age)
        if self.refill == "continuous":
            return self._replace(level=min(self.limit, self.level + self.limit / self.window * age))
        if self.back_in is None:
            return self._replace(level=self.limit) if age >= self.window else self
        if age < self.back_in:
            return self._replace(back_in=self.back_in - age)
        return self._replace(level=self.limit, back_in=self.window - (age - self.back_in) % self.window)


class SavedKey(NamedTuple):
    """Learned state of one key: its quotas, and the plain numbers of its other limiters by name."""

    quotas: tuple[SavedQuota, ...]
    gates: Mapping[str, Plain]


def learners(admission: AdmissionController) -> dict[str, ConcurrencyLimit | Pacer | CostEstimator]:
    """Return the limiters that export plain numbers: durations and amounts, but no instants."""
    return {"concurrency": admission.concurrency, "pace": admission.pacer, "estimate": admission.estimate}


def export(admission: AdmissionController, now: float) -> SavedKey:
    """Return the state that a key has learned by `now`; of quotas, those that headers of this run named."""
    gates = {name: dict(each.export(now)) for name, each in learners(admission).items()}
    if latencies := admission.counts.latencies:
        gates[ANSWER] = {SECONDS: sum(latencies) / len(latencies)}
    return SavedKey(export_quotas(admission.quotas.own, now), {name: plain for name, plain in gates.items() if plain})


def export_quotas(quotas: QuotaSet, now: float) -> tuple[SavedQuota, ...]:
    """Return the quotas that headers of this run named, as known by `now`."""
    told = [mirror for name, mirror in quotas.mirrors.items() if quotas.provenance[name].origin is Source.HEADERS]
    return tuple(_quota(mirror, quotas.provenance[mirror.name], now) for mirror in told)


def seed(admission: AdmissionController, learned: SavedKey, age: float, now: float) -> None:
    seed_quotas(admission.quotas, learned.quotas, age, now)
    for name, learner in learners(admission).items():
        plain = {what: number for what, number in learned.gates.get(name, {}).items() if isfinite(number)}
        if plain:
            learner.seed(plain, now)
            if name == "concurrency":
                admission.provenance.limit.seeded()
            elif name == "pace":
                admission.provenance.pace.seeded()


def seed_quotas(quotas: KeyQuotas, learned: Iterable[SavedQuota], age: float, now: float) -> None:
    for quota in learned:
        quotas.seed(_reading(quota.after(age)), quota.said, now)


def _quota(mirror: QuotaMirror, provenance: QuotaProvenance, now: float) -> SavedQuota:
    back_at = mirror.resets_at(now)
    refill: Refill = (
        "rolling" if isinstance(mirror, RollingWindowMirror) else "continuous" if back_at is None else "fixed"
    )
    return SavedQuota(
        mirror.name,
        mirror.unit,
        refill,
        mirror.limit,
        mirror.window,
        min(mirror.limit, max(0.0, mirror.level(now))),
        back_at - now if back_at is not None and mirror.is_predictable else None,
        provenance.window is Source.HEADERS,
        provenance.said,
    )


def _reading(quota: SavedQuota) -> QuotaReading:
    # The window of a fixed quota is inferred again unless it was stated; the rate of a bucket is reliable.
    window = quota.window if quota.stated or quota.refill != "fixed" else None
    return QuotaReading(quota.name, quota.unit, quota.refill, quota.limit, quota.level, quota.back_in, window)
