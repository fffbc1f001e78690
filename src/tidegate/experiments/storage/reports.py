"""Reports on an experiment: counts, scores, its log, and every run with its annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, Select, and_, case, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.core.values import AnsweredBy
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.experiments import by_status
from tidegate.experiments.storage.json_codec import decoded
from tidegate.experiments.storage.paging import body_of, inlined, output_of, selected_once, size, small, within_bytes
from tidegate.experiments.storage.pending import content, extent_of, past
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
    with_failures,
)
from tidegate.experiments.storage.schema import (
    BY_CHOICE,
    annotation_rows,
    attempts,
    contents,
    dataset_rows,
    datasets,
    experiments,
    logs,
    not_ok,
    run_stats,
    runs,
)
from tidegate.experiments.storage.tally import mean, sums
from tidegate.experiments.storage.usages import read_usages

MAX_LABELS = 100
"""Maximum different labels in a summary. Raising it lists free text. Chosen: an output with more of them is free
text."""


class Reports(StorePart):
    """Results of experiments, as they are shown."""

    async def counts(self, experiment_id: int) -> ResultCounts:
        """Return the progress of an experiment."""
        one = runs.c
        of_runs = select(one.status, func.count()).where(one.experiment_id == experiment_id, not_ok(runs))
        all_runs = select(func.count()).where(one.experiment_id == experiment_id)
        rows = select(datasets.c.rows).join(experiments, experiments.c.dataset_id == datasets.c.id)
        async with self._database.reading() as connection:
            stored = (await connection.execute(rows.where(experiments.c.id == experiment_id))).scalar() or 0
            total = (await connection.execute(all_runs.select_from(runs))).scalar_one()
            failed = (await connection.execute(of_runs.group_by(one.status))).all()
            judged = await _judged(connection, experiment_id)
        return ResultCounts(stored, by_status(total, {ResultStatus(status): count for status, count in failed}), judged)

    async def scores(self, experiment_id: int) -> list[Score]:
        """Return the scores of each output of each evaluator, by evaluator and output."""
        one = annotation_rows.c
        by = [one.evaluator, one.output]
        of_outputs = select(
            *by,
            func.count(case((one.status == "ok", 1))).label("ok"),
            func.count(case((one.status != "ok", 1))).label("failed"),
            func.count(one.score).label("scored"),
            func.count(one.label).label("labelled"),
            func.count(one.value).label("valued"),
            func.count(one.answered_by).label("chosen"),
            *sums(one.score),
        ).where(one.experiment_id == experiment_id)
        async with self._database.reading() as connection:
            return with_failures(
                [
                    Score(
                        evaluator,
                        output,
                        ok,
                        failed,
                        scored,
                        mean(scored, large, others),
                        await _labels(connection, experiment_id, evaluator, output),
                        *counted,
                    )
                    for evaluator, output, ok, failed, scored, *counted, large, others in (
                        await connection.execute(of_outputs.group_by(*by).order_by(*by))
                    ).all()
                ]
            )

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

    async def failures(self, experiment_id: int) -> list[Failure]:
        """Return the kinds of results that are not ok: of tasks, then of each evaluator, the most frequent first."""
        run, one = runs.c, annotation_rows.c
        kind = func.coalesce(run.error_kind, "").label("kind")
        of_runs = select(run.status, kind, func.count(), func.min(run.error)).where(
            run.experiment_id == experiment_id, not_ok(runs)
        )
        # One output represents all outputs of a failed eval item.
        of_item = (
            one.evaluator,
            one.status,
            func.coalesce(one.error_kind, "").label("kind"),
            one.ordinal,
            one.repetition,
        )
        items = (
            select(*of_item, func.min(one.error).label("error"))
            .where(one.experiment_id == experiment_id, not_ok(annotation_rows))
            .group_by(*of_item)
            .subquery()
        )
        kinds = (items.c.evaluator, items.c.status, items.c.kind)
        of_evals = select(*kinds, func.count(), func.min(items.c.error)).group_by(*kinds)
        async with self._database.reading() as connection:
            failed = [(None, *row) for row in await connection.execute(of_runs.group_by(run.status, kind))]
            failed += [tuple(row) for row in await connection.execute(of_evals)]
        found = [Failure(evaluator, ResultStatus(status), *how_often) for evaluator, status, *how_often in failed]
        return sorted(found, key=lambda each: (each.evaluator or "", -each.count, each.kind))

    async def last_logs(self, experiment_id: int, limit: int) -> list[LoggedLine]:
        """Return the last log lines, the oldest first."""
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
            rows = (await connection.execute(page, {"small": small(2 * limit)})).all()
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
            stored = [
                _stored(
                    row,
                    await body_of(connection, row),
                    await output_of(connection, experiment_id, row),
                    by_run.get((row.ordinal, row.repetition), ()),
                )
                for row in found
            ]
        of_items = await read_usages(self._database, experiment_id, stored[0].cursor, stored[-1].cursor)
        return [replace(run, usages=of_items[run.cursor]) if run.cursor in of_items else run for run in stored]

    async def result(self, experiment_id: int, ordinal: int, repetition: int) -> StoredRun | None:
        """Return one run with its row and annotations; None where it has no result."""
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
        """Return the number of kept attempts by status."""
        one = attempts.c
        query = select(one.status, func.count()).where(one.experiment_id == experiment_id).group_by(one.status)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query.order_by(one.status))}

    async def claim_stats(self, experiment_id: int) -> list[Mapping[str, JSON]]:
        """Return the statistics of each claim that has ended, the oldest first."""
        one = run_stats.c
        query = select(one.stats).where(one.experiment_id == experiment_id).order_by(one.epoch)
        async with self._database.reading() as connection:
            return [decoded(stats) for stats in (await connection.execute(query)).scalars()]


async def _judged(connection: AsyncConnection, experiment_id: int) -> dict[str, Mapping[ResultStatus, int]]:
    one = annotation_rows.c
    # In the order of the primary key: a DISTINCT needs no sorting then.
    of_items = select(one.ordinal, one.repetition, one.evaluator).where(one.experiment_id == experiment_id).distinct()
    items = of_items.subquery()
    bad = of_items.add_columns(one.status).where(not_ok(annotation_rows)).subquery()
    totals = select(items.c.evaluator, func.count()).group_by(items.c.evaluator)
    failures = select(bad.c.evaluator, bad.c.status, func.count()).group_by(bad.c.evaluator, bad.c.status)
    failed: dict[str, dict[ResultStatus, int]] = {}
    for evaluator, status, count in await connection.execute(failures):
        failed.setdefault(evaluator, {})[ResultStatus(status)] = count
    return {
        evaluator: by_status(total, failed.get(evaluator, {}))
        for evaluator, total in (await connection.execute(totals))
    }


async def _labels(connection: AsyncConnection, experiment_id: int, evaluator: str, output: str) -> dict[str, int]:
    one = annotation_rows.c
    query = (
        select(one.label, func.count().label("times"))
        .where(
            one.experiment_id == experiment_id,
            one.evaluator == evaluator,
            one.output == output,
            one.label.isnot(None),
        )
        .group_by(one.label)
        .order_by(func.count().desc(), one.label)
        .limit(MAX_LABELS + 1)
    )
    found = (await connection.execute(query)).all()
    return {} if len(found) > MAX_LABELS else {label: times for label, times in found if label is not None}


def _runs(experiment_id: int, dataset_id: int, after: TaskCursor | None, limit: int) -> Select[Any]:
    page = selected_once(
        select(
            *(column for column in runs.c if column.name != "output"),
            inlined(runs.c.output).label("output"),
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
        select(page, row.name, row.digest, *content())
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


def _stored(row: Row[Any], body: str | None, output: str | None, judged: Sequence[tuple[str, Annotation]]) -> StoredRun:
    return StoredRun(
        ordinal=row.ordinal,
        repetition=row.repetition,
        name=row.name,
        row=decoded(body),
        status=ResultStatus(row.status),
        output=decoded(output),
        error_kind=row.error_kind,
        error=row.error,
        attempts=row.attempts,
        seconds=row.seconds,
        finished_on=row.finished_at,
        annotations=tuple(judged),
        size=row.body_size + row.output_size,
        answered_by=_choices(row.answered_by),
    )
