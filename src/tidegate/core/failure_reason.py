"""Reason of a failed call in a few words, for the line at the end of a run."""

from __future__ import annotations

from tidegate.core.values import Cause, Outcome

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
