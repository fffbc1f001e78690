"""Intervals of a comparison: they hold the truth as often as they claim."""

from __future__ import annotations

import numpy
import pytest

from tidegate.experiments.comparison import intervals_of_means


def held(trials: int, rows: int, confidence: float) -> float:
    """Return the share of trials whose interval of the difference holds the true one."""
    draw = numpy.random.default_rng(7)
    hits = 0
    for _ in range(trials):
        before = draw.random(rows) < 0.5
        after = numpy.where(draw.random(rows) < 0.3, draw.random(rows) < 0.8, before)
        # P(after) = .7 * .5 + .3 * .8 = .59, so B is better by .09.
        samples = numpy.stack([before, after, after.astype(float) - before]).astype(float)
        low, high = intervals_of_means(samples, confidence)[2]
        hits += low <= 0.09 <= high
    return hits / trials


@pytest.mark.parametrize(("confidence", "least", "most"), [(0.95, 0.92, 0.98), (0.6, 0.55, 0.65)])
def test_intervals_hold_the_truth(confidence: float, least: float, most: float) -> None:
    assert least <= held(1_000, 120, confidence) <= most


def test_constant_scores_have_a_point_as_interval() -> None:
    samples = numpy.stack([numpy.ones(10), numpy.arange(10.0), numpy.arange(10.0) - 1.0])
    constant, varied, _ = intervals_of_means(samples, 0.95)
    assert constant == (1.0, 1.0)
    assert varied.low < 4.5 < varied.high


def test_differences_that_are_rounding_have_a_point_as_interval() -> None:
    differences = numpy.array([0.1 + 0.2 - 0.1, 0.2, 0.3 - 0.1] * 10)
    assert numpy.ptp(differences) > 0.0
    bounds = intervals_of_means(differences[None, :], 0.95)[0]
    assert bounds == pytest.approx((0.2, 0.2))
