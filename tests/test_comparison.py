"""Intervals of a comparison: they hold the truth as often as they claim, by bootstrap and above its number of rows."""

from __future__ import annotations

import numpy
import pytest

from tidegate.experiments import comparison
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
        low, high = list(intervals_of_means(samples, confidence))[2]
        hits += low <= 0.09 <= high
    return hits / trials


@pytest.mark.parametrize(("confidence", "least", "most"), [(0.95, 0.90, 0.99), (0.6, 0.48, 0.72)])
def test_bootstrap_intervals_hold_the_truth(
    monkeypatch: pytest.MonkeyPatch, confidence: float, least: float, most: float
) -> None:
    monkeypatch.setattr(comparison, "MAX_RESAMPLES", 999)
    assert least <= held(100, 120, confidence) <= most


def test_intervals_above_the_limit_of_the_bootstrap_hold_the_truth_and_agree_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = numpy.random.default_rng(3).random((3, 400))
    resampled = list(intervals_of_means(samples, 0.95))
    monkeypatch.setattr(comparison, "MAX_RESAMPLED_ROWS", 100)
    assert 0.90 <= held(100, 120, 0.95) <= 0.99
    for ours, other in zip(intervals_of_means(samples, 0.95), resampled, strict=True):
        assert ours == pytest.approx(other, abs=0.005)


def test_equal_scores_give_equal_intervals_and_constant_ones_a_point() -> None:
    samples = numpy.stack([numpy.ones(10), numpy.arange(10.0), numpy.arange(10.0) - 1.0])
    first, second = list(intervals_of_means(samples, 0.95)), list(intervals_of_means(samples, 0.95))
    assert first == second
    assert first[0] == (1.0, 1.0)
    assert first[1][0] < 4.5 < first[1][1]


def test_differences_that_are_rounding_have_a_point_as_interval() -> None:
    differences = numpy.array([0.1 + 0.2 - 0.1, 0.2, 0.3 - 0.1] * 10)
    assert numpy.ptp(differences) > 0.0
    bounds = next(iter(intervals_of_means(differences[None, :], 0.95)))
    assert bounds == pytest.approx((0.2, 0.2))
