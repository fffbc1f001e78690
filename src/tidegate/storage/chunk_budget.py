"""Claims of chunks within the budget of an experiment that several replicas run at once.

Theory of operation. The budget is in the experiment's stored spec, so it is one for all replicas. A claim holds a lock
on the experiment, and reserves the cost of all rows of the chunks that are claimed (`core.spend_reserve`). Where only a
part of a free chunk fits, the chunk is divided, and the part is claimed. Rows of a chunk that have ended stay reserved
until it is done: that starts fewer rows for a while, and never too many.

A row reserves the larger of the mean cost so far and an estimate from its size, which the last rows tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update

from tidegate.core.spend_reserve import SizeLine, StageReserve, rows_within
from tidegate.core.token_totals import NANO, TokenTotals
from tidegate.storage import tally_table
from tidegate.storage.json_codec import decoded
from tidegate.storage.paging import size as size_of
from tidegate.storage.records import BudgetEnd
from tidegate.storage.schema import chunks, contents, dataset_rows, experiments, spend, usages
from tidegate.storage.tally import StageTally
from tidegate.storage.tally_table import TASKS

MEASURED = 256
"""Rows of the experiment whose sizes and costs are compared. Raising it follows a change of the costs later, and each
claim takes longer: about 10 us a row. Chosen: one chunk of the largest size."""


def stored(connection: Connection, experiment_id: int) -> Mapping[str, float] | None:
    """Return the amounts of an experiment's budget, None without one."""
    spec = connection.execute(select(experiments.c.spec).where(experiments.c.id == experiment_id)).scalar_one_or_none()
    budget = decoded(spec).get("budget") if spec is not None else None
    return budget if isinstance(budget, dict) else None


def fit(
    connection: Connection, experiment_id: int, budget: Mapping[str, float], free: ColumnElement[bool]
) -> int | BudgetEnd | None:
    """Make the first free chunk as small as the budget asks for, and return its first row; None where none fits now.

    Return `BudgetEnd` where none will ever fit: nothing is under way and no answer waits for its judgement. The lock on
    the experiment lasts until the transaction ends.
    """
    row = connection.execute(
        select(experiments.c.spec, experiments.c.repetitions, experiments.c.dataset_id)
        .where(experiments.c.id == experiment_id)
        .with_for_update(key_share=True)
    ).one()
    chunk = chunks.c
    first = connection.execute(
        select(chunk.first, chunk.end, chunk.epoch)
        .where(chunk.experiment_id == experiment_id, free)
        .order_by(chunk.first)
        .limit(1)
    ).one_or_none()
    if first is None:
        return None
    claimed = and_(chunk.experiment_id == experiment_id, ~chunk.done, ~free)
    under_way = select(func.coalesce(func.sum(chunk.end - chunk.first), 0)).where(claimed)
    ahead = int(connection.execute(under_way).scalar_one()) * row.repetitions
    names = [TASKS, *(decoded(row.spec).get("evaluators") or {})]
    tallies = tally_table.tallies_of(connection, experiment_id)
    spent = {each.stage: TokenTotals(*each[1:]) for each in connection.execute(_spend(experiment_id))}
    size = int(first.end - first.first)
    repetitions = int(row.repetitions)
    wanted = size * repetitions
    this = and_(chunk.experiment_id == experiment_id, chunk.first == first.first)
    claimed_sizes, sizes = (_sizes(connection, row.dataset_id, chosen) for chosen in (claimed, this))
    for name, amount in budget.items():
        known = list(_reserves(name, names, tallies, spent, ahead))
        line = _line(connection, experiment_id, row.dataset_id, name)
        total = sum(_amount(name, tokens) for tokens in spent.values())
        wanted = min(wanted, repetitions * _rows_of_known_size(line, claimed_sizes, sizes, size))
        while wanted:
            # Fewer rows may be longer ones on average: the first rows of the chunk are claimed.
            rows = max(1, wanted // repetitions)
            characters = repetitions * sum(claimed_sizes) + wanted * sum(sizes[:rows]) / rows
            estimate = line.estimate(ahead + wanted, characters) / (ahead + wanted)
            fits = rows_within(
                amount, total, [known[0]._replace(mean=max(known[0].mean, estimate)), *known[1:]], wanted
            )
            if fits == wanted:
                break
            wanted = fits
        if not wanted:
            idle = not any(stage.under_way for stage in known)
            return BudgetEnd(_sum(spent)) if idle else None
    rows = max(1, wanted // repetitions)
    if rows < size:
        middle = first.first + rows
        connection.execute(update(chunks).where(this).values(end=middle))
        connection.execute(
            insert(chunks).values(experiment_id=experiment_id, first=middle, end=first.end, epoch=first.epoch)
        )
    return int(first.first)


def _sizes(connection: Connection, dataset_id: int, of_chunks: ColumnElement[bool]) -> list[int]:
    """Return the characters of the rows of some chunks, in their order."""
    row = dataset_rows.c
    query = (
        select(size_of(contents.c.body))
        .select_from(chunks)
        .join(dataset_rows, and_(row.ordinal >= chunks.c.first, row.ordinal < chunks.c.end))
        .outerjoin(contents, contents.c.digest == row.digest)
        .where(of_chunks, row.dataset_id == dataset_id)
        .order_by(row.ordinal)
    )
    return [int(size or 0) for size in connection.execute(query).scalars()]


def _rows_of_known_size(line: SizeLine, claimed: list[int], sizes: list[int], most: int) -> int:
    """Return how many of the first rows, at `most`, may be claimed: one far above the measured sizes is under way."""
    if not line.largest:
        return most
    free = 0 if any(map(line.is_beyond, claimed)) else 1
    for place, size in enumerate(sizes):
        if line.is_beyond(size):
            if not free:
                return place
            free -= 1
    return most


def _line(connection: Connection, experiment_id: int, dataset_id: int, name: str) -> SizeLine:
    """Return the line through the costs of the last rows of an experiment over their sizes."""
    one, row = usages.c, dataset_rows.c
    last = (
        select(one.ordinal, one.input_tokens, one.output_tokens, one.nanodollars)
        .where(one.experiment_id == experiment_id, one.stage == TASKS)
        .order_by(one.ordinal.desc())
        .limit(MEASURED)
        .subquery()
    )
    query = (
        select(size_of(contents.c.body), last.c.input_tokens, last.c.output_tokens, last.c.nanodollars)
        .select_from(last)
        .join(dataset_rows, and_(row.dataset_id == dataset_id, row.ordinal == last.c.ordinal))
        .join(contents, contents.c.digest == row.digest)
    )
    line = SizeLine()
    for size, read, written, nanodollars in connection.execute(query):
        line.add(size, _amount(name, TokenTotals(input_tokens=read, output_tokens=written, nanodollars=nanodollars)))
    return line


def _reserves(
    name: str, names: list[str], tallies: Mapping[str, StageTally], spent: Mapping[str, TokenTotals], ahead: int
) -> list[StageReserve]:
    answered = tallies[TASKS].counts.get("ok", 0) if TASKS in tallies else 0
    found = []
    for stage in names:
        measured = tallies[stage].items if stage in tallies else 0
        mean = _amount(name, spent.get(stage, TokenTotals())) / measured if measured else 0.0
        unjudged = max(0, answered - measured) if stage != TASKS else 0
        # The sums tell no spread: an item costs its mean, more or less.
        found.append(StageReserve(ahead + unjudged, measured, mean, mean))
    return found


def _amount(name: str, tokens: TokenTotals) -> float:
    return tokens.nanodollars * NANO if name == "usd" else float(tokens.input_tokens + tokens.output_tokens)


def _sum(spent: Mapping[str, TokenTotals]) -> TokenTotals:
    total = TokenTotals()
    for each in spent.values():
        total = total.plus(each)
    return total


def _spend(experiment_id: int) -> Any:
    columns = [spend.c[name] for name in TokenTotals._fields]
    return select(spend.c.stage, *columns).where(spend.c.experiment_id == experiment_id)
