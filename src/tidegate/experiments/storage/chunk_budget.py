"""Claims of chunks within the budget of an experiment that several replicas run at once.

Theory of operation. The budget is in the experiment's stored spec, so it is one for all replicas. A claim holds a lock
on the experiment, and reserves the cost of all rows of the chunks that are claimed (`core.spend_reserve`). Where only a
part of a free chunk fits, the chunk is divided, and the part is claimed. Rows of a chunk that have ended stay reserved
until it is done: that starts fewer rows for a while, and never too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update

from tidegate.core.spend_reserve import RECENT, RecentCosts, StageReserve, budget_amount, rows_within
from tidegate.core.token_totals import TokenTotals, added
from tidegate.experiments.storage import tally_table, usages
from tidegate.experiments.storage.json_codec import decoded
from tidegate.experiments.storage.records import BudgetEnd
from tidegate.experiments.storage.schema import chunks, experiments, spend
from tidegate.experiments.storage.tally import StageTally
from tidegate.experiments.storage.tally_table import TASKS


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
        select(experiments.c.spec, experiments.c.repetitions)
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
    for name, amount in budget.items():
        known = [_reserve(connection, experiment_id, name, stage, tallies, ahead) for stage in names]
        wanted = rows_within(amount, sum(budget_amount(name, tokens) for tokens in spent.values()), known, wanted)
        if not wanted:
            idle = not any(stage.under_way for stage in known)
            return BudgetEnd(added(spent.values())) if idle else None
    rows = max(1, wanted // repetitions)
    if rows < size:
        middle = first.first + rows
        connection.execute(update(chunks).where(this).values(end=middle))
        connection.execute(
            insert(chunks).values(experiment_id=experiment_id, first=middle, end=first.end, epoch=first.epoch)
        )
    return int(first.first)


def _reserve(
    connection: Connection, experiment_id: int, name: str, stage: str, tallies: Mapping[str, StageTally], ahead: int
) -> StageReserve:
    """Return what the reserve for the items of a stage needs to know, if `ahead` rows are claimed."""
    answered = tallies[TASKS].counts.get("ok", 0) if TASKS in tallies else 0
    measured = tallies[stage].items if stage in tallies else 0
    unjudged = max(0, answered - measured) if stage != TASKS else 0
    last = usages.last_spent(connection, experiment_id, stage, RECENT)
    costs = RecentCosts(budget_amount(name, tokens) for tokens in last)
    return StageReserve(ahead + unjudged, measured, costs.reserve)


def _spend(experiment_id: int) -> Any:
    columns = [spend.c[name] for name in TokenTotals._fields]
    return select(spend.c.stage, *columns).where(spend.c.experiment_id == experiment_id)
