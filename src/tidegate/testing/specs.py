"""Checks of scenario fields; each raises ConfigurationError with field, value and bound.

Parts of a scenario: limits, outages, faults, random amounts. Frozen, checked at construction, the same in JSON.

A `Distribution` draws its amounts from a generator that the caller owns.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Literal

from tidegate.errors import ConfigurationError
from tidegate.testing.bucket import Backends, ContinuousBucket, ResizedBucket, ResizedSlots, Slope
from tidegate.testing.limiters import UNITS, Credit, DayQuota, FixedWindow, Limiter, RollingWindow, Slots, Unit


def number(field: str, value: object) -> float:
    """Return `value` if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(field, value, "it must be a finite number")
    return value


def positive(field: str, value: object) -> None:
    if number(field, value) <= 0:
        raise ConfigurationError(field, value, "it must be above 0")


def at_least(field: str, value: object, bound: float) -> None:
    if number(field, value) < bound:
        raise ConfigurationError(field, value, f"it must be {bound:g} or more")


def share(field: str, value: object) -> None:
    if not 0 <= number(field, value) <= 1:
        raise ConfigurationError(field, value, "it must be between 0 and 1")


def among(field: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigurationError(field, value, "it must be one of " + ", ".join(str(choice) for choice in choices))


Shape = Literal["constant", "uniform", "lognormal"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of an amount; make one with `constant`, `uniform`, `lognormal` or `parse`.

    `a` and `b` are the value and 0 for constant, and the lowest and highest for uniform. For lognormal they are the
    median and sigma (of the logarithm).
    """

    shape: Shape
    a: float
    b: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in ("constant", "uniform", "lognormal"):
            raise ConfigurationError("shape", self.shape, "it must be one of constant, uniform, lognormal")
        if not (math.isfinite(self.a) and self.a >= 0):
            raise ConfigurationError(f"{self.shape}.a", self.a, "it must be a finite number, 0 or more")
        if not (math.isfinite(self.b) and self.b >= 0):
            raise ConfigurationError(f"{self.shape}.b", self.b, "it must be a finite number, 0 or more")
        if self.shape == "uniform" and self.b < self.a:
            raise ConfigurationError("uniform.b", self.b, f"it must not be below the lowest value, {self.a:g}")

    @classmethod
    def constant(cls, value: float) -> Distribution:
        """Return the distribution of a fixed `value`."""
        return cls("constant", value)

    @classmethod
    def uniform(cls, lowest: float, highest: float) -> Distribution:
        """Return the uniform distribution between `lowest` and `highest`."""
        return cls("uniform", lowest, highest)

    @classmethod
    def lognormal(cls, median: float, sigma: float) -> Distribution:
        """Return a lognormal distribution: half of the draws are below `median`, with a long tail above.

        `sigma` 0.5 puts 5 % beyond 2.3 medians.
        """
        return cls("lognormal", median, sigma)

    @classmethod
    def parse(cls, text: str) -> Distribution:
        """Read `0.5`, `uniform:0.2,0.8` or `lognormal:0.5,0.4`; `str()` writes the same forms."""
        shape, _, numbers = text.rpartition(":")
        try:
            values = [float(part) for part in numbers.split(",")]
        except ValueError:
            values = []
        if shape in ("", "constant") and len(values) == 1:
            return cls.constant(values[0])
        if shape == "uniform" and len(values) == 2:
            return cls.uniform(*values)
        if shape == "lognormal" and len(values) == 2:
            return cls.lognormal(*values)
        raise ConfigurationError("distribution", text, "it must be like 0.5, uniform:0.2,0.8 or lognormal:0.5,0.4")

    def __str__(self) -> str:
        if self.shape == "constant":
            return repr(self.a)
        return f"{self.shape}:{self.a!r},{self.b!r}"

    @property
    def median(self) -> float:
        """Return the middle value: half of the draws are below it."""
        return (self.a + self.b) / 2 if self.shape == "uniform" else self.a

    def draw(self, generator: random.Random) -> float:
        """Return one value; the constant takes nothing from the generator."""
        if self.shape == "constant":
            return self.a
        if self.shape == "uniform":
            return generator.uniform(self.a, self.b)
        return self.a * math.exp(self.b * generator.gauss(0.0, 1.0))


LimitKind = Literal["bucket", "fixed", "rolling", "slots", "slope", "day", "credit"]
KINDS: tuple[LimitKind, ...] = ("bucket", "fixed", "rolling", "slots", "slope", "day", "credit")

FaultKind = Literal["status", "drop", "stream-error", "stream-drop"]
FAULTS: tuple[FaultKind, ...] = ("status", "drop", "stream-error", "stream-drop")

OUTAGE_STATUSES = (500, 502, 503, 504, 529, "drop")
SLOT_STATUSES = (429, 503, 529)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limiter of a key.

    - `kind`: bucket (refills continuously), fixed (window with boundaries), rolling (any window), slots (in flight),
      slope (see `growth`), day (fixed window of 86,400 s), credit (money for `limit` calls)
    - `limit`: amount for each window; for slots the number in flight; for credit the number of calls
    - `window`: seconds; unused for slots, day and credit
    - `unit`: the counted unit; slots, slope and credit count requests
    - `burst`: capacity of a bucket, if not `limit`
    - `initial`: content of a bucket at the start, if not full: the key has been used before
    - `offset`: seconds from the start to a boundary of fixed windows and days
    - `status`: status of the refusals of slots: 429, 503 or 529
    - `statuses`: statuses of the refusals of a bucket or window, in turn (none: the dialect's own)
    - `growth`: for slope: a window admits at most max(`limit`, `growth` × the calls of the window before)
    - `announced`: whether headers announce it (default: all but slots, slope and credit). A dialect with one row for a
      unit announces the first such limit of that unit.
    - `shares`: (start, share) pairs: from then on a bucket refills at that share of its rate. They model capacity that
      changes, or another tenant.
    - `sizes`: (start, factor) pairs: from then on a bucket has that part of its size, in the headers too, and slots
      that part of their number. They model a limit that shrinks and grows.
    - `period`: seconds after which `shares` and `sizes` begin again, 0 for never
    - `block`: for fixed: seconds for which everything is refused after a window's first refusal, at least until its
      boundary; the next window begins then
    - `counts_refused`: for rolling: whether refused attempts count as well
    - `backends`: backends behind a bucket or window of requests. Each attempt meets one, drawn by the seed, which has
      that part of the limit and announces it.
    - `shared`: whether all keys of a credential share it, where keys are by credential and model
    - `name`: name in the ground truth; by default the unit, `slots`, `slope`, `day` or `money`
    """

    kind: LimitKind = "bucket"
    limit: float
    window: float = 60.0
    unit: Unit = "requests"
    burst: float | None = None
    initial: float | None = None
    offset: float = 0.0
    status: int = 503
    statuses: tuple[int, ...] = ()
    growth: float = 1.5
    announced: bool | None = None
    shares: tuple[tuple[float, float], ...] = ()
    sizes: tuple[tuple[float, float], ...] = ()
    period: float = 0.0
    block: float = 0.0
    counts_refused: bool = False
    backends: int = 1
    shared: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        among("kind", self.kind, KINDS)
        among("unit", self.unit, UNITS)
        if self.kind == "credit":
            at_least("limit", self.limit, 0)
        else:
            positive("limit", self.limit)
        positive("window", self.window)
        if self.burst is not None:
            positive("burst", self.burst)
        if self.initial is not None:
            at_least("initial", self.initial, 0)
        at_least("offset", self.offset, 0)
        at_least("period", self.period, 0)
        among("status", self.status, SLOT_STATUSES)
        object.__setattr__(self, "statuses", tuple(self.statuses))
        for status in self.statuses:
            among("statuses", status, SLOT_STATUSES)
        at_least("growth", self.growth, 1)
        at_least("block", self.block, 0)
        at_least("backends", self.backends, 1)
        if self.block and self.kind != "fixed":
            raise ConfigurationError("block", self.block, "only a fixed window blocks")
        if self.counts_refused and self.kind != "rolling":
            raise ConfigurationError("counts_refused", self.counts_refused, "only a rolling window counts them")
        if self.backends > 1 and (self.unit != "requests" or self.kind not in ("bucket", "fixed", "rolling")):
            raise ConfigurationError("backends", self.backends, "only a bucket or window of requests has several")
        for name in ("shares", "sizes"):
            object.__setattr__(self, name, tuple((start, part) for start, part in getattr(self, name)))
            self._check_schedule(name, getattr(self, name))
        if self.shares and self.shares[0][0] == 0 and not any(part for _, part in self.shares):
            raise ConfigurationError("shares", self.shares, "one share must be above 0")
        for _, factor in self.sizes:
            positive("sizes.factor", factor)

    def _check_schedule(self, name: str, steps: tuple[tuple[float, float], ...]) -> None:
        starts = [start for start, _ in steps]
        if starts != sorted(starts):
            raise ConfigurationError(name, steps, "its steps must be sorted by their start")
        for start, part in steps:
            at_least(f"{name}.start", start, 0)
            at_least(f"{name}.share", part, 0)
        if self.period and starts and starts[-1] >= self.period:
            raise ConfigurationError(name, steps, f"its steps must start within the period of {self.period:g} s")

    @property
    def default_name(self) -> str:
        """Return the name, or its default."""
        if self.name:
            return self.name
        return {"slots": "slots", "slope": "slope", "day": "day", "credit": "money"}.get(self.kind, self.unit)

    @property
    def is_announced(self) -> bool:
        """Return whether headers announce this limit."""
        return self.kind not in ("slots", "slope", "credit") if self.announced is None else self.announced

    def build(self, name: str, seed: int = 0) -> Limiter:
        """Return a new limiter, full unless `initial` is set; `seed` draws the backends."""
        if self.backends > 1:
            part = self._of_one_backend()
            limiter: Limiter = Backends(name, [part._built(name) for _ in range(self.backends)], seed=seed)
        else:
            limiter = self._built(name)
        if self.statuses:
            limiter.statuses = cycle(self.statuses)
        return limiter

    def _of_one_backend(self) -> Limit:
        count = self.backends
        return replace(
            self,
            limit=self.limit / count,
            burst=None if self.burst is None else self.burst / count,
            initial=None if self.initial is None else self.initial / count,
            backends=1,
        )

    def _built(self, name: str) -> Limiter:
        if self.kind == "slots" and self.sizes:
            return ResizedSlots(name, limit=self.limit, status=self.status, sizes=self.sizes, period=self.period)
        if self.kind == "slots":
            return Slots(name, limit=self.limit, status=self.status)
        if self.kind == "slope":
            return Slope(name, limit=self.limit, window=self.window, growth=self.growth)
        if self.kind == "credit":
            return Credit(name, limit=self.limit)
        if self.kind == "day":
            return DayQuota(name, self.unit, limit=self.limit, offset=self.offset)
        if self.kind == "fixed":
            return FixedWindow(
                name, self.unit, limit=self.limit, window=self.window, offset=self.offset, block=self.block
            )
        if self.kind == "rolling":
            return RollingWindow(
                name, self.unit, limit=self.limit, window=self.window, counts_refused=self.counts_refused
            )
        return self._bucket(name)

    def _bucket(self, name: str) -> ContinuousBucket:
        make: Callable[..., ContinuousBucket] = ContinuousBucket
        if self.sizes:
            make = partial(ResizedBucket, sizes=self.sizes)
        return make(
            name,
            self.unit,
            limit=self.limit,
            window=self.window,
            burst=self.burst,
            initial=self.initial,
            shares=self.shares,
            period=self.period,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageSpan:
    """Outage from `start` to `end` seconds: each call gets `status`, or with `drop` a cut connection."""

    start: float
    end: float
    status: int | Literal["drop"] = 503

    def __post_init__(self) -> None:
        at_least("start", self.start, 0)
        positive("end", self.end)
        if self.end <= self.start:
            raise ConfigurationError("end", self.end, f"it must be after the start, {self.start:g} s")
        among("status", self.status, OUTAGE_STATUSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Fault of the `nth` admitted calls (from 1), and of each other one with `probability`.

    - `status`: the call is answered with `status` (and was charged)
    - `drop`: the connection is cut instead of an answer
    - `stream-error`: an error event in the middle of a stream; `nth` counts streams
    - `stream-drop`: the connection is cut in the middle of a stream; `nth` counts streams
    """

    kind: FaultKind = "stream-error"
    probability: float = 0.0
    nth: tuple[int, ...] = ()
    status: int = 500

    def __post_init__(self) -> None:
        among("kind", self.kind, FAULTS)
        share("probability", self.probability)
        object.__setattr__(self, "nth", tuple(self.nth))
        for number in self.nth:
            at_least("nth", number, 1)
        if not (isinstance(self.status, int) and 400 <= self.status <= 599):
            raise ConfigurationError("status", self.status, "it must be from 400 to 599")
