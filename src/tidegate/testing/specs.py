"""Parts of a scenario: limits, outages, faults, random amounts. Frozen, checked at construction, the same in JSON.

A `Distribution` draws its amounts from a generator that the caller owns.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    StrictFloat,
    StrictInt,
    ValidationError,
    model_validator,
)

from tidegate.errors import ConfigurationError, require
from tidegate.testing.bucket import ContinuousBucket, ResizedBucket, Slope
from tidegate.testing.limiters import Credit, DayQuota, FixedWindow, Limiter, RollingWindow, Slots, Unit

T = TypeVar("T", bound="ScenarioPart")

Number = StrictFloat | StrictInt
"""A number as it is given, and no boolean. An unusable value is named by the errors of the first alternative."""

Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]


class ScenarioPart(BaseModel):
    """Part of a scenario, or the whole: frozen, the same in JSON. An unusable value raises ConfigurationError."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise self._unusable(error.errors()[0]) from None

    @classmethod
    def _unusable(cls, first: Any) -> ConfigurationError:
        field, cause = str(first["loc"][0]) if first["loc"] else cls.__name__, first.get("ctx", {}).get("error")
        if isinstance(cause, ConfigurationError):
            # Of a part inside this one, or of two fields together: it names its own field.
            return cause
        if first["type"] == "extra_forbidden":
            bound = f"there is no such field; the fields are {', '.join(cls.model_fields)}"
        elif first["type"] == "literal_error":
            bound = f"it must be one of {first['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
        else:
            bound = str(first["msg"]).removeprefix("Value error, ")
        return ConfigurationError(field, first["input"], bound)

    def replace(self: T, **changes: Any) -> T:
        """Return this part with some fields changed, as Python or JSON values; raise ConfigurationError."""
        return type(self)(**{**dict(self), **changes})


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


def _distribution(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return Distribution.parse(str(value))
    except ConfigurationError as error:
        raise ValueError(error.bound) from None


Drawn = Annotated[InstanceOf[Distribution], BeforeValidator(_distribution), PlainSerializer(str)]
"""A distribution, which may be given as its text or as a constant."""


def _sorted(steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if list(steps) != sorted(steps, key=lambda step: step[0]):
        raise ValueError("its steps must be sorted by their start")
    return steps


Shares = Annotated[tuple[tuple[NotNegative, NotNegative], ...], AfterValidator(_sorted)]
Sizes = Annotated[tuple[tuple[NotNegative, Positive], ...], AfterValidator(_sorted)]

LimitKind = Literal["bucket", "fixed", "rolling", "slots", "slope", "day", "credit"]
FaultKind = Literal["status", "drop", "stream-error", "stream-drop"]
SlotStatus = Literal[429, 503, 529]
OutageStatus = Literal[500, 502, 503, 504, 529, "drop"]


class Limit(ScenarioPart):
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
    - `sizes`: (start, factor) pairs: from then on a bucket has that part of its size, in the headers too. They model a
      limit that shrinks and grows.
    - `period`: seconds after which `shares` and `sizes` begin again, 0 for never
    - `shared`: whether all keys of a credential share it, where keys are by credential and model
    - `name`: name in the ground truth; by default the unit, `slots`, `slope`, `day` or `money`
    """

    _resized: ClassVar[tuple[LimitKind, ...]] = ("bucket",)

    kind: LimitKind = "bucket"
    limit: NotNegative
    window: Positive = 60.0
    unit: Unit = "requests"
    burst: Positive | None = None
    initial: NotNegative | None = None
    offset: NotNegative = 0.0
    status: SlotStatus = 503
    statuses: tuple[SlotStatus, ...] = ()
    growth: Annotated[Number, Field(ge=1)] = 1.5
    announced: bool | None = None
    shares: Shares = ()
    sizes: Sizes = ()
    period: NotNegative = 0.0
    shared: bool = False
    name: str = ""

    @model_validator(mode="after")
    def _fit(self) -> Limit:
        """Check the fields that depend on one another."""
        require(self.limit > 0 or self.kind == "credit", "limit", self.limit, "it must be above 0")
        ever = not self.shares or self.shares[0][0] > 0 or any(part for _, part in self.shares)
        require(ever, "shares", self.shares, "one share must be above 0")
        fits = not self.sizes or self.kind in self._resized
        require(
            fits, "sizes", self.sizes, f"kind {self.kind} has one size; {', '.join(self._resized)} may have several"
        )
        for name, steps in (("shares", self.shares), ("sizes", self.sizes)):
            bound = f"its steps must start within the period of {self.period:g} s"
            require(not (self.period and steps) or steps[-1][0] < self.period, name, steps, bound)
        return self

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
        """Return a new limiter, full unless `initial` is set; a subclass may draw by the seed of the scenario."""
        limiter = self._built(name)
        if self.statuses:
            limiter.statuses = cycle(self.statuses)
        return limiter

    def _built(self, name: str) -> Limiter:
        if self.kind == "slots":
            return Slots(name, limit=self.limit, status=self.status)
        if self.kind == "slope":
            return Slope(name, limit=self.limit, window=self.window, growth=self.growth)
        if self.kind == "credit":
            return Credit(name, limit=self.limit)
        if self.kind == "day":
            return DayQuota(name, self.unit, limit=self.limit, offset=self.offset)
        if self.kind == "fixed":
            return FixedWindow(name, self.unit, limit=self.limit, window=self.window, offset=self.offset)
        if self.kind == "rolling":
            return RollingWindow(name, self.unit, limit=self.limit, window=self.window)
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


class OutageSpan(ScenarioPart):
    """Outage from `start` to `end` seconds: each call gets `status`, or with `drop` a cut connection."""

    start: NotNegative
    end: Positive
    status: OutageStatus = 503

    @model_validator(mode="after")
    def _fit(self) -> OutageSpan:
        require(self.end > self.start, "end", self.end, f"it must be after the start, {self.start:g} s")
        return self


class Fault(ScenarioPart):
    """Fault of the `nth` admitted calls (from 1), and of each other one with `probability`.

    - `status`: the call is answered with `status` (and was charged)
    - `drop`: the connection is cut instead of an answer
    - `stream-error`: an error event in the middle of a stream; `nth` counts streams
    - `stream-drop`: the connection is cut in the middle of a stream; `nth` counts streams
    """

    kind: FaultKind = "stream-error"
    probability: Share = 0.0
    nth: tuple[Annotated[StrictInt, Field(ge=1)], ...] = ()
    status: Annotated[StrictInt, Field(ge=400, le=599)] = 500
