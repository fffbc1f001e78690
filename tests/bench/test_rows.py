"""Makespan and refusals of rows and drawn families in virtual time: each is bounded a little above what it takes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bench import virtual
from bench.drawntable import DRAWN
from bench.scenarios import NAMES, row_named


class Most(NamedTuple):
    """Bounds of one run: makespan over the ideal, refusals per call, attempts in an outage."""

    name: str
    seed: int
    ratio: float
    refused: float
    hits: int = 0


FAMILIES = {each.name: each for each in DRAWN}

RUNS = (
    Most("tiny-bucket", 4, 1.06, 0.05),
    Most("flips", 2, 1.13, 0.21),
    Most("flips-mixed", 2, 1.31, 0.12),
    Most("growth", 2, 1.08, 0.06),
    Most("growth", 4, 1.11, 0.12),
    Most("hidden-fixed", 10, 1.05, 0.1),
    Most("hidden-rolling", 6, 1.08, 0.1),
    Most("hidden-slots", 8, 1.09, 0.03),
    Most("hint-constant", 2, 1.05, 0.05),
    Most("hint-late", 2, 1.08, 0.08),
    Most("hint-absurd", 2, 1.07, 0.27),
    Most("small-burst", 0, 1.08, 0.11),
    Most("long-answers", 0, 1.08, 0.13),
    Most("silent-changing", 0, 1.05, 0.08),
    Most("silent-steady", 0, 1.05, 0.05),
    Most("silent-slots", 0, 1.08, 0.03),
    Most("slope", 0, 1.09, 0.08),
    Most("fixed-short-windows", 0, 1.05, 0.03),
    Most("fast-refill", 0, 1.05, 0.03),
    Most("sub-windows", 0, 1.05, 0.03),
    Most("bucket-and-chance", 2, 1.89, 0.24),
    Most("slots-and-bucket", 2, 1.24, 0.06),
    Most("slots-and-chance", 2, 2.13, 0.06),
    Most("announced-rolling", 2, 1.08, 0.03),
    Most("announced-fixed", 2, 1.06, 0.03),
    Most("charges-minimum", 1, 1.05, 0.02),
    Most("charges-returned", 4, 1.12, 0.05),
    Most("charges-produced", 2, 1.02, 0.02),
    Most("bound-large-anthropic", 2, 1.05, 0.02),
    Most("bound-small-anthropic", 2, 1.07, 0.08),
    Most("fits-burst-openai", 2, 1.12, 0.02),
    Most("fits-burst-anthropic", 8, 1.14, 0.02),
    Most("drawn-outage", 2, 1.09, 0.02, 21),
    Most("drawn-outage", 8, 1.05, 0.02, 19),
    Most("drawn-knee", 2, 1.08, 0.02),
    Most("latency-knee", 0, 1.07, 0.02),
    Most("idle-bursts", 2, 1.07, 0.23),
    Most("acceleration", 2, 2.02, 0.03),
    Most("brief-refill", 2, 2.05, 0.03),
    Most("counted-refusals", 2, 1.4, 0.32),
    Most("hidden-tokens", 2, 1.08, 0.21),
    Most("mixed-sizes", 2, 1.13, 0.16),
    Most("smoothing", 2, 1.05, 0.04),
    Most("foreign-headers", 2, 1.05, 0.04),
    Most("models-share", 2, 1.06, 0.02),
    Most("announced-heavy-tail", 2, 1.06, 0.02),
    Most("stray-refusals-alone", 0, 1.69, 0.02),
    Most("stray-refusals", 0, 1.26, 0.02),
    Most("silent-tokens", 0, 1.06, 0.04),
    Most("fixed-windows", 0, 1.05, 0.03),
    Most("rolling-window", 0, 1.08, 0.03),
    Most("shared-quota", 0, 1.07, 0.06),
    Most("shrinking-limit", 0, 1.06, 0.03),
    Most("limit-that-does-not-bind", 0, 1.05, 0.03),
    Most("outage", 0, 1.08, 0.02, 18),
    Most("token-bound", 0, 1.05, 0.07),
    Most("request-bound", 0, 1.05, 0.02),
)
"""Runs that each rule of the controller is needed for: without it, one of them is slower or is refused more often."""


@pytest.mark.parametrize("most", RUNS, ids=lambda most: f"{most.name}-{most.seed}")
def test_a_row_takes_little_more_than_the_ideal_and_is_seldom_refused(most: Most) -> None:
    row = row_named(most.name) if most.name in NAMES else FAMILIES[most.name].row(most.seed)
    run = virtual.run(row, most.seed)
    assert run.lost == 0
    assert run.ratio <= most.ratio
    assert run.refused_share <= most.refused
    assert run.hits <= most.hits
