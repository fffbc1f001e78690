"""Reports on an experiment: counts, scores, its log, and every run with its annotations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Row, Select, and_, case, func, literal, select, tuple_

from tidegate.core.values import AnsweredBy
from tidegate.experiments.storage.database import Database, StorePart
from tidegate.experiments.storage.pending import (
    BODY_SIZE,
    bodies_of,
    extent_of,
    outputs_of,
    past,
    selected_once,
    size,
    within_bytes,
)
from tidegate.experiments.storage.records import (
    JSON,
    Annotation,
    AttemptCursor,
    Category,
    ChoiceCount,
    Failure,
    LoggedLine,
    LogLevel,
    ResultCounts,
    ResultStatus,
    Score,
    StoredRun,
    TaskCursor,
)
from tidegate.experiments.storage.schema import (
    BY_CHOICE,
    OK,
    annotation_rows,
    attempts,
    contents,
    dataset_rows,
    datasets,
    experiments,
    logs,
    run_stats,
    runs,
)
from tidegate.experiments.storage.stage_sums import TASKS, Tallies, read_usages
from tidegate.experiments.storage.stored_forms import decoded
from tidegate.experiments.storage.tally import StageTally, scores_of

LEARNED = "learned"
"""Name, in the statistics of a claim, of the limits that its run has learned, as `LearnedState` writes them."""


class Reports(StorePart):
    """Results of experiments, as they are shown."""

    async def counts(self, experiment_id: int) -> ResultCounts:
        rows = select(datasets.c.rows).join(experiments, experiments.c.dataset_id == datasets.c.id)
        async with self._database.reading() as connection:
            stored = (await connection.execute(rows.where(experiments.c.id == experiment_id))).scalar() or 0
        stages = await self._stages(experiment_id)
        counts = {
            name: {ResultStatus(status): count for status, count in tally.counts.items()}
            for name, tally in stages.items()
        }
        return ResultCounts(stored, counts.pop(TASKS, {}), counts)

    async def scores(self, experiment_id: int) -> list[Score]:
        return scores_of(await self._stages(experiment_id))

    async def failures(self, experiment_id: int) -> list[Failure]:
        """Return the kinds of results that are not ok: of tasks, then of each evaluator, the most frequent first."""
        found = [
            Failure(
                None if name == TASKS else name,
                ResultStatus(status or ResultStatus.ERROR),
                kind,
                each.count,
                each.example or None,
            )
            for name, tally in (await self._stages(experiment_id)).items()
            for (status, kind), each in tally.kinds.items()
        ]
        return sorted(found, key=lambda each: (each.evaluator or "", -each.count, each.kind))

    async def _stages(self, experiment_id: int) -> Mapping[str, StageTally]:
        return (await Tallies(self._database).of([experiment_id]))[experiment_id]

    async def choices(self, experiment_id: int) -> list[ChoiceCount]:
        """Return the number of answered items by the choices of their fallbacks, of tasks, then of each evaluator."""
        run, one = runs.c, annotation_rows.c
        of_runs = (
            select(run.answered_by, func.count())
            .where(run.experiment_id == experiment_id, BY_CHOICE)
            .group_by(run.answered_by)
        )
        # All outputs of an eval item have the same choices, and are counted once.
        items = (
            select(one.evaluator, one.answered_by, one.ordinal, one.repetition)
            .where(one.experiment_id == experiment_id, BY_CHOICE)
            .distinct()
            .subquery()
        )
        kinds = (items.c.evaluator, items.c.answered_by)
        async with self._database.reading() as connection:
            counted = [(None, *row) for row in await connection.execute(of_runs)]
            counted += [tuple(row) for row in await connection.execute(select(*kinds, func.count()).group_by(*kinds))]
        found = [ChoiceCount(evaluator, _choices(text), count) for evaluator, text, count in counted]
        return sorted(found, key=lambda each: (each.evaluator or "", -each.count, each.answered_by))

    async def last_logs(self, experiment_id: int, limit: int) -> list[LoggedLine]:
        query = (
            select(logs.c.at, logs.c.level, logs.c.category, logs.c.detail)
            .where(logs.c.experiment_id == experiment_id)
            .order_by(logs.c.id.desc())
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(query)).all()
        return [_line(row) for row in reversed(rows)]

    async def results(self, experiment_id: int, *, after: TaskCursor | None, limit: int) -> list[StoredRun]:
        """Return the next runs with their rows and annotations, by ordinal and repetition.

        Large rows make the list shorter than `limit`; an empty list is the end.
        """
        async with self._database.reading() as connection:
            extent = await extent_of(connection, experiment_id)
            if extent is None:
                return []
            page = _runs(experiment_id, extent.dataset_id, after, limit)
            rows = (await connection.execute(page)).all()
            found = within_bytes(rows, [row.body_size + row.output_size for row in rows])
            if not found:
                return []
            first, last = found[0], found[-1]
            one = annotation_rows.c
            query = (
                select(annotation_rows)
                .where(one.experiment_id == experiment_id, one.ordinal >= first.ordinal, one.ordinal <= last.ordinal)
                .order_by(one.ordinal, one.repetition, one.evaluator, one.output)
            )
            by_run: dict[tuple[int, int], list[tuple[str, Annotation]]] = {}
            for row in await connection.execute(query):
                by_run.setdefault((row.ordinal, row.repetition), []).append((row.evaluator, _annotation(row)))
            bodies = await bodies_of(connection, found)
            outputs = await outputs_of(connection, self._database.sqlite, experiment_id, found)
            stored = [
                _stored(row, decoded(bodies.get(row.digest)), outputs.get(item), by_run.get(item, ()))
                for row in found
                for item in ((row.ordinal, row.repetition),)
            ]
        of_items = await read_usages(self._database, experiment_id, stored[0].cursor, stored[-1].cursor)
        return [replace(run, usages=of_items[run.cursor]) if run.cursor in of_items else run for run in stored]

    async def result(self, experiment_id: int, ordinal: int, repetition: int) -> StoredRun | None:
        found = await self.results(experiment_id, after=(ordinal, repetition - 1), limit=1)
        return found[0] if found and found[0].cursor == (ordinal, repetition) else None

    async def attempts(self, experiment_id: int, *, after: AttemptCursor | None, limit: int) -> list[Mapping[str, Any]]:
        """Return the next attempts that an audit has kept, by their cursor; each has the columns of its table."""
        names = ("ordinal", "repetition", "stage", "run_epoch", "call_index")
        cursor = [attempts.c[name] for name in names]
        query = select(*attempts.c[1:]).where(attempts.c.experiment_id == experiment_id).order_by(*cursor).limit(limit)
        if after is not None:
            query = query.where(tuple_(*cursor) > tuple_(*map(literal, after)))
        async with self._database.reading() as connection:
            return [dict(row) for row in (await connection.execute(query)).mappings()]

    async def attempt_counts(self, experiment_id: int) -> dict[str, int]:
        one = attempts.c
        query = select(one.status, func.count()).where(one.experiment_id == experiment_id).group_by(one.status)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query.order_by(one.status))}

    async def claim_stats(self, experiment_id: int) -> list[Mapping[str, JSON]]:
        one = run_stats.c
        query = select(one.stats).where(one.experiment_id == experiment_id).order_by(one.epoch)
        async with self._database.reading() as connection:
            return [decoded(stats) for stats in (await connection.execute(query)).scalars()]

    async def learned_limits(self, claims: int) -> list[JSON]:
        """Return the limits that the last claims of all experiments have learned, of so many claims at most."""
        query = select(run_stats.c.stats).order_by(run_stats.c.ended_at.desc()).limit(claims)
        async with self._database.reading() as connection:
            found = [decoded(stats) for stats in (await connection.execute(query)).scalars()]
        return [stats[LEARNED] for stats in found if isinstance(stats, Mapping) and LEARNED in stats]


def _runs(experiment_id: int, dataset_id: int, after: TaskCursor | None, limit: int) -> Select[Any]:
    page = selected_once(
        select(
            *(column for column in runs.c if column.name != "output"),
            size(runs.c.output).label("output_size"),
        )
        .where(
            runs.c.experiment_id == experiment_id,
            runs.c.ordinal >= (0 if after is None else after[0]),
            past(runs.c.ordinal, runs.c.repetition, after),
        )
        .order_by(runs.c.ordinal, runs.c.repetition)
        .limit(limit),
        "page",
    )
    row = dataset_rows.c
    return (
        select(page, row.name, row.digest, BODY_SIZE)
        .join(dataset_rows, and_(row.dataset_id == dataset_id, row.ordinal == page.c.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .order_by(page.c.ordinal, page.c.repetition)
    )


def _line(row: Any) -> LoggedLine:
    return LoggedLine(row.at, LogLevel(row.level), Category(row.category), decoded(row.detail))


def _choices(text: str | None) -> tuple[AnsweredBy, ...]:
    return tuple(AnsweredBy(*each) for each in decoded(text) or ())


def _annotation(row: Row[Any]) -> Annotation:
    return Annotation(row.output, ResultStatus(row.status), row.score, row.label, row.value,
                      row.error_kind, row.error, _choices(row.answered_by))  # fmt: skip


def _stored(row: Row[Any], body: JSON, output: JSON, judged: Sequence[tuple[str, Annotation]]) -> StoredRun:
    return StoredRun(
        ordinal=row.ordinal,
        repetition=row.repetition,
        name=row.name,
        row=body,
        status=ResultStatus(row.status),
        output=output,
        error_kind=row.error_kind,
        error=row.error,
        attempts=row.attempts,
        seconds=row.seconds,
        finished_on=row.finished_at,
        annotations=tuple(judged),
        size=row.body_size + row.output_size,
        answered_by=_choices(row.answered_by),
    )


PAGE_ROWS = 5_000
"""Ordinals of one page. Measured: other work of the loop waits for a tenth of a second at most."""


class ScorePage(NamedTuple):
    """Results of one range of rows, as rows of queries.

    `rows` have `ordinal`, `name` and `digest` (None for an invalid row). `runs` have for each row and status the number
    of `results`, and the `seconds` that they took together. `scores` have for each row and output the `mean` of the
    results with a score, the number of `failed` ones, and the `label` of all labelled ones, None where they differ.
    """

    rows: Sequence[Any]
    runs: Sequence[Any]
    scores: Sequence[Any]


async def score_pages(database: Database, experiment_id: int) -> AsyncIterator[ScorePage]:
    row, run, one = dataset_rows.c, runs.c, annotation_rows.c
    first = 0
    while True:
        async with database.reading() as connection:
            extent = await extent_of(connection, experiment_id)
            if extent is None:
                return
            end = first + PAGE_ROWS
            names = (
                select(row.ordinal, row.name, row.digest)
                .where(row.dataset_id == extent.dataset_id, row.ordinal >= first, row.ordinal < end)
                .order_by(row.ordinal)
            )
            found = (await connection.execute(names)).all()
            if not found:
                return
            of_runs = (
                select(run.ordinal, run.status, func.count().label("results"), func.sum(run.seconds).label("seconds"))
                .where(run.experiment_id == experiment_id, run.ordinal >= first, run.ordinal < end)
                .group_by(run.ordinal, run.status)
            )
            of_scores = (
                select(
                    one.ordinal,
                    one.evaluator,
                    one.output,
                    func.avg(one.score).label("mean"),
                    func.count(case((one.status != OK, 1))).label("failed"),
                    case((func.min(one.label) == func.max(one.label), func.min(one.label))).label("label"),
                )
                .where(one.experiment_id == experiment_id, one.ordinal >= first, one.ordinal < end)
                .group_by(one.ordinal, one.evaluator, one.output)
            )
            page = ScorePage(
                found, (await connection.execute(of_runs)).all(), (await connection.execute(of_scores)).all()
            )
        yield page
        first = found[-1].ordinal + 1
