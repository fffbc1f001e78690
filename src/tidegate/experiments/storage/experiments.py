"""Experiments: creation by name, lookup, list, replacement of the spec, and deletion.

A deletion is one transaction. It locks the experiment's tally and its row of `execution_configs` first, as every batch
of results does, so no batch is written half. After it the row is missing: a late result has an epoch that is not the
newest, and is refused. SQLite would give the number to the next experiment, so `deleted` keeps it.

A content is deleted with the last row that has it. PostgreSQL finds such rows by an index; contents that an import has
locked are in use. SQLite has no such index, and would scan all rows to check each content. So its checks are off, and
the transaction deletes what depends on the experiment itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    update,
)

from tidegate.errors import ClaimLost
from tidegate.experiments.storage import claims, stage_sums
from tidegate.experiments.storage.bulk import insert_into
from tidegate.experiments.storage.database import StorePart
from tidegate.experiments.storage.records import JSON, Claim, ExperimentRow, Status
from tidegate.experiments.storage.schema import (
    NOT_ENDED,
    PREFIX,
    annotation_rows,
    attempts,
    batches,
    chunks,
    contents,
    dataset_rows,
    datasets,
    deleted,
    execution_configs,
    experiments,
    logs,
    run_stats,
    runs,
    spend,
    tallies,
    usages,
)
from tidegate.experiments.storage.stored_forms import ago, cleaned, decoded, encoded, now, shortened, since


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

    async def page(self, before: int | None, limit: int | None) -> list[ExperimentRow]:
        """Return the next experiments with a number below `before`, the newest first, without a look at results."""
        query = EXPERIMENTS.order_by(experiments.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(experiments.c.id < before)
        async with self._database.reading() as connection:
            return [_experiment(row) for row in (await connection.execute(query)).all()]

    async def last_activities(self, experiment_ids: Sequence[int]) -> dict[int, datetime]:
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

    async def every(self) -> list[ExperimentRow]:
        return await self.page(None, None)

    async def amend(self, claim: Claim, spec: Mapping[str, JSON], repetitions: int) -> None:
        """Replace the spec of a claimed experiment. Raise `ClaimLost` where the claim is not the newest."""
        held = select(execution_configs.c.epoch).where(claims.is_held(claim)).with_for_update(key_share=True)
        amended = (
            update(experiments)
            .where(experiments.c.id == claim.experiment_id)
            .values(spec=encoded(spec), repetitions=repetitions)
        )

        def work(connection: Connection) -> None:
            if connection.execute(held).first() is None:
                raise ClaimLost(claim.experiment_id)
            connection.execute(amended)

        await self._database.transacted(work)

    async def remove(self, experiment_id: int) -> bool:
        """Delete an experiment with its rows, results, attempts and log; contents that others have stay.

        Return False and change nothing where it is RUNNING or does not exist. Its number is not used again.
        """
        return await self._database.transacted_unchecked(partial(_remove, self._database.sqlite, experiment_id))

    async def is_ending(self, experiment_id: int, patience: float) -> bool:
        """Return whether the run that a user has stopped in the last `patience` seconds has not written its end yet."""
        config = execution_configs.c
        stats = run_stats.c
        ended = exists().where(
            stats.experiment_id == config.experiment_id, stats.epoch == config.epoch, stats.ended_at > NOT_ENDED
        )
        query = select(config.experiment_id).where(
            config.experiment_id == experiment_id,
            config.status == Status.STOPPED,
            config.epoch > 0,
            config.cooldown_until > ago(patience - claims.COOLDOWN_SECONDS),
            ~ended,
        )
        async with self._database.reading() as connection:
            return (await connection.execute(query)).first() is not None


EXPERIMENTS: Select[Any] = (
    select(
        *(experiments.c[name] for name in ("id", "name", "dataset_id", "repetitions", "spec")),
        experiments.c.created_at.label("created_on"),
        *(execution_configs.c[name] for name in ("status", "claimed_by", "epoch", "last_error")),
        *(datasets.c[name] for name in ("source", "rows", "complete")),
        case((execution_configs.c.claimed_at.isnot(None), since(execution_configs.c.claimed_at))).label("quiet"),
        since(func.coalesce(execution_configs.c.cooldown_until, execution_configs.c.created_at)).label("cooled"),
    )
    .join(execution_configs, execution_configs.c.experiment_id == experiments.c.id)
    .join(datasets, datasets.c.id == experiments.c.dataset_id)
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
        stage_sums.begin(connection, experiment_id)
    return True


def _experiment(row: Row[Any]) -> ExperimentRow:
    stored = row._asdict()
    cooling = max(0.0, -stored.pop("cooled"))
    return ExperimentRow(**{**stored, "spec": decoded(row.spec), "status": Status(row.status), "cooling": cooling})


DELETION_LOCK = 0x7469_6465_6465_6C65
"""The letters "tidedele" as a number: PostgreSQL's advisory lock, under which one deletion runs at a time."""

OF_EXPERIMENT = (
    usages, spend, tallies, chunks, batches, attempts, run_stats, logs, annotation_rows, runs, execution_configs
)  # fmt: skip
"""Tables with the number of the experiment, in an order in which their rows can be deleted."""

FREE = f"{PREFIX}free"
"""Temporary table of the digests of the deleted rows whose contents no import uses now."""


def next_number(table: Any, freed: ColumnElement[int]) -> ColumnElement[int]:
    """Return an unused number for a row of `table` on SQLite, above those in use and the `freed` ones."""
    used = select(func.coalesce(func.max(table.c.id), 0)).scalar_subquery()
    before = select(func.coalesce(func.max(freed), 0)).scalar_subquery()
    return func.max(used, before) + 1


def _remove(sqlite: bool, experiment_id: int, connection: Connection) -> bool:
    if not sqlite:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({DELETION_LOCK})"))
    stage_sums.lock(connection, [experiment_id])
    config = execution_configs.c
    state = select(config.status).where(config.experiment_id == experiment_id).with_for_update()
    status = connection.execute(state).scalar_one_or_none()
    if status is None or status == Status.RUNNING:
        return False
    of_experiment = experiments.c.id == experiment_id
    dataset_id = connection.execute(select(experiments.c.dataset_id).where(of_experiment)).scalar_one()
    # An import that goes on would add rows after their contents are noted.
    connection.execute(select(datasets.c.id).where(datasets.c.id == dataset_id).with_for_update())
    for table in OF_EXPERIMENT:
        connection.execute(delete(table).where(table.c.experiment_id == experiment_id))
    connection.execute(delete(experiments).where(of_experiment))
    if not sqlite:
        # Once a content is locked, no import can begin to use it. One that was locked before is in use.
        of_rows = f"FROM {dataset_rows.name} r JOIN {contents.name} c ON c.digest = r.digest"
        free = f"SELECT c.digest {of_rows} WHERE r.dataset_id = {dataset_id} FOR UPDATE OF c SKIP LOCKED"
        connection.execute(text(f"CREATE TEMPORARY TABLE {FREE} ON COMMIT DROP AS {free}"))
    connection.execute(delete(dataset_rows).where(dataset_rows.c.dataset_id == dataset_id))
    connection.execute(delete(datasets).where(datasets.c.id == dataset_id))
    if not sqlite:
        used = f"SELECT 1 FROM {dataset_rows.name} r WHERE r.digest = c.digest"
        unused = f"USING {FREE} f WHERE c.digest = f.digest AND NOT EXISTS ({used})"
        connection.execute(text(f"DELETE FROM {contents.name} c {unused}"))
    else:
        in_use = select(dataset_rows.c.digest).where(dataset_rows.c.digest.isnot(None))
        connection.execute(delete(contents).where(contents.c.digest.not_in(in_use)))
        # PostgreSQL's sequences give no number twice.
        connection.execute(insert(deleted).values(experiment_id=experiment_id, dataset_id=dataset_id, deleted_at=now()))
    return True
