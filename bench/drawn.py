"""Families of the laboratory whose numbers are drawn by the seed: limits, bursts, latencies, roundings, statuses.

A row of `scenarios` is one provider; a family here is a kind of provider, and each seed draws one of that kind. What a
controller was tuned to by even seeds is reported by odd ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, Refill
from tidegate.testing.specs import SlotStatus

T = TypeVar("T")


class Draw:
    """Draws of one seed of one family."""

    def __init__(self, family: str, seed: int) -> None:
        self._random = random.Random(f"{family} {seed}")

    def one(self, *choices: T) -> T:
        """Return one of the choices."""
        return self._random.choice(choices)

    def even(self, low: float, high: float) -> float:
        """Return a number between the bounds, each as likely as any other."""
        return self._random.uniform(low, high)

    def scale(self, low: float, high: float) -> float:
        """Return a number between the bounds, each ratio as likely as any other; three digits."""
        return float(f"{low * math.exp(self._random.random() * math.log(high / low)):.3g}")

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, small ones more likely, in proportion."""
        return min(high, int(low * math.exp(self._random.random() * math.log((high + 1) / low))))

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < share

    def latency(self, low: float = 0.2, high: float = 0.9) -> Distribution:
        """Return a latency whose median is between the bounds."""
        return Distribution.lognormal(self.scale(low, high), round(self.even(0.1, 0.4), 2))

    def statuses(self, *choices: SlotStatus, length: int = 12) -> tuple[SlotStatus, ...]:
        """Return statuses of refusals in turn: each of the choices at least once."""
        drawn = [*choices, *(self.one(*choices) for _ in range(length - len(choices)))]
        self._random.shuffle(drawn)
        return tuple(drawn)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Family by name; `make` returns a row from the draws of a seed, which gets the family's name."""

    name: str
    make: Callable[[Draw], Row]

    def row(self, seed: int) -> Row:
        """Return the provider and the calls of one seed."""
        return replace(self.make(Draw(self.name, seed)), name=self.name)


def round_limit(amount: float) -> int:
    """Return an amount as providers set it: whole thousands from 20,000 on, else two digits."""
    return max(1, round(amount / 1000) * 1000 if amount >= 20_000 else round(float(f"{amount:.2g}")))


def supplied(limit: Limit, seconds: float) -> int:
    """Return how many calls a bucket of requests, full at first, admits within `seconds`."""
    burst = limit.limit if limit.burst is None else limit.burst
    refill = Refill(limit.limit / limit.window, limit.shares, limit.period)
    return math.floor(burst + refill.between(0.0, seconds))


def mean_size(sizes: tuple[int, int]) -> float:
    """Return the mean of sizes that are even in the logarithm."""
    low, high = sizes
    return low if low == high else (high - low) / math.log(high / low)


def families(*groups: Sequence[Drawn]) -> tuple[Drawn, ...]:
    """Return all families of the groups; raise ValueError if two have the same name."""
    found = tuple(each for group in groups for each in group)
    if len({each.name for each in found}) < len(found):
        raise ValueError("two families have the same name")
    return found
