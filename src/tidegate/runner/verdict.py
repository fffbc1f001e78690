"""The meaning of a call's end for its row: an answer, a refusal for want of capacity, a failure that may pass or not.

An answer that cannot be used (a judge that named no score) may be mended by another attempt, as models are not the
same twice; but where all attempts come to that, it is the prompt, and counts as a failure that no attempt can mend.

The last governed attempt says it best, by the provider's own tables. Where no attempt was governed, or the last one
was answered, the exception is classified (`tidegate.classification`): by its status, its type, its words.

What never reached a server, and a plain 503, is capacity that is wanting: it spends no attempt, and waits behind the
key's breaker.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from tidegate.classification import UNREACHED, UNREADABLE, Evidence, classify_error
from tidegate.core.values import CAPACITY, Cause, Kind, Outcome
from tidegate.errors import KeyRefused, NotAdmitted, UnusableAnswer


class Ruling(StrEnum):
    """The next step of an item."""

    ANSWERED = "answered"
    CAPACITY = "capacity"
    PARKED = "parked"
    TRANSIENT = "transient"
    UNUSABLE = "unusable"
    PERMANENT = "permanent"


class Verdict(NamedTuple):
    """A ruling and the kind of failure by which runs are guarded and rows are told apart.

    `kind` is `auth`, `money`, `never_fits`, `invalid`, `rate`, `overload`, `outage`, `timeout`, … or the name of an
    exception that is no provider's; `retry_after` is in seconds.
    """

    ruling: Ruling
    kind: str = ""
    retry_after: float | None = None


UNAVAILABLE = 503
"""The status of a server that is not there for now (RFC 9110, section 15.6.4)."""

OUTAGE = "outage"
"""The kind of a failure behind which nobody answers."""

ANSWERED = Verdict(Ruling.ANSWERED)
TIMEOUT = Verdict(Ruling.TRANSIENT, "timeout")
CANCELLED = Verdict(Ruling.TRANSIENT, "cancelled")


def judge(error: BaseException | None, outcome: Outcome | None, refused: Outcome | None, probe: bool) -> Verdict:
    """The verdict on a call that raised `error`, or answered where that is None.

    `outcome` is that of its last governed attempt. `refused` is the capacity answer that was handed straight back for
    the permit it was given. `probe` says that this permit was a broken key's probe, whose failure is nobody's.
    """
    last = outcome if outcome is not None else refused
    if refused is not None and last is not None and last.kind is not Kind.OK:
        return Verdict(Ruling.CAPACITY, _cause(refused, "rate"), refused.retry_after)
    if error is None:
        # A refusal that the function swallowed must not become its answer.
        return _of_outcome(last, probe) if last is not None and last.kind in CAPACITY else ANSWERED
    if isinstance(error, NotAdmitted) and not isinstance(error, KeyRefused):
        return Verdict(Ruling.CAPACITY, "rate")
    if isinstance(error, UnusableAnswer):
        return Verdict(Ruling.UNUSABLE, type(error).__name__)
    if last is not None and last.kind is not Kind.OK and last.kind is not Kind.ABANDONED:
        return _of_outcome(last, probe, type(error).__name__)
    if last is not None and last.row == UNREADABLE:
        # Whatever the client and the function made of a page of HTML, it is no mistake of theirs.
        return Verdict(Ruling.UNUSABLE, UNREADABLE)
    return _of_exception(error, last is not None and last.kind is Kind.OK)


def _of_outcome(outcome: Outcome, probe: bool, name: str = UNREADABLE) -> Verdict:
    kind = outcome.kind
    if kind in CAPACITY:
        return Verdict(Ruling.CAPACITY, _cause(outcome, "rate"), outcome.retry_after)
    if kind is Kind.DAILY_LIMIT:
        return Verdict(Ruling.PARKED, "day", outcome.retry_after)
    if kind is Kind.QUOTA_EXHAUSTED:
        return Verdict(Ruling.PERMANENT, "money")
    if kind is Kind.TRANSIENT:
        if probe or outcome.status == UNAVAILABLE or outcome.row == UNREACHED:
            return Verdict(Ruling.CAPACITY, _cause(outcome, OUTAGE), outcome.retry_after)
        if outcome.row == UNREADABLE:
            return Verdict(Ruling.UNUSABLE, name)
        return Verdict(Ruling.TRANSIENT, _cause(outcome, outcome.row or "transient"), outcome.retry_after)
    return Verdict(Ruling.PERMANENT, _cause(outcome, "invalid"))


def _of_exception(error: BaseException, answered: bool) -> Verdict:
    outcome, evidence = classify_error(error, datetime.now(UTC), answered=answered)
    name = type(error).__name__
    if evidence is Evidence.NONE:
        # Nobody here cancelled it: something inside the function did, as a client that is being closed does.
        cancelled = any(each.__name__ == "CancelledError" for each in type(error).__mro__)
        return CANCELLED if cancelled else Verdict(Ruling.PERMANENT, name)
    verdict = _of_outcome(outcome, False, name)
    plain = outcome.cause is Cause.INVALID or (verdict.ruling is Ruling.TRANSIENT and outcome.status is not None)
    return verdict._replace(kind=f"status {outcome.status}") if plain and outcome.status is not None else verdict


def _cause(outcome: Outcome, otherwise: str) -> str:
    return outcome.cause.value if outcome.cause is not Cause.NONE else otherwise
