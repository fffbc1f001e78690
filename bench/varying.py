"""Rows whose numbers are drawn too, so that a controller that was tuned to the table is found out."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from bench.scenarios import Row
from tidegate.testing import Distribution, Limit

SPREAD = math.log(1.6)
"""Limits and latencies lie between the table's value divided by 1.6 and times 1.6, alike in the logarithm."""

GROWTHS = (1.3, 2.0)


def varied(row: Row, seed: int) -> Row:
    """The row with other limits, latencies, boundaries and slopes, drawn by `seed`; what it is about stays."""
    generator = random.Random(f"{row.name} {seed}")

    def factor() -> float:
        return math.exp(generator.uniform(-SPREAD, SPREAD))

    def limit(each: Limit) -> Limit:
        low, high = GROWTHS
        return each.replace(
            limit=max(1, round(each.limit * factor())),
            offset=generator.random() * each.window if each.kind == "fixed" else each.offset,
            growth=generator.uniform(low, high) if each.kind == "slope" else each.growth,
        )

    scenario = row.scenario
    latency = scenario.latency
    return replace(
        row,
        scenario=scenario.replace(
            limiters=tuple(limit(each) for each in scenario.limiters),
            latency=Distribution(latency.shape, latency.a * factor(), latency.b),
            knee=None if scenario.knee is None else max(1, round(scenario.knee * factor())),
        ),
    )
