"""Experiments: creation by name, lookup, list, and replacement of the spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.errors import ClaimLost
from tidegate.experiments.storage import tally_table
from tidegate.experiments.storage.bulk import insert_into
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.deletion import next_number
from tidegate.experiments.storage.json_codec import cleaned, decoded, encoded, shortened
from tidegate.experiments.storage.records import JSON, Claim, ExperimentRow, ExperimentSummary, ResultStatus, Status
from tidegate.experiments.storage.schema import (
    annotation_rows,
    datasets,
    deleted,
    execution_configs,
    experiments,
    logs,
    not_ok,
    runs,
)
from tidegate.experiments.storage.sql_clock import since


class Experiments(StorePart):
    """Experiments by name and number."""

    async def create(self, name: str, spec: Mapping[str, JSON], repetitions: int, source: str) -> ExperimentRow:
        """Return the experiment of that name: a new one with an empty dataset, or the existing one, unchanged."""
        named = EXPERIMENTS.where(experiments.c.name == shortened(name))
        values = {"name": shortened(name), "spec": encoded(spec), "repetitions": repetitions}

        def work(connection: Connection) -> ExperimentRow:
            made = _one(connection, named)
            if made is None:
                _make(self._database.sqlite, connection, values, source)
                made = _one(connection, named)
            assert made is not None
            return made

        return await self._database.transacted(work)

    async def create_fresh(
        self, name: str, spec_of: Callable[[str], Mapping[str, JSON]], repetitions: int, source: str
    ) -> ExperimentRow:
        """Return a new experiment with an empty dataset, under the first free one of NAME, NAME-2, NAME-3, …."""

        def work(connection: Connection) -> ExperimentRow:
            for number in itertools.count(1):
                free = name if number == 1 else f"{name}-{number}"
                named = EXPERIMENTS.where(experiments.c.name == shortened(free))
                if _one(connection, named) is None:
                    values = {"name": shortened(free), "spec": encoded(spec_of(free)), "repetitions": repetitions}
                    # Another process may take the name between the two.
                    if _make(self._database.sqlite, connection, values, source):
                        break
            made = _one(connection, named)
            assert made is not None
            return made

        return await self._database.transacted(work)

    async def find(self, name_or_id: str | int) -> ExperimentRow | None:
        """Return the experiment of that name or number; a text that is no name may be a number."""
        async with self._database.reading() as connection:
            if isinstance(name_or_id, str):
                named = await connection.run_sync(_one, EXPERIMENTS.where(experiments.c.name == shortened(name_or_id)))
                if named is not None or not (name_or_id.isascii() and name_or_id.isdecimal() and len(name_or_id) < 19):
                    return named
            elif not 0 < name_or_id < 2**63:
                return None
            return await connection.run_sync(_one, EXPERIMENTS.where(experiments.c.id == int(name_or_id)))

    async def page(self, before: int | None, limit: int) -> list[ExperimentRow]:
        """Return the next experiments with a number below `before`, the newest first, without a look at results."""
        query = EXPERIMENTS.order_by(experiments.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(experiments.c.id < before)
        async with self._database.reading() as connection:
            return [_experiment(row) for row in (await connection.execute(query)).all()]

    async def last_activities(self, experiment_ids: Sequence[int]) -> dict[int, datetime]:
        """Return the instant of the last log line of each experiment that has one, by its number."""
        newest = (
            select(logs.c.at)
            .where(logs.c.experiment_id == experiments.c.id)
            .order_by(logs.c.id.desc())
            .limit(1)
            .scalar_subquery()
        )
        query = select(experiments.c.id, newest).where(experiments.c.id.in_(experiment_ids))
        async with self._database.reading() as connection:
            return {number: at for number, at in (await connection.execute(query)).all() if at is not None}

    async def every(self) -> list[ExperimentSummary]:
        """Return every experiment, the newest first."""
        async with self._database.reading() as connection:
            rows = (await connection.execute(EXPERIMENTS.order_by(experiments.c.id.desc()))).all()
            totals: dict[int, int] = dict((await connection.execute(TOTALS)).all())
            failed = await _by_experiment(connection, FAILED)
            unjudged = await _by_experiment(connection, UNJUDGED)
        return [
            ExperimentSummary(row, by_status(totals.get(row.id, 0), failed.get(row.id, {})), unjudged.get(row.id, {}))
            for row in map(_experiment, rows)
        ]

    async def amend(self, claim: Claim, spec: Mapping[str, JSON], repetitions: int) -> None:
        """Replace the spec of a claimed experiment; the search for pending work then restarts at the first row.

        Raise `ClaimLost` where the claim is not the newest.
        """
        config = execution_configs
        back = (
            update(config)
            .where(
                config.c.experiment_id == claim.experiment_id,
                config.c.epoch == claim.epoch,
                config.c.claimed_by == claim.replica,
            )
            .values(low_water=0, task_water=0)
        )
        amended = (
            update(experiments)
            .where(experiments.c.id == claim.experiment_id)
            .values(spec=encoded(spec), repetitions=repetitions)
        )

        def work(connection: Connection) -> None:
            if not connection.execute(back).rowcount:
                raise ClaimLost(claim.experiment_id)
            connection.execute(amended)

        await self._database.transacted(work)


async def _by_experiment(connection: AsyncConnection, query: Select[Any]) -> dict[int, dict[ResultStatus, int]]:
    counts: dict[int, dict[ResultStatus, int]] = {}
    for experiment_id, status, count in await connection.execute(query):
        counts.setdefault(experiment_id, {})[ResultStatus(status)] = count
    return counts


def by_status(total: int, failed: Mapping[ResultStatus, int]) -> dict[ResultStatus, int]:
    """Return the counts by status, from the total and the results that are not ok; omit zeros."""
    counts = {ResultStatus.OK: total - sum(failed.values()), **failed}
    return {status: count for status, count in counts.items() if count > 0}


EXPERIMENTS: Select[Any] = (
    select(
        experiments,
        execution_configs,
        datasets.c.source,
        datasets.c.rows,
        datasets.c.complete,
        case((execution_configs.c.claimed_at.isnot(None), since(execution_configs.c.claimed_at))).label("quiet"),
        since(func.coalesce(execution_configs.c.cooldown_until, execution_configs.c.created_at)).label("cooled"),
    )
    .join(execution_configs, execution_configs.c.experiment_id == experiments.c.id)
    .join(datasets, datasets.c.id == experiments.c.dataset_id)
)
TOTALS = select(runs.c.experiment_id, func.count()).group_by(runs.c.experiment_id)
FAILED = (
    select(runs.c.experiment_id, runs.c.status, func.count())
    .where(not_ok(runs))
    .group_by(runs.c.experiment_id, runs.c.status)
)


_NOT_JUDGED = (
    # A judgement is one item, whatever the number of its outputs.
    select(*(annotation_rows.c[name] for name in ("experiment_id", "ordinal", "repetition", "evaluator", "status")))
    .where(not_ok(annotation_rows))
    .distinct()
    .subquery()
)
UNJUDGED = select(_NOT_JUDGED.c.experiment_id, _NOT_JUDGED.c.status, func.count()).group_by(
    _NOT_JUDGED.c.experiment_id, _NOT_JUDGED.c.status
)


def _one(connection: Connection, query: Select[Any]) -> ExperimentRow | None:
    row = connection.execute(query).one_or_none()
    return None if row is None else _experiment(row)


def _make(sqlite: bool, connection: Connection, values: Mapping[str, Any], source: str) -> bool:
    """Make an experiment; return False where its name is taken."""
    with connection.begin_nested() as attempt:
        # SQLite would give the number of a deleted experiment again.
        numbers = (next_number(datasets, deleted.c.dataset_id), next_number(experiments, deleted.c.experiment_id))
        of_dataset, of_experiment = ({"id": number} if sqlite else {} for number in numbers)
        dataset = insert(datasets).values(source=cleaned(source), **of_dataset).returning(datasets.c.id)
        dataset_id = connection.execute(dataset).scalar_one()
        made = (
            insert_into(sqlite, experiments)
            .values(dataset_id=dataset_id, **values, **of_experiment)
            .on_conflict_do_nothing(index_elements=["name"])
            .returning(experiments.c.id)
        )
        experiment_id = connection.execute(made).scalar_one_or_none()
        if experiment_id is None:
            # Another process was first: its dataset is the valid one.
            attempt.rollback()
            return False
        connection.execute(insert(execution_configs).values(experiment_id=experiment_id))
        tally_table.begin(connection, experiment_id)
    return True


def _experiment(row: Row[Any]) -> ExperimentRow:
    column = row._mapping
    return ExperimentRow(
        id=column[experiments.c.id],
        name=column[experiments.c.name],
        dataset_id=column[experiments.c.dataset_id],
        source=column[datasets.c.source],
        rows=column[datasets.c.rows],
        complete=column[datasets.c.complete],
        repetitions=column[experiments.c.repetitions],
        spec=decoded(column[experiments.c.spec]),
        created_on=column[experiments.c.created_at],
        status=Status(column[execution_configs.c.status]),
        claimed_by=column[execution_configs.c.claimed_by],
        quiet=column["quiet"],
        epoch=column[execution_configs.c.epoch],
        last_error=column[execution_configs.c.last_error],
        cooling=max(0.0, -column["cooled"]),
    )
