"""What the end of a call means for its row: an answer, a refusal for want of capacity, a failure that may pass or not.

An answer that cannot be used (a judge that named no score) may be mended by another attempt, as models are not the
same twice; but where all attempts come to that, it is the prompt, and counts as a failure that no attempt can mend.

The last governed attempt says it best, by the provider's own tables. Where no attempt was governed, the exception says
it by its structure: a status, a type, a well-known name; never by its text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tidegate.calls import OUTAGES, TRANSIENTS
from tidegate.core.vocabulary import CAPACITY, Cause, Kind, Outcome
from tidegate.errors import NotAdmitted, UnusableAnswer


class Ruling(StrEnum):
    """What becomes of the item."""

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


ANSWERED = Verdict(Ruling.ANSWERED)
TIMEOUT = Verdict(Ruling.TRANSIENT, "timeout")
CANCELLED = Verdict(Ruling.TRANSIENT, "cancelled")

WANTING = frozenset({429, 529})
"""Statuses that say that capacity was wanting whatever their body says (RFC 6585; anthropic: overloaded_error)."""

PASSING = frozenset({408, 409, 425, 500, 502, 503, 504})
"""Statuses worth another attempt (openai 3.52 `_should_retry`: 408, 409, 5xx; RFC 8470: 425)."""

BARRED = {401: "auth", 403: "auth", 402: "money"}
"""Statuses that no row of the run can pass."""


def judge(error: BaseException | None, outcome: Outcome | None, refused: Outcome | None, probe: bool) -> Verdict:
    """The verdict on a call that raised `error`, or answered where that is None.

    `outcome` is that of its last governed attempt, `refused` the capacity answer that was handed straight back for the
    permit it was given, and `probe` says that this permit was a broken key's probe, whose failure is nobody's.
    """
    last = outcome if outcome is not None else refused
    if refused is not None and last is not None and last.kind is not Kind.OK:
        return Verdict(Ruling.CAPACITY, _cause(refused, "rate"), refused.retry_after)
    if error is None:
        # A refusal that the function swallowed must not become its answer.
        return _of_outcome(last, probe) if last is not None and last.kind in CAPACITY else ANSWERED
    if isinstance(error, NotAdmitted):
        return Verdict(Ruling.CAPACITY, "rate")
    if isinstance(error, UnusableAnswer):
        return Verdict(Ruling.UNUSABLE, type(error).__name__)
    if last is not None and last.kind is not Kind.OK and last.kind is not Kind.ABANDONED:
        return _of_outcome(last, probe)
    return _of_exception(error)


def _of_outcome(outcome: Outcome, probe: bool) -> Verdict:
    kind = outcome.kind
    if kind in CAPACITY:
        return Verdict(Ruling.CAPACITY, _cause(outcome, "rate"), outcome.retry_after)
    if kind is Kind.DAILY_LIMIT:
        return Verdict(Ruling.PARKED, "day", outcome.retry_after)
    if kind is Kind.QUOTA_EXHAUSTED:
        return Verdict(Ruling.PERMANENT, "money")
    if kind is Kind.TRANSIENT:
        ruling = Ruling.CAPACITY if probe else Ruling.TRANSIENT
        return Verdict(ruling, _cause(outcome, outcome.row or "transient"), outcome.retry_after)
    return Verdict(Ruling.PERMANENT, _cause(outcome, "invalid"))


def _of_exception(error: BaseException) -> Verdict:
    status = status_of(error)
    if status in WANTING:
        return Verdict(Ruling.CAPACITY, "rate" if status == 429 else "overload", _retry_after(error))
    if status in PASSING:
        return Verdict(Ruling.TRANSIENT, f"status {status}", _retry_after(error))
    if status in BARRED:
        return Verdict(Ruling.PERMANENT, BARRED[status])
    if status is not None and 400 <= status < 600:
        return Verdict(Ruling.PERMANENT if status < 500 else Ruling.TRANSIENT, f"status {status}")
    names = {each.__name__ for each in type(error).__mro__}
    if isinstance(error, ConnectionError) or not names.isdisjoint(OUTAGES):
        return Verdict(Ruling.TRANSIENT, "outage")
    if "CancelledError" in names:
        # Nobody here cancelled it: something inside the function did, as a client that is being closed does.
        return CANCELLED
    if isinstance(error, TimeoutError) or not names.isdisjoint(TRANSIENTS):
        return TIMEOUT
    return Verdict(Ruling.PERMANENT, type(error).__name__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception of some client carries; None where it carries none."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (response, "status")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _retry_after(error: BaseException) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    try:
        seconds = float(headers["retry-after"]) if headers is not None else None
    except (KeyError, TypeError, ValueError):
        return None
    return seconds if seconds is not None and 0.0 <= seconds < 1e7 else None


def _cause(outcome: Outcome, otherwise: str) -> str:
    return outcome.cause.value if outcome.cause is not Cause.NONE else otherwise
