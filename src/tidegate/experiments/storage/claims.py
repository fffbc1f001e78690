"""Claims on experiments: every action is one UPDATE, decided in its WHERE and timed by the database's clock.

Theory of operation. RUNNING means claimed: the row has an owner and the instant of the last renewal. A claim without
renewals for `stale_after` seconds is stale, and any replica may take it. Each new claim adds one to the epoch, and
results of an older epoch are rejected.

A user's stop works on any owner's claim and keeps the epoch, so that results in flight are kept. Only the next claim
invalidates them. A stopped, completed, failed or blocked experiment has no owner, and only a user's resume restarts it.
A search for orphans after a stop therefore takes nothing. Two actions of users have a cooldown between them, which is
part of the WHERE too. After an action that changed no row, a second query finds the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, and_, insert, or_, select, tuple_, update

from tidegate.errors import ConfigurationError
from tidegate.experiments.storage.database import Database, StorePart
from tidegate.experiments.storage.records import JSON, Category, Claim, LogLevel, Status, Toggle
from tidegate.experiments.storage.schema import RUNNING, execution_configs, logs
from tidegate.experiments.storage.stored_forms import ago, cleaned, encoded, now

COOLDOWN_SECONDS = 5.0
"""Seconds between a user's stop or resume and the next one. Precedent: Arize Phoenix's runner."""

config = execution_configs.c


class Claims(StorePart):
    """Claims on experiments."""

    async def claim(self, experiment_id: int, replica: str, stale_after: float) -> Claim | None:
        """Return a claim with a new epoch, or None where the experiment is not free.

        It is free where it is READY, is this replica's, or runs without a renewal for `stale_after` seconds. Only
        `resume` claims a stopped, completed, failed or blocked one.
        """
        free = config.status == Status.READY
        own = and_(RUNNING, config.claimed_by == replica)
        return await _taken(
            self._database, replica, config.experiment_id == experiment_id, or_(free, own, _stale(stale_after))
        )

    async def renew(self, replica: str, held: Mapping[int, int]) -> frozenset[int]:
        """Renew claims, given as experiment to epoch; return the experiments that are still this replica's."""
        if not held:
            return frozenset()
        mine = and_(
            tuple_(config.experiment_id, config.epoch).in_(sorted(held.items())),
            config.claimed_by == replica,
            RUNNING,
        )
        if not self._database.sqlite:
            # Lock the rows in the order of result batches, so that the two cannot deadlock.
            ordered = select(config.experiment_id).where(mine).order_by(config.experiment_id)
            mine = and_(config.experiment_id.in_(ordered.with_for_update(key_share=True)), mine)
        renewed = update(execution_configs).where(mine).values(claimed_at=now()).returning(config.experiment_id)
        return await self._database.transacted(lambda connection: frozenset(connection.execute(renewed).scalars()))

    async def release(self, held: Claim, status: Status, last_error: str | None = None) -> bool:
        """End a claim with a status that is not RUNNING.

        Return False and write nothing where it is no longer the newest or was stopped.
        """
        if status is Status.RUNNING:
            raise ConfigurationError(
                "status", str(status), "any status but RUNNING: a released experiment does not run"
            )
        reason = None if last_error is None else cleaned(last_error)
        ended = _freed(status).where(is_held(held)).values(last_error=reason)
        return await self._database.transacted(lambda connection: bool(connection.execute(ended).rowcount))

    async def stop(self, experiment_id: int, by: Mapping[str, JSON] | None = None) -> Toggle:
        """Stop an experiment for a user, whether it is RUNNING on any replica or READY; `by` goes into its log.

        The epoch stays, so that results in flight still count until the next claim. Return ALREADY where it is neither
        RUNNING nor READY, COOLING within five seconds of the last stop or resume, and MISSING where it does not exist.
        """
        live = config.status.in_((Status.READY, Status.RUNNING))
        stopped = (
            _freed(Status.STOPPED)
            .where(config.experiment_id == experiment_id, live, _cooled())
            .values(last_error=None, cooldown_until=ago(-COOLDOWN_SECONDS))
            .returning(config.epoch)
        )

        def work(connection: Connection) -> bool:
            epoch = connection.execute(stopped).scalar_one_or_none()
            if epoch is not None:
                detail = {"type": "stopped_by_user", "epoch": epoch, **(by or {})}
                line = {"level": LogLevel.INFO, "category": Category.EXPERIMENT, "detail": encoded(detail)}
                connection.execute(insert(logs).values(experiment_id=experiment_id, at=now(), **line))
            return epoch is not None

        while True:
            if await self._database.transacted(work):
                return Toggle.DONE
            why = await _why_not(self._database, experiment_id, live)
            if why is not None:
                return why

    async def resume(self, experiment_id: int, replica: str) -> Claim | Toggle:
        """Resume an experiment for a user: return a claim where none runs it, or ALREADY, COOLING, MISSING."""
        free = config.status != Status.RUNNING
        while True:
            taken = await _taken(
                self._database,
                replica,
                config.experiment_id == experiment_id,
                free,
                _cooled(),
                cooldown_until=ago(-COOLDOWN_SECONDS),
            )
            if taken is not None:
                return taken
            why = await _why_not(self._database, experiment_id, free)
            if why is not None:
                return why

    async def orphans(self, stale_after: float, limit: int) -> list[int]:
        """Return the experiments that run without a renewal for `stale_after` seconds, the longest first."""
        query = select(config.experiment_id).where(_stale(stale_after)).order_by(config.claimed_at).limit(limit)
        async with self._database.reading() as connection:
            return list((await connection.execute(query)).scalars())


def _stale(stale_after: float) -> ColumnElement[bool]:
    return and_(RUNNING, config.claimed_at < ago(stale_after))


def _cooled() -> ColumnElement[bool]:
    return or_(config.cooldown_until.is_(None), config.cooldown_until <= now())


def is_held(held: Claim) -> ColumnElement[bool]:
    return and_(
        config.experiment_id == held.experiment_id,
        config.epoch == held.epoch,
        config.claimed_by == held.replica,
        RUNNING,
    )


def _freed(status: Status) -> Update:
    # The cooldown applies between actions of users only. Another end of a claim ignores and clears it.
    return update(execution_configs).values(status=status, claimed_at=None, claimed_by=None, cooldown_until=None)


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
        .returning(config.experiment_id, config.epoch)
    )
    row = await database.transacted(lambda connection: connection.execute(taken).one_or_none())
    return None if row is None else Claim(row[0], replica, row[1])


async def _why_not(database: Database, experiment_id: int, possible: ColumnElement[bool]) -> Toggle | None:
    """Return why a stop or resume changed nothing; None where it is possible by now."""
    query = select(possible, _cooled()).where(config.experiment_id == experiment_id)
    async with database.reading() as connection:
        row = (await connection.execute(query)).one_or_none()
    if row is None:
        return Toggle.MISSING
    if not row[0]:
        return Toggle.ALREADY
    return None if row[1] else Toggle.COOLING
