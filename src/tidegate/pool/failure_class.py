"""Classification of a call's end, the same for a runner and a pool.

Theory of operation. The outcome of the last governed attempt decides, by the table of `core.values`. If no attempt
was governed, or the last one was answered, `tidegate.providers.classification` reads the exception. A request that
never reached a server, a plain 503, and a timeout while the provider answers no call at all, count as missing capacity:
they spend no attempt and wait for the key's circuit breaker. An unusable answer (a judge that named no score) may be
repaired by another attempt, as models vary. If all attempts fail so, the prompt is the cause, and the failure counts as
permanent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from tidegate.core.backoff import MAX_BACKOFF_SECONDS, full_jitter, half_jitter
from tidegate.core.values import CAPACITY, CONSEQUENCES, Cause, Kind, NextStep, Outcome
from tidegate.errors import NotAdmitted, UnusableAnswer
from tidegate.providers.classification import UNREACHED, UNREADABLE, classify_error


class FailureClass(NamedTuple):
    """Next step of an item, and the kind of its failure for the failure guard and the stored row.

    `kind` is `auth`, `money`, `never_fits`, `invalid`, `rate`, `overload`, `outage`, `timeout`, … or the name of an
    exception that no provider raised. `retry_after` is in seconds.
    """

    next_step: NextStep
    kind: str = ""
    retry_after: float | None = None

    def delay(self, attempts: int, draw: float) -> float:
        """Return the seconds until the next one after `attempts` attempts."""
        return max(full_jitter(attempts, draw), min(self.retry_after or 0.0, MAX_BACKOFF_SECONDS))

    def delay_elsewhere(self, refusals: int, draw: float, longest: float) -> float:
        """Return the seconds until the next try after `refusals` that no gate has recorded.

        The open gate would let the work go again at once. A stated time counts up to `longest` seconds.
        """
        return max(half_jitter(refusals, draw), min(self.retry_after or 0.0, longest))


OUTAGE = "outage"
"""Kind of a failure to get any answer, or one that states anything."""

ANSWERED = FailureClass(NextStep.ANSWERED)
TIMEOUT = FailureClass(NextStep.TRANSIENT, "timeout")
UNHEARD = FailureClass(NextStep.CAPACITY, OUTAGE)
"""Class of a timeout while the provider answers nothing, to no call of the key."""
CANCELLED = FailureClass(NextStep.TRANSIENT, "cancelled")


def classify(
    error: BaseException | None, outcome: Outcome | None, refused: Outcome | None, key_failed: bool
) -> FailureClass:
    """Classify a call that raised `error`, or answered if that is None.

    `outcome` belongs to its last governed attempt. `refused` is the refusal for lack of capacity that it got.
    `key_failed` means that no item is responsible for the failure: it is that of a probe, or of a key at which no
    server has worked.
    """
    last = outcome if outcome is not None else refused
    if refused is not None and last is not None and last.kind is not Kind.OK:
        return FailureClass(NextStep.CAPACITY, _cause(refused, "rate"), refused.retry_after)
    if error is None:
        # A function may swallow a refusal; its return value is then no answer.
        return _of_outcome(last, key_failed) if last is not None and last.kind in CAPACITY else ANSWERED
    if isinstance(error, NotAdmitted):
        return FailureClass(NextStep.CAPACITY, "rate")
    if isinstance(error, UnusableAnswer):
        return FailureClass(NextStep.UNUSABLE, type(error).__name__)
    if last is not None and last.kind is not Kind.OK and last.kind is not Kind.ABANDONED:
        return _of_outcome(last, key_failed, type(error).__name__)
    return _of_exception(error, last is not None and last.kind is Kind.OK)


def _of_outcome(outcome: Outcome, key_failed: bool, name: str = UNREADABLE) -> FailureClass:
    step = CONSEQUENCES[outcome.kind].row
    if step is NextStep.TRANSIENT and (key_failed or outcome.row == UNREACHED):
        return FailureClass(NextStep.CAPACITY, _cause(outcome, OUTAGE), outcome.retry_after)
    if step is NextStep.TRANSIENT and outcome.row == UNREADABLE:
        return FailureClass(NextStep.UNUSABLE, name)
    unnamed = {NextStep.CAPACITY: "rate", NextStep.TRANSIENT: outcome.row or "transient"}.get(step, "invalid")
    wait = None if step is NextStep.PERMANENT else outcome.retry_after
    return FailureClass(step, _cause(outcome, unnamed), wait)


def _of_exception(error: BaseException, answered: bool) -> FailureClass:
    outcome, evidence, _ = classify_error(error, datetime.now(UTC), answered=answered)
    name = type(error).__name__
    if evidence == "none":
        # tidegate did not cancel the call: code inside the function did, such as a client that is being closed.
        cancelled = any(each.__name__ == "CancelledError" for each in type(error).__mro__)
        return CANCELLED if cancelled else FailureClass(NextStep.PERMANENT, name)
    failure_class = _of_outcome(outcome, False, name)
    plain = outcome.cause is Cause.INVALID or (
        failure_class.next_step is NextStep.TRANSIENT and outcome.status is not None
    )
    return (
        failure_class._replace(kind=f"status {outcome.status}")
        if plain and outcome.status is not None
        else failure_class
    )


def _cause(outcome: Outcome, otherwise: str) -> str:
    if outcome.cause is Cause.UNAVAILABLE:
        return OUTAGE
    return outcome.cause.value if outcome.cause is not Cause.NONE else otherwise
