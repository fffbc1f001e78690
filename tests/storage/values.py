"""Experiments and results as the tests of the store need them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Claim,
    ExperimentRow,
    NewRow,
    ResultStatus,
    RunResult,
    Store,
    encoded,
    stage_sums,
)

OK, ERROR, PARKED, INVALID = ResultStatus.OK, ResultStatus.ERROR, ResultStatus.PARKED, ResultStatus.INVALID
STALE = 3600.0
"""Seconds: so many that no slow machine makes a claim stale that a test has not aged."""


def rows(count: int, start: int = 0) -> list[NewRow]:
    """Rows with different contents, named by their ordinals, on the lines from 1 on."""
    return [NewRow(n, str(n), {"question": f"what is {n}?"}, line=n + 1) for n in range(start, start + count)]


async def experiment(store: Store, count: int = 3, repetitions: int = 1, name: str = "capitals") -> ExperimentRow:
    """A new experiment with so many rows, all stored."""
    made = await store.experiments.create(name, {"task": "eval.py:answer"}, repetitions, "questions.jsonl")
    await store.datasets.add_rows(made.dataset_id, rows(count))
    await store.datasets.complete(made.dataset_id, count)
    return made


async def claimed(store: Store, experiment_id: int, replica: str = "a") -> Claim:
    """A claim that must succeed."""
    claim = await store.claims.claim(experiment_id, replica, STALE)
    assert claim is not None
    return claim


def run(claim: Claim, ordinal: int, repetition: int = 1, status: ResultStatus = OK, output: object = "42") -> RunResult:
    """The result of a task item; where it is not good it has no output."""
    good = status is OK
    return RunResult(
        claim.experiment_id,
        claim.epoch,
        ordinal,
        repetition,
        status,
        output=encoded(output) if good else None,
        error_kind=None if good else "RateLimitError",
        error=None if good else "no luck",
        attempts=1,
        seconds=0.5,
    )


def judged(
    claim: Claim,
    ordinal: int,
    evaluator: str = "judge",
    repetition: int = 1,
    annotations: Iterable[Annotation] = (Annotation("score", score=1.0),),
) -> AnnotationResult:
    """The result of an eval item."""
    return AnnotationResult(
        claim.experiment_id, claim.epoch, ordinal, repetition, evaluator, tuple(annotations), attempts=1, seconds=0.5
    )


def failure(output: str = "", status: ResultStatus = ERROR) -> Annotation:
    """What an evaluator leaves that did not answer."""
    return Annotation(output, status, error_kind="Timeout", error="too slow")


async def count_again(store: Store, experiment_id: int) -> None:
    """Tally the results of an experiment as an upgrade does."""
    await store.database.transacted(partial(stage_sums.build, experiment_id=experiment_id))
