"""The claims on experiments: every act is one UPDATE, decided in its WHERE and timed by the database's clock.

Theory of operation. RUNNING means claimed: the row has an owner and the instant at which he last renewed the claim.
A claim that is not renewed for a while is stale, and anybody may take it; each taking adds one to the epoch, and
results of an older epoch are refused. A user's stop asks for no owner and leaves the epoch, so that results which were
on their way are kept; only the next claim shuts them out. What was stopped, completed, failed or blocked is nobody's,
and only a user's resume takes it up again: a search for orphans that meets a stop comes too late or takes nothing.
Between two acts of users lies a cool-down, which is part of the WHERE too. An act that changed no row is explained by a
second look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, and_, func, insert, or_, select, tuple_, update

from tidegate.errors import ConfigurationError
from tidegate.storage.database import Database
from tidegate.storage.json_codec import cleaned, encoded
from tidegate.storage.records import JSON, Category, Claim, LogLevel, Status, Toggle
from tidegate.storage.schema import RUNNING, execution_configs, logs
from tidegate.storage.sql_clock import ago, now

COOL_DOWN = 5.0
"""Seconds between a user's stop or resume and the next one (Arize Phoenix's runner)."""

config = execution_configs.c


async def claim(database: Database, experiment_id: int, replica: str, stale_after: float) -> Claim | None:
    """A claim with a new epoch, where the experiment is READY, is this replica's, or is stale."""
    free = config.status == Status.READY
    own = and_(RUNNING, config.claimed_by == replica)
    return await _taken(database, replica, config.experiment_id == experiment_id, or_(free, own, _stale(stale_after)))


async def renew(database: Database, replica: str, claims: Mapping[int, int]) -> frozenset[int]:
    """Renews claims, experiment to epoch; returns the experiments that are still this replica's."""
    if not claims:
        return frozenset()
    mine = and_(
        tuple_(config.experiment_id, config.epoch).in_(sorted(claims.items())), config.claimed_by == replica, RUNNING
    )
    if not database.sqlite:
        # In the order in which batches of results lock them, so that the two never wait for each other in a ring.
        ordered = select(config.experiment_id).where(mine).order_by(config.experiment_id)
        mine = and_(config.experiment_id.in_(ordered.with_for_update(key_share=True)), mine)
    renewed = update(execution_configs).where(mine).values(claimed_at=now()).returning(config.experiment_id)
    return await database.acted(lambda connection: frozenset(connection.execute(renewed).scalars()))


async def release(database: Database, held: Claim, status: Status, last_error: str | None) -> bool:
    """Ends a claim; False, and nothing written, where it is not the newest or was stopped."""
    if status is Status.RUNNING:
        raise ConfigurationError("status", str(status), "what is released runs no more")
    ended = _freed(status).where(_held(held)).values(last_error=None if last_error is None else cleaned(last_error))
    return await _changed(database, ended)


async def stop(database: Database, experiment_id: int, by: Mapping[str, JSON]) -> Toggle:
    """The user's stop, whoever runs the experiment: DONE, ALREADY, COOLING or MISSING. The log says `by` whom."""
    live = config.status.in_((Status.READY, Status.RUNNING))
    stopped = (
        _freed(Status.STOPPED)
        .where(config.experiment_id == experiment_id, live, _cooled())
        .values(last_error=None, cooldown_until=ago(-COOL_DOWN))
        .returning(config.epoch)
    )

    def work(connection: Connection) -> bool:
        epoch = connection.execute(stopped).scalar_one_or_none()
        if epoch is not None:
            detail = {"type": "stopped_by_user", "epoch": epoch, **by}
            line = {"level": LogLevel.INFO, "category": Category.EXPERIMENT, "detail": encoded(detail)}
            connection.execute(insert(logs).values(experiment_id=experiment_id, at=now(), **line))
        return epoch is not None

    while True:
        if await database.transacted(work):
            return Toggle.DONE
        why = await _why_not(database, experiment_id, live)
        if why is not None:
            return why


async def resume(database: Database, experiment_id: int, replica: str) -> Claim | Toggle:
    """The user's resume: a claim on what nobody runs, or ALREADY, COOLING, MISSING."""
    free = config.status != Status.RUNNING
    while True:
        taken = await _taken(
            database, replica, config.experiment_id == experiment_id, free, _cooled(), cooldown_until=ago(-COOL_DOWN)
        )
        if taken is not None:
            return taken
        why = await _why_not(database, experiment_id, free)
        if why is not None:
            return why


async def orphans(database: Database, stale_after: float, limit: int) -> list[int]:
    """Experiments whose claim is stale, the longest first."""
    query = select(config.experiment_id).where(_stale(stale_after)).order_by(config.claimed_at).limit(limit)
    async with database.reading() as connection:
        return list((await connection.execute(query)).scalars())


async def advance(database: Database, held: Claim, low_water: int, task_water: int) -> None:
    """Raises the water marks, where the claim is the newest."""
    greatest = func.max if database.sqlite else func.greatest
    raised = (
        update(execution_configs)
        .where(config.experiment_id == held.experiment_id, config.epoch == held.epoch)
        .values(
            low_water=greatest(config.low_water, low_water),
            task_water=greatest(config.task_water, task_water, low_water),
        )
    )
    await _changed(database, raised)


def _stale(stale_after: float) -> ColumnElement[bool]:
    return and_(RUNNING, config.claimed_at < ago(stale_after))


def _cooled() -> ColumnElement[bool]:
    return or_(config.cooldown_until.is_(None), config.cooldown_until <= now())


def _held(held: Claim) -> ColumnElement[bool]:
    return and_(
        config.experiment_id == held.experiment_id,
        config.epoch == held.epoch,
        config.claimed_by == held.replica,
        RUNNING,
    )


def _freed(status: Status) -> Update:
    # An end is nobody's toggle: it asks for no cool-down, and leaves none of the toggle that it follows.
    return update(execution_configs).values(status=status, claimed_at=None, claimed_by=None, cooldown_until=None)


async def _changed(database: Database, act: Update) -> bool:
    """Return whether an act changed anything."""
    return await database.acted(lambda connection: bool(connection.execute(act).rowcount))


async def _taken(database: Database, replica: str, *conditions: Any, **more: Any) -> Claim | None:
    taken = (
        update(execution_configs)
        .where(*conditions)
        .values(
            status=Status.RUNNING,
            claimed_at=now(),
            claimed_by=replica,
            epoch=config.epoch + 1,
            last_error=None,
            **more,
        )
        .returning(config.experiment_id, config.epoch, config.low_water, config.task_water)
    )
    row = await database.acted(lambda connection: connection.execute(taken).one_or_none())
    return None if row is None else Claim(row[0], replica, row[1], row[2], row[3])


async def _why_not(database: Database, experiment_id: int, possible: ColumnElement[bool]) -> Toggle | None:
    """Why a toggle changed nothing; None where it could do so by now."""
    query = select(possible, _cooled()).where(config.experiment_id == experiment_id)
    async with database.reading() as connection:
        row = (await connection.execute(query)).one_or_none()
    if row is None:
        return Toggle.MISSING
    if not row[0]:
        return Toggle.ALREADY
    return None if row[1] else Toggle.COOLING
