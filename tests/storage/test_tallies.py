"""Tallies: after every batch they are what the results themselves tell, and a new build gives the same."""

from __future__ import annotations

import asyncio
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.places import Place
from tests.storage.values import (
    ERROR,
    INVALID,
    OK,
    PARKED,
    STALE,
    claimed,
    count_again,
    experiment,
    failure,
    judged,
    run,
)
from tidegate.errors import StoreError
from tidegate.experiments.storage import Annotation, Claim, Store
from tidegate.experiments.storage.tally import (
    MAX_BINS,
    MAX_KINDS,
    MAX_LABELS,
    MAX_OUTPUTS,
    OutputTally,
    ResultFacts,
    StageTally,
)

pytestmark = pytest.mark.anyio

ROWS, REPETITIONS = 5, 2
VERDICTS = (
    (Annotation("score", score=0.25),),
    (Annotation("score", score=-7.5), Annotation("label", label="good")),
    (Annotation("label", label="bad"), Annotation("reason", value='"because"')),
    (failure("score"),),
    (failure("", PARKED),),
    (failure("score", PARKED), failure("label")),
)
ENDINGS = (OK, OK, OK, ERROR, PARKED, INVALID)
scores = st.floats(allow_nan=False, allow_infinity=False)


async def assert_agrees(store: Store, experiment_id: int) -> None:
    """Compare the tally with one that is built from the results."""
    kept = (await store.tallies.of([experiment_id]))[experiment_id]
    await count_again(store, experiment_id)
    built = (await store.tallies.of([experiment_id]))[experiment_id]
    assert sums(kept) == sums(built)


def near(number: float | None) -> object:
    return None if number is None else pytest.approx(number, rel=1e-9, abs=1e-9)


def sums(kept: dict[str, StageTally]) -> dict[str, object]:
    """What a build gives as well: the histograms count the same scores, whatever their width has become."""
    return {
        name: (
            tally.items, tally.attempts, tally.milliseconds,
            {
                name: (near(one.mean), near(one.deviation), sum(one.histogram.bins.values()))
                for name, one in tally.outputs.items()
            },
        )
        for name, tally in kept.items()
        if tally.items
    }  # fmt: skip


def drawn(seed: int, claim: Claim) -> list[object]:
    """A batch of a few results, some of which replace others or each other."""
    draw = random.Random(seed)
    runs = [
        run(claim, draw.randrange(ROWS), draw.randint(1, REPETITIONS), draw.choice(ENDINGS))
        for _ in range(draw.randrange(4))
    ]
    verdicts = [
        judged(claim, draw.randrange(ROWS), draw.choice(("judge", "strict")), 1, draw.choice(VERDICTS))
        for _ in range(draw.randrange(4))
    ]
    return [*runs, *verdicts]


@pytest.fixture
async def claim(store: Store) -> Claim:
    """Experiment all of whose rows have a first result."""
    claim = await claimed(store, (await experiment(store, ROWS, REPETITIONS)).id)
    await store.write([run(claim, n, 1, ERROR if n == 2 else OK) for n in range(ROWS)])
    return claim


@pytest.mark.parametrize("seed", range(4))
async def test_tally_follows_every_batch(store: Store, claim: Claim, seed: int) -> None:
    for step in range(15):
        await store.write(drawn(100 * seed + step, claim))  # type: ignore[arg-type]
        await assert_agrees(store, claim.experiment_id)


async def test_batches_of_two_replicas_miss_nothing_of_each_other(store: Store, other: Store, claim: Claim) -> None:
    batches = [drawn(seed, claim) for seed in range(40)]
    # Both write results of the same rows, as a replica does whose claim is about to be lost.
    await asyncio.gather(
        *(one.write(batch) for batch in batches for one in (store, other))  # type: ignore[arg-type]
    )
    await assert_agrees(store, claim.experiment_id)


async def test_refused_batch_changes_no_tally(store: Store, other: Store, claim: Claim, place: Place) -> None:
    before = await store.tallies.of([claim.experiment_id])
    with pytest.raises(StoreError):
        # The run of the judgement is not there.
        await store.write([run(claim, 1), judged(claim, 4, repetition=2)])
    place.age(claim.experiment_id, STALE + 1)
    await claimed(other, claim.experiment_id, "b")
    assert await store.write([run(claim, 2)]) == {claim.experiment_id}
    assert await store.tallies.of([claim.experiment_id]) == before


def scored(score: float) -> ResultFacts:
    return ResultFacts("ok", "score", score)


@given(st.lists(scores, min_size=1, max_size=80))
def test_scores_of_any_size_are_counted_and_taken_away(values: list[float]) -> None:
    tally = StageTally()
    for value in values:
        tally.change([], [scored(value)])
    tally = StageTally.from_json(tally.to_json())
    one = tally.outputs["score"]
    assert (one.scored, one.low, one.high) == (len(values), min(values), max(values))
    assert one.mean == pytest.approx(math.fsum(value / len(values) for value in values), rel=1e-9, abs=1e-300)
    assert sum(one.histogram.bins.values()) == len(values)
    assert max(one.histogram.bins) - min(one.histogram.bins) < MAX_BINS
    for value in values:
        tally.change([scored(value)], [])
    assert tally == StageTally()


@given(st.lists(st.floats(-1000.0, 1000.0), min_size=2, max_size=40), st.randoms())
def test_deviation_is_right_in_any_order(values: list[float], order: random.Random) -> None:
    one, other = OutputTally(), OutputTally()
    for value in values:
        one.add(scored(value), 1)
    order.shuffle(values)
    for value in values:
        other.add(scored(value), 1)
    one.settle()
    other.settle()
    assert one.deviation == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)
    assert other.deviation == pytest.approx(one.deviation, rel=1e-9, abs=1e-9)


def test_small_spread_of_large_scores_is_kept_through_batches_and_replacements() -> None:
    one = OutputTally()
    values = [1.7e9 + n / 7 for n in range(1000)]
    for value in values:
        one.add(scored(value), 1)
        one.settle()
    for value in values[:500]:
        one.add(scored(value), -1)
        one.settle()
    assert one.mean == pytest.approx(statistics.mean(values[500:]), rel=1e-12)
    assert one.deviation == pytest.approx(statistics.stdev(values[500:]), rel=1e-6)


def test_deviation_that_is_no_double_is_none() -> None:
    one = OutputTally()
    for value in (1e308, -1e308, 1.0):
        one.add(scored(value), 1)
    one.settle()
    assert one.mean == pytest.approx(1 / 3)
    assert one.deviation is None


def test_scores_from_0_to_1_have_bins_with_round_edges() -> None:
    one = OutputTally()
    for value in (0.0, 0.3, 0.301, 0.5, 1.0, 1.0):
        one.add(scored(value), 1)
    one.settle()
    assert one.histogram.width == 0.025
    assert one.histogram.bins == {0: 1, 12: 2, 20: 1, 40: 2}


def test_free_text_and_kinds_without_end_stay_bounded() -> None:
    tally = StageTally()
    for n in range(MAX_LABELS + 20):
        tally.change([], [ResultFacts("ok", "label", label=f"label {n}")])
    for n in range(MAX_OUTPUTS + 20):
        tally.change([], [ResultFacts("ok", f"output {n}")])
    for n in range(MAX_KINDS + 20):
        tally.change([], [ResultFacts("error", kind=f"kind {n}", error="e" * 5000)])
    label = tally.outputs["label"]
    assert (label.labelled, label.labels) == (MAX_LABELS + 20, None)
    assert len(tally.outputs) == MAX_OUTPUTS
    assert tally.more_outputs
    assert len(tally.kinds) == MAX_KINDS + 1
    assert tally.kinds["error", "other"].count == 20
    assert sum(each.count for each in tally.kinds.values()) == tally.failed["error"] == MAX_KINDS + 20
    for n in range(MAX_KINDS + 20):
        tally.change([ResultFacts("error", kind=f"kind {n}")], [])
    assert tally.kinds == {}
