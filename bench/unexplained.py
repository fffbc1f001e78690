"""Drawn families of refusals that no header explains: two causes at once, tokens, growth, small contents."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from bench.drawn import Draw, Drawn, supplied
from bench.families import SILENT
from bench.limits import VariedLimit
from bench.scenarios import Row
from tidegate.testing import Call, Fault, Limit, Scenario

DEAR = 100
"""Times the tokens of a usual call that each hundredth call has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRow(Row):
    """A row of which each hundredth call is `DEAR` times as large."""

    def calls(self, seed: int) -> tuple[Call, ...]:
        """The calls in order."""
        generator = random.Random(f"mixed {seed}")
        return tuple(Call(4000 if generator.random() < 0.01 else 4000 // DEAR) for _ in range(self.count))


def _row(draw: Draw, count: int, *limits: Limit, **facts: Any) -> Row:
    facts = {"dialect": "none", "latency": draw.latency(0.15, 0.8), **facts}
    return Row(name="", family=SILENT, scenario=Scenario(limiters=limits, **facts), count=count)


def _bucket(draw: Draw, low: float = 4.0, high: float = 30.0) -> Limit:
    rate = draw.scale(low, high)
    return Limit(limit=rate, window=1.0, burst=max(2, round(rate * draw.even(0.2, 1.5))))


def _faults(draw: Draw) -> dict[str, Any]:
    share = round(draw.even(0.02, 0.1), 3)
    return {"faults": (Fault(kind="status", probability=share, status=draw.one(429, 503, 529)),)}


def bucket_and_chance(draw: Draw) -> Row:
    """Return a hidden bucket at a provider that fails a share of all calls as well."""
    limit = _bucket(draw)
    return _row(draw, supplied(limit, draw.even(15, 25)), limit, **_faults(draw))


def slots_and_chance(draw: Draw) -> Row:
    """Return hidden slots at a provider that fails a share of all calls as well."""
    limit = Limit(kind="slots", limit=draw.whole(4, 48), status=draw.one(429, 503, 529))
    latency = draw.latency(0.15, 0.8)
    return _row(draw, round(limit.limit * draw.even(12, 20) / latency.median), limit, latency=latency, **_faults(draw))


def slots_and_bucket(draw: Draw) -> Row:
    """Return hidden slots beside a hidden bucket, of which either binds."""
    latency = draw.latency(0.15, 0.8)
    slots = Limit(kind="slots", limit=draw.whole(6, 40))
    rate = round(draw.even(0.6, 1.4) * slots.limit / latency.median, 2)
    bucket = Limit(limit=rate, window=1.0, burst=max(2, round(rate * draw.even(0.3, 2.0))))
    count = min(900, round(12 * min(rate, slots.limit / latency.median)))
    return _row(draw, count, bucket, slots, latency=latency)


def tokens(draw: Draw) -> Row:
    """Return a hidden bucket of tokens, and calls of different sizes."""
    rate = draw.scale(5_000, 40_000)
    limit = Limit(limit=rate, window=1.0, burst=round(rate * draw.even(0.5, 4.0)) + 4000, unit="tokens")
    row = _row(draw, max(60, round(rate * draw.even(12, 20) / 860)), limit)
    return replace(row, sizes=(40, 4000))


def mixed_sizes(draw: Draw) -> Row:
    """Return a hidden bucket of tokens, where each hundredth call costs a hundred times as much."""
    rate = draw.scale(600, 3000)
    limit = Limit(limit=rate, window=1.0, burst=round(rate * draw.even(1.0, 3.0)) + 4000, unit="tokens")
    made = _row(draw, max(100, round(rate * draw.even(15, 25) / 80)), limit)
    return MixedRow(name="", family=SILENT, scenario=made.scenario, count=made.count)


def smoothing(draw: Draw) -> Row:
    """Return an announced quota a minute that is enforced each second, with a small content."""
    rate = draw.one(5, 10, 20)
    limits = (
        Limit(limit=60.0 * rate, window=60.0),
        Limit(limit=rate, window=1.0, burst=max(1, round(rate * draw.even(0.5, 2.0))), announced=False, name="true"),
    )
    return _row(draw, round(rate * draw.even(25, 45)), *limits, dialect="openai")


def acceleration(draw: Draw) -> Row:
    """Return a limit on growth that no word of the refusals tells."""
    limit = Limit(kind="slope", limit=draw.whole(5, 20), window=1.0, growth=round(draw.even(1.5, 3.0), 2))
    return _row(draw, 500, limit, retry_after="none")


def brief_refill(draw: Draw) -> Row:
    """Return an announced quota that refills within a second, and a content of a fraction of its limit."""
    limit = Limit(limit=draw.whole(10, 60), window=draw.scale(0.05, 1.0))
    count = min(2000, supplied(limit, draw.even(10, 20)))
    return _row(draw, count, limit, dialect=draw.one("openai", "anthropic"))


def counted_refusals(draw: Draw) -> Row:
    """Return a hidden rolling window whose refused attempts count against it."""
    limit = VariedLimit(kind="rolling", limit=draw.whole(10, 100), window=draw.scale(2.0, 20.0), counts_refused=True)
    return _row(draw, round(limit.limit * draw.even(4.2, 6.0)), limit)


UNEXPLAINED = (
    Drawn("bucket-and-chance", bucket_and_chance),
    Drawn("slots-and-chance", slots_and_chance),
    Drawn("slots-and-bucket", slots_and_bucket),
    Drawn("hidden-tokens", tokens),
    Drawn("mixed-sizes", mixed_sizes),
    Drawn("smoothing", smoothing),
    Drawn("acceleration", acceleration),
    Drawn("brief-refill", brief_refill),
    Drawn("counted-refusals", counted_refusals),
)
