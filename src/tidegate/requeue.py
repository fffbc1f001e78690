"""Requeue rules for queues of the caller's own: the action after a failed job.

Theory of operation. A job that met a lack of capacity goes back to its queue with its attempts unchanged: capacity
never makes a job poison. A passing failure costs one attempt. A failure that another attempt cannot change ends the job
at once, with the reason.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.suspensions import Suspension
from tidegate.classification import Classification, classify
from tidegate.core.values import CAPACITY, Key, Kind
from tidegate.errors import require


class Action(StrEnum):
    """Action for a job after its failure."""

    REQUEUE = "requeue"
    RETRY = "retry"
    POISON = "poison"


class Decision(NamedTuple):
    """Action for a job, with its new count of `attempts`; write both to the job's record.

    `REQUEUE`: pending again, its error cleared, not claimed before the aware time `not_before` (None: at once).
    `RETRY`: pending again, its error kept. `POISON`: failed for good. `reason` states the cause in one line.
    `suspension` is that of the target, where a registry was given.
    """

    action: Action
    attempts: int
    not_before: datetime | None
    reason: str
    suspension: Suspension | None = None


def after_failure(
    error: object,
    *,
    attempts: int,
    max_attempts: int = 3,
    target: str | Key | None = None,
    registry: RateLimitRegistry | None = None,
    status: int | None = None,
    provider: str | None = None,
) -> Decision:
    """Return the action for a job that failed with `error` (see `classify`) after `attempts` counted attempts.

    With a `registry`, a lack of capacity suspends `target` there for other workers, if its settings allow that. Raise
    `ConfigurationError` for `attempts` below 0, `max_attempts` below 1, and what is no registry.
    """
    for name, number, least in (("attempts", attempts, 0), ("max_attempts", max_attempts, 1)):
        whole = isinstance(number, int) and not isinstance(number, bool)
        require(whole and number >= least, name, number, f"a whole number, {least} or more")
    known = registry is None or isinstance(registry, RateLimitRegistry)
    require(known, "registry", registry, "a RateLimitRegistry")
    found = classify(error, status=status, provider=provider)
    if found.kind in CAPACITY or found.kind is Kind.DAILY_LIMIT:
        suspension = None
        if registry is not None and target is not None:
            suspension = registry.suspension_table.note_refusal(target, found.outcome, found.window)
        return Decision(Action.REQUEUE, attempts, _not_before(found), _reason(found), suspension)
    if found.kind is Kind.TRANSIENT:
        attempts += 1
        ended = attempts >= max_attempts
        reason = f"{_reason(found)}; attempt {attempts} of {max_attempts}"
        return Decision(Action.POISON if ended else Action.RETRY, attempts, None, reason)
    return Decision(Action.POISON, attempts, None, _reason(found))


def _not_before(found: Classification) -> datetime | None:
    now = datetime.now(UTC)
    if found.retry_after:
        return now + timedelta(seconds=found.retry_after)
    if found.kind is not Kind.DAILY_LIMIT:
        return None
    # Without a named time: the next day of the calendar, in UTC.
    return now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def _reason(found: Classification) -> str:
    span = f" ({found.window})" if found.window else ""
    return f"{found.kind}: {found.cause}{span}, read from {found.evidence}"
