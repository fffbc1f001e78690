"""Random amounts as values: constant, uniform or lognormal, drawn from a generator that the caller owns."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from tidegate.errors import ConfigurationError

Shape = Literal["constant", "uniform", "lognormal"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of an amount; make one with `constant`, `uniform`, `lognormal` or `parse`.

    `a` and `b` are: the value and 0 for constant, the lowest and highest for uniform, the median and sigma (of the
    logarithm) for lognormal.
    """

    shape: Shape
    a: float
    b: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in ("constant", "uniform", "lognormal"):
            raise ConfigurationError("shape", self.shape, "one of constant, uniform, lognormal")
        if not (math.isfinite(self.a) and self.a >= 0):
            raise ConfigurationError(f"{self.shape}.a", self.a, "finite, 0 or more")
        if not (math.isfinite(self.b) and self.b >= 0):
            raise ConfigurationError(f"{self.shape}.b", self.b, "finite, 0 or more")
        if self.shape == "uniform" and self.b < self.a:
            raise ConfigurationError("uniform.b", self.b, f"not below the lowest, {self.a:g}")

    @classmethod
    def constant(cls, value: float) -> Distribution:
        """Always `value`."""
        return cls("constant", value)

    @classmethod
    def uniform(cls, lowest: float, highest: float) -> Distribution:
        """Anything between `lowest` and `highest`, equally likely."""
        return cls("uniform", lowest, highest)

    @classmethod
    def lognormal(cls, median: float, sigma: float) -> Distribution:
        """Half of the draws below `median`, with a long tail above; `sigma` 0.5 puts 5 % beyond 2.3 medians."""
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
        raise ConfigurationError("distribution", text, "written as 0.5, uniform:0.2,0.8 or lognormal:0.5,0.4")

    def __str__(self) -> str:
        if self.shape == "constant":
            return repr(self.a)
        return f"{self.shape}:{self.a!r},{self.b!r}"

    @property
    def median(self) -> float:
        """The middle value: half of the draws fall below it."""
        return (self.a + self.b) / 2 if self.shape == "uniform" else self.a

    def draw(self, generator: random.Random) -> float:
        """One value; the constant takes nothing from the generator."""
        if self.shape == "constant":
            return self.a
        if self.shape == "uniform":
            return generator.uniform(self.a, self.b)
        return self.a * math.exp(self.b * generator.gauss(0.0, 1.0))
