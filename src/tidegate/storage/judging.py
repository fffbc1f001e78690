"""The evaluations left to do: the good runs for which an evaluator has not said all that it is to say.

The pages are made as those of tasks are (`pending`): what failed from the partial index below the water mark, what is
missing window by window from there on. Each evaluator is a query of its own, as each may have declared other outputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Row, Select, and_, func, literal, not_, or_, select, true, union_all

from tidegate.storage.bodies import decoded, shortened
from tidegate.storage.database import Database
from tidegate.storage.paging import Page, body_of, inlined, output_of, size, small, within_bytes
from tidegate.storage.pending import Extent, content, extent_of, walk
from tidegate.storage.schema import OK, annotation_rows, contents, dataset_rows, runs, wanted_again
from tidegate.storage.values import EvalCursor, PendingEval

Judge = tuple[str, tuple[str, ...]]
"""An evaluator and its declared outputs."""

Branch = Callable[[int, Judge, int, int, bool], Select[Any]]
"""The eval items of an experiment that one evaluator lacks, for ordinals from one to below another."""


async def pending_evals(
    database: Database,
    experiment_id: int,
    evaluators: Mapping[str, tuple[str, ...]],
    after: EvalCursor | None,
    limit: int,
    again: bool,
) -> Page[PendingEval]:
    """The next eval items without a result that counts, by ordinal, repetition and evaluator."""
    judges = sorted((shortened(name), tuple(map(shortened, outputs))) for name, outputs in evaluators.items())
    if not judges or limit < 1:
        return Page()
    names = sorted(evaluators, key=shortened)
    async with database.reading() as connection:
        extent = await extent_of(connection, experiment_id)
        if extent is None:
            return Page()

        bound = {"small": small(2 * limit)}

        def page(branch: Branch, low: int, high: int, most: int) -> tuple[Select[Any], Mapping[str, int]]:
            branches = [branch(experiment_id, judge, low, high, again) for judge in judges]
            return _with_runs(experiment_id, extent, _merged(branches, judges, after, most)), bound

        start = 0 if after is None else after[0]
        rows: list[Row[Any]] = []
        if again and start < extent.low_water:
            rows += (await connection.execute(*page(_failed, start, extent.low_water, limit))).all()
        start = max(start, extent.low_water)
        rows += await walk(connection, partial(page, _missing), start, extent, limit - len(rows))
        kept = within_bytes(rows, [row.body_size + row.output_size for row in rows])
        return Page(
            [
                PendingEval(
                    row.ordinal,
                    row.repetition,
                    names[row.place],
                    decoded(await body_of(connection, row)),
                    decoded(await output_of(connection, experiment_id, row)),
                    row.body_size + row.output_size,
                )
                for row in kept
            ],
            more=kept.more,
        )


def _failed(experiment_id: int, judge: Judge, low: int, high: int, again: bool) -> Select[Any]:
    name, outputs = judge
    one = annotation_rows.c
    return (
        select(one.ordinal, one.repetition)
        .distinct()
        .where(
            one.experiment_id == experiment_id,
            one.ordinal >= low,
            one.ordinal < high,
            one.evaluator == name,
            one.output.in_(outputs) if outputs else true(),
            wanted_again(annotation_rows),
        )
    )


def _missing(experiment_id: int, judge: Judge, low: int, high: int, again: bool) -> Select[Any]:
    name, outputs = judge
    one = annotation_rows.c
    said = (
        select(func.count())
        .where(
            one.experiment_id == experiment_id,
            one.ordinal == runs.c.ordinal,
            one.repetition == runs.c.repetition,
            one.evaluator == name,
            one.output.in_(outputs) if outputs else true(),
            not_(wanted_again(annotation_rows)) if again else true(),
        )
        .scalar_subquery()
    )
    return select(runs.c.ordinal, runs.c.repetition).where(
        runs.c.experiment_id == experiment_id,
        runs.c.ordinal >= low,
        runs.c.ordinal < high,
        runs.c.status == OK,
        said < max(1, len(outputs)),
    )


def _merged(
    branches: Sequence[Select[Any]], judges: Sequence[Judge], after: EvalCursor | None, most: int
) -> Select[Any]:
    """The first items of all evaluators together; `place` says whose each is."""
    before = bisect_right([name for name, _ in judges], shortened(after[2])) if after else 0
    parts = []
    for place, branch in enumerate(branches):
        ordinal, repetition = branch.selected_columns
        if after is not None:
            later = repetition > after[1] if place < before else repetition >= after[1]
            branch = branch.where(or_(ordinal > after[0], later))
        first = branch.add_columns(literal(place).label("place")).order_by(ordinal, repetition).limit(most)
        parts.append(select(first.subquery()))
    items = union_all(*parts).subquery("items")
    return select(items).order_by(items.c.ordinal, items.c.repetition, items.c.place).limit(most)


def _with_runs(experiment_id: int, extent: Extent, items: Select[Any]) -> Select[Any]:
    """The items of a page with their rows and answers: looked up when it is known which they are."""
    item, row = items.subquery("item"), dataset_rows.c
    same_run = and_(
        runs.c.experiment_id == experiment_id,
        runs.c.ordinal == item.c.ordinal,
        runs.c.repetition == item.c.repetition,
    )
    return (
        select(
            item,
            inlined(runs.c.output).label("output"),
            size(runs.c.output).label("output_size"),
            row.digest,
            *content(),
        )
        .join(runs, same_run)
        .join(dataset_rows, and_(row.dataset_id == extent.dataset_id, row.ordinal == item.c.ordinal))
        .outerjoin(contents, contents.c.digest == row.digest)
        .order_by(item.c.ordinal, item.c.repetition, item.c.place)
    )
