"""Means of scores: of any finite numbers, and equal on both databases but for their rounding."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import pytest

from tests.storage.values import claimed, experiment, judged, run
from tidegate.experiments.storage import Annotation, Store
from tidegate.experiments.storage.reports import score_pages
from tidegate.experiments.storage.tally import CompensatedSum

pytestmark = pytest.mark.anyio

GREATEST, LEAST = sys.float_info.max, 5e-324

SCORES = [
    [LEAST],
    [LEAST, 1.0],
    [math.exp(-725), math.exp(-744), 0.25],
    [-LEAST, LEAST, -LEAST],
    [GREATEST, GREATEST],
    [1e308, 1e308, -1e308, -1e308, 1.0],
    [-GREATEST, -GREATEST, LEAST],
    [1e16, 1.0, -1e16],
    [0.1] * 10,
    [0.0, -0.0],
    [2.2250738585072014e-308, 2.225073858507201e-308],
    [1.0, 0.0, 0.0],
]


@pytest.mark.parametrize("scores", SCORES)
async def test_mean_of_any_finite_scores_is_finite_and_right(store: Store, scores: list[float]) -> None:
    made = await experiment(store, len(scores))
    claim = await claimed(store, made.id)
    for ordinal, score in enumerate(scores):
        await store.write([run(claim, ordinal), judged(claim, ordinal, annotations=[Annotation("a", score=score)])])
    (found,) = await store.reports.scores(made.id)
    tally = (await store.tallies.of([made.id]))[made.id]["judge"].outputs["a"]
    expected = float(sum(map(Fraction, scores)) / len(scores))
    assert found.scored == tally.scored == len(scores)
    # A tally scales: scores of the size of the smallest double lose digits.
    for mean in (found.mean, tally.mean):
        assert mean == pytest.approx(expected, rel=1e-9, abs=1e-9 * max(map(abs, scores)) + 1e-300)


@pytest.mark.parametrize("scores", [[0.1] * 10, [0.0, -0.0], [1.0, 0.0, 0.0], [-7.5, 1e6]])
async def test_mean_of_the_repetitions_of_a_row_is_right(store: Store, scores: list[float]) -> None:
    made = await experiment(store, 1, len(scores))
    claim = await claimed(store, made.id)
    for number, score in enumerate(scores, 1):
        each = [Annotation("a", score=score)]
        await store.write([run(claim, 0, number), judged(claim, 0, repetition=number, annotations=each)])
    (page,) = [page async for page in score_pages(store.database, made.id)]
    (found,) = page.scores
    expected = float(sum(map(Fraction, scores)) / len(scores))
    assert found.mean is not None
    assert found.mean == pytest.approx(expected, rel=1e-9)


def test_batches_that_cancel_each_other_keep_the_small_ones() -> None:
    total = CompensatedSum()
    for batch in ([1e16], [1.0, 0.25], [-1e16], [1e-9]):
        total.add(batch)
    assert total.value == pytest.approx(1.250000001, rel=1e-15)


def test_many_small_batches_sum_as_precisely_as_one() -> None:
    total = CompensatedSum()
    for _ in range(100_000):
        total.add([0.1])
    assert total.value == math.fsum([0.1] * 100_000)
