"""The knowledge of a key as plain values: exported at the end of one run, and put into the next at its beginning.

Theory of operation. Quotas are carried as limit, window and level; the level is brought up to date for the time that
has passed, never above the limit. Every other gate offers plain numbers of its own (`SavedLimiter`). What an earlier
run knew is *unproven*: it may be wrong by now, so it must not cost more than one round. Hence

- a quota that is unproven holds nobody back while nothing is under way: one call goes and asks;
- the first good answer that is read proves the quotas that it names, and the others are forgotten;
- an unproven quota explains no refusal;
- a pause and a breaker are not carried: the first call finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple, Protocol

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.provenance import QuotaProvenance, Source
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.values import QuotaReading, Refill, Unit

Plain = Mapping[str, float]


class SavedLimiter(Protocol):
    """A gate that can say what it has learned in plain numbers, and begin with them."""

    def export(self, now: float) -> Plain:
        """Return what is worth carrying; empty where nothing was learned. No instants: durations and amounts only."""
        ...

    def seed(self, plain: Plain, now: float) -> None:
        """Begins with what an earlier run knew; numbers that are missing or absurd are left at their defaults."""
        ...


class SavedQuota(NamedTuple):
    """A quota as one run knew it: `level` of `limit` units of `unit` were left, and all come back in `window` seconds.

    `back_in` is in how many seconds the whole limit comes back at once, None where that is unknown or does not happen.
    `stated` says that a header named the window, `said` how headers say that it comes back.
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
        """The same `age` seconds later, if nobody used it: never above its limit."""
        age = max(0.0, age)
        if self.refill == "continuous":
            return self._replace(level=min(self.limit, self.level + self.limit / self.window * age))
        if self.back_in is None:
            return self._replace(level=self.limit) if age >= self.window else self
        if age < self.back_in:
            return self._replace(back_in=self.back_in - age)
        return self._replace(level=self.limit, back_in=self.window - (age - self.back_in) % self.window)


class SavedKey(NamedTuple):
    """One key: its quotas, and the plain numbers of its other gates by name."""

    quotas: tuple[SavedQuota, ...]
    gates: Mapping[str, Plain]


def learners(admission: AdmissionController) -> dict[str, SavedLimiter]:
    """The gates of a key that are carried in plain numbers, by the names that they go by."""
    return {"concurrency": admission.limit, "pace": admission.pacer, "estimate": admission.estimate}


def export(admission: AdmissionController, now: float) -> SavedKey:
    """Return what a key has learned by `now`; of quotas, those that headers told of in this run."""
    quotas = admission.quotas
    told = [mirror for name, mirror in quotas.mirrors.items() if quotas.lessons[name].origin is Source.HEADERS]
    gates = {name: dict(each.export(now)) for name, each in learners(admission).items()}
    return SavedKey(
        tuple(_quota(mirror, quotas.lessons[mirror.name], now) for mirror in told),
        {name: plain for name, plain in gates.items() if plain},
    )


def seed(admission: AdmissionController, learned: SavedKey, age: float, now: float) -> None:
    """Lets a new key begin with what an earlier run had learned `age` seconds ago."""
    for quota in learned.quotas:
        admission.quotas.seed(_reading(quota.after(age)), quota.said, now)
    for name, learner in learners(admission).items():
        plain = {what: number for what, number in learned.gates.get(name, {}).items() if isfinite(number)}
        if plain:
            learner.seed(plain, now)
            if name == "concurrency":
                admission.lessons.limit.seeded()
            elif name == "pace":
                admission.lessons.pace.seeded()


def _quota(mirror: QuotaMirror, lesson: QuotaProvenance, now: float) -> SavedQuota:
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
        lesson.window is Source.HEADERS,
        lesson.said,
    )


def _reading(quota: SavedQuota) -> QuotaReading:
    # A period that nobody stated is left to be found anew; the rate of a bucket is what is known best of it.
    window = quota.window if quota.stated or quota.refill != "fixed" else None
    return QuotaReading(quota.name, quota.unit, quota.refill, quota.limit, quota.level, quota.back_in, window)
