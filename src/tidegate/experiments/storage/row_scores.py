"""Scores of an experiment row by row, which a comparison of two experiments matches by the names of the rows.

Theory of operation. A page is a range of ordinals, so each query reads one range of a primary key, and memory holds one
page. The results of a row's repetitions are combined in SQL: a comparison counts rows, as repetitions of one row depend
on each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import case, func, select

from tidegate.experiments.storage.database import Database
from tidegate.experiments.storage.pending import extent_of
from tidegate.experiments.storage.records import ResultStatus
from tidegate.experiments.storage.schema import OK, annotation_rows, dataset_rows, runs
from tidegate.experiments.storage.tally import mean, sums

PAGE_ROWS = 20_000
"""Ordinals of one page. Raising it needs fewer queries and more memory. Chosen: 20 MB a page."""


class RowName(NamedTuple):
    """One row of a dataset; `digest` identifies its content, and is None for an invalid row."""

    ordinal: int
    name: str
    digest: bytes | None


class RowRuns(NamedTuple):
    """Task results of one row: the number with one status, and the seconds that they took together."""

    ordinal: int
    status: ResultStatus
    results: int
    seconds: float


class RowScore(NamedTuple):
    """One output of one evaluator for one row, over its repetitions.

    `mean` is that of the results with a score; None without any. `failed` ones are not ok. `label` is the label of all
    labelled results, or None where they differ.
    """

    ordinal: int
    evaluator: str
    output: str
    mean: float | None
    failed: int
    label: str | None


@dataclass(frozen=True, slots=True)
class ScorePage:
    """Results of one range of rows."""

    rows: Sequence[RowName]
    runs: Sequence[RowRuns]
    scores: Sequence[RowScore]


async def score_pages(database: Database, experiment_id: int, page_rows: int = PAGE_ROWS) -> AsyncIterator[ScorePage]:
    """Yield the rows of an experiment with the results that they have, in the order of the dataset."""
    row, run, one = dataset_rows.c, runs.c, annotation_rows.c
    first = 0
    while True:
        async with database.reading() as connection:
            extent = await extent_of(connection, experiment_id)
            if extent is None:
                return
            end = first + page_rows
            names = (
                select(row.ordinal, row.name, row.digest)
                .where(row.dataset_id == extent.dataset_id, row.ordinal >= first, row.ordinal < end)
                .order_by(row.ordinal)
            )
            found = [RowName(*each) for each in await connection.execute(names)]
            if not found:
                return
            of_runs = (
                select(run.ordinal, run.status, func.count(), func.sum(run.seconds))
                .where(run.experiment_id == experiment_id, run.ordinal >= first, run.ordinal < end)
                .group_by(run.ordinal, run.status)
            )
            label = case((func.min(one.label) == func.max(one.label), func.min(one.label)))
            of_scores = (
                select(
                    one.ordinal,
                    one.evaluator,
                    one.output,
                    func.count(one.score),
                    *sums(one.score),
                    func.count(case((one.status != OK, 1))),
                    label,
                )
                .where(one.experiment_id == experiment_id, one.ordinal >= first, one.ordinal < end)
                .group_by(one.ordinal, one.evaluator, one.output)
            )
            answered = [
                RowRuns(ordinal, ResultStatus(status), count, seconds)
                for ordinal, status, count, seconds in await connection.execute(of_runs)
            ]
            scored = [
                RowScore(ordinal, evaluator, output, mean(count, large, others), failed, label_of_all)
                for ordinal, evaluator, output, count, large, others, failed, label_of_all in await connection.execute(
                    of_scores
                )
            ]
        yield ScorePage(found, answered, scored)
        first = found[-1].ordinal + 1
