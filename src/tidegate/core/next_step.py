"""Consequences of a failure, by its kind and by the place that asks: one table for rows, jobs, fallbacks, counters.

A call adds its deadline, its policy and the circuit breaker (`core.exchange.retry_time`). A row adds what its function
made of the failure (`pool.failure_class`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tidegate.core.values import ELSEWHERE, Cause, Kind, Outcome


class NextStep(StrEnum):
    """Next step of a row of a pool or an experiment."""

    ANSWERED = "answered"
    CAPACITY = "capacity"
    PARKED = "parked"
    TRANSIENT = "transient"
    UNUSABLE = "unusable"
    PERMANENT = "permanent"


class Action(StrEnum):
    """Action for a job after its failure."""

    REQUEUE = "requeue"
    RETRY = "retry"
    POISON = "poison"


class Consequences(NamedTuple):
    """The next step of a `row`, the action for a `job` of a queue, and the `reason` in fallbacks and counters.

    A fallback passes a choice over for a reason in its `on`; an empty one is none.
    """

    row: NextStep
    job: Action
    reason: str


CONSEQUENCES = {
    Kind.RATE_LIMIT: Consequences(NextStep.CAPACITY, Action.REQUEUE, "rate"),
    Kind.OVERLOADED: Consequences(NextStep.CAPACITY, Action.REQUEUE, "overload"),
    Kind.DAILY_LIMIT: Consequences(NextStep.PARKED, Action.REQUEUE, "day"),
    Kind.QUOTA_EXHAUSTED: Consequences(NextStep.PERMANENT, Action.POISON, "money"),
    Kind.TRANSIENT: Consequences(NextStep.TRANSIENT, Action.RETRY, ""),
    Kind.PERMANENT: Consequences(NextStep.PERMANENT, Action.POISON, ""),
    Kind.ABANDONED: Consequences(NextStep.PERMANENT, Action.POISON, ""),
    Kind.OK: Consequences(NextStep.ANSWERED, Action.POISON, ""),
}


def passing_reason(outcome: Outcome) -> str:
    """Return the reason for which a fallback may pass over a choice; empty if there is none."""
    if outcome.kind is Kind.TRANSIENT and outcome.cause is Cause.OUTAGE:
        return "outage"
    return CONSEQUENCES[outcome.kind].reason


def refusal_counter(fate: str, outcome: Outcome) -> str:
    """Return the counter of a refusal whose call ended as `fate` (`launch.counter_row.FATES`)."""
    return f"{fate}_elsewhere" if outcome.cause in ELSEWHERE else f"{fate}_{CONSEQUENCES[outcome.kind].reason}"


_WORDS = {
    Cause.AUTH: "key rejected",
    Cause.DAY: "day quota spent",
    Cause.MONEY: "money spent",
    Cause.NEVER_FITS: "larger than the limit",
    Cause.RATE: "rate limit",
    Cause.CONCURRENCY: "too many at once",
    Cause.OVERLOAD: "overloaded",
    Cause.OTHERS_CAPACITY: "overloaded",
    Cause.UNAVAILABLE: "unavailable",
    Cause.NOT_READY: "model not ready",
    Cause.INVALID: "request refused",
}


def failure_reason(outcome: Outcome) -> str:
    """Return the status and the cause of a failure; for one without an answer, the error that came instead."""
    words = _WORDS.get(outcome.cause, "")
    if outcome.status is not None:
        return f"{outcome.status}: {words}" if words else f"status {outcome.status}"
    return words or outcome.error or ("no connection" if outcome.cause is Cause.OUTAGE else "no answer in time")
