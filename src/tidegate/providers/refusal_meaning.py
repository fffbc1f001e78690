"""The meaning of a refusal: one ordered list that every reader gives its evidence to. Pure; never raises.

Theory of operation. Providers, gateways and assistants report the same few facts in many forms: money is used up, a
plan's window or a day's quota is used up, the capacity of the server is used up, the limit is zero. The readers of
headers, bodies, messages and exceptions collect `Evidence`, and decide nothing. `meaning_of` decides, in this order:

1. The first row of the provider's table that matches, if it compares words, headers, amounts or an unambiguous code.
2. What codes, words, quotas at zero and the named wait state together: the first rule that fits in `stated_cause`. The
   status only excludes what it contradicts, and what an ordinary error may echo of the request. Words are compared as
   X, not as single messages.
3. That row, if it compares no more than the status, or a code that several meanings share.

A row of money is not final if the refusal names its end, as a plan's or a day's quota may be meant. A row that only a
code of money fits is a rule of step 2, since a gateway passes on such codes for a load of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.safe_text import lazy_pattern
from tidegate.core.values import Cause, QuotaReading
from tidegate.providers import refusal_words as families
from tidegate.providers._headers import Found, noted, states_zero
from tidegate.providers._schema import ErrorRow, Provider
from tidegate.providers.refusal_body import RefusalDetails, describes_a_fault, is_of_the_request
from tidegate.providers.refusal_limits import Exceeded, Prose

UNKNOWN = "unknown"
"""Label of a refusal that no row of the table matches."""

LONG_WAIT = 3600.0
"""Seconds of a named wait that mean a used-up quota: the longest window of a rate in use is an hour."""

LONGEST_WAIT = 31 * 86400.0
"""Seconds above which a named wait is not believed: the longest window of a plan is a month."""

LONG_WINDOW = 18000.0
"""Seconds from which a window is a plan's or a day's. Derived from the shortest window of the known plans, 5 hours."""

DAY_WINDOW = 86400.0
"""Seconds from which a window counts although a shorter one is exceeded too: it is back long after that one."""

SHORT_WAIT = 60.0
"""Seconds up to which a named wait is a rate's, without a longer window: most windows are a minute."""

LONGEST_STATEMENT = 160
"""Most characters of a 400's message that may state a rate. Chosen: the longest collected one has 90."""

INVALID = 400
"""HTTP status of an invalid request."""

UNPAID = 402
"""HTTP status of a call that is not paid for: the account's money, or what calls in flight or one call would cost."""

_SHARED = frozenset({409, 429, 500, 502, 503, 504, 529})
"""Statuses that may report another's capacity. A failure in a stream has none, and may too."""

_DENIED = frozenset({401, 402, 403})
"""Statuses that deny: what they offer to buy is missing, and a rate that they name is what they refuse for."""

_OF_REQUEST = frozenset({404, 405, 406, 408, 410, 411, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451})
"""Statuses that name a fault of the request itself. A limit that its words name is one of the request."""

_UNSPECIFIC = frozenset({400, 401, 403, *range(500, 600)}) - {503, 529}
"""Statuses of ordinary errors, whose messages echo the caller's text. Only words that state an excess count there."""

_QUOTED = lazy_pattern(
    r"""https?://\S+|"(?:[^"\\]|\\.)*(?:"|\Z)|`[^`]*(?:`|\Z)|\u201c[^\u201d]*(?:\u201d|\Z)|(?<!\w)'(?:[^']|'(?=\w))*(?:'|\Z)"""
)
"""URLs and quoted spans. One that is cut has no end, and an apostrophe within a word is no quote."""

CAUSES = {
    "one_request": Cause.NEVER_FITS,
    "limit_of_zero": Cause.NEVER_FITS,
    "money": Cause.MONEY,
    "plan_used_up": Cause.MONEY,
    "plan_until": Cause.DAY,
    "day_used_up": Cause.DAY,
    "long_wait": Cause.DAY,
    "not_ready": Cause.NOT_READY,
    "others_capacity_words": Cause.OTHERS_CAPACITY,
    "overload_words": Cause.OVERLOAD,
    "rate_words": Cause.RATE,
    "concurrency_words": Cause.CONCURRENCY,
}
"""Causes that the evidence may state, by the name of their rule."""


class Evidence(NamedTuple):
    """The facts of a refusal. `headers` are those that the provider's table knows.

    `rejected` says that a plan's header shows it used up, `in_stream` that a good answer ended with the failure.
    """

    refusal: RefusalDetails
    readings: tuple[QuotaReading, ...] = ()
    headers: Found | None = None
    prose: Prose = Prose()
    rejected: bool = False
    in_stream: bool = False


class Meaning(NamedTuple):
    """The cause of a refusal, and the label of the row or rule that decided; `window` (seconds) is of its quota."""

    label: str
    cause: Cause
    window: float | None = None


def meaning_of(provider: Provider, evidence: Evidence) -> Meaning:
    """Return the meaning of a refusal that a provider's answer or stream holds."""
    matching = (pair for pair in provider.rows if _matches(provider, pair[1], evidence))
    label, row = next(matching, (UNKNOWN, None))
    if row is not None and row.is_specific and not (row.cause is Cause.MONEY and evidence.refusal.wait):
        return Meaning(label, row.cause, row.window)
    coded = row is not None and row.cause is Cause.MONEY and bool(row.codes)
    rule = stated_cause(evidence, coded) if provider.common_errors else None
    if rule is not None and (row is None or CAUSES[rule] is not row.cause):
        return Meaning(f"common:{rule}", CAUSES[rule])
    if row is not None:
        return Meaning(label, row.cause, row.window)
    return Meaning(label, Cause.OUTAGE if evidence.in_stream else Cause.INVALID)


def _matches(provider: Provider, row: ErrorRow, evidence: Evidence) -> bool:
    """Return whether every criterion of the row holds. A failure in a stream may have no status: words then decide."""
    refusal, found = evidence.refusal, evidence.headers or {}
    status = refusal.status
    if row.status and status not in row.status and (status is not None or not (row.codes or row.text)):
        return False
    if row.codes and row.codes.isdisjoint(refusal.codes):
        return False
    if not row.says(refusal.text):
        return False
    if row.exceeds and not evidence.prose.exceeds:
        return False
    if row.waits and refusal.wait is None:
        return False
    if any(provider.noted[name] in found for name in row.without):
        return False
    sent = [(noted(provider, found, name), value.encode("ascii")) for name, value in row.headers]
    return all(raw is not None and (not value or raw.lower() == value) for raw, value in sent)


def stated_cause(evidence: Evidence, coded: bool) -> str | None:
    """Return the rule in `CAUSES` that the evidence fits, the first of this sequence; None if it shows a status only.

    `coded` says that a code of the provider's table means money.
    """
    refusal, readings = evidence.refusal, evidence.readings
    status, codes, wait = refusal.status, refusal.codes, refusal.wait
    if status in _OF_REQUEST:
        # Words may name a limit of the request, but a code does not.
        said = spoken(codes)
        means_money = (
            families.NO_MONEY.search(said) or families.BUDGET.search(said) or _any(families.MONEY_CODES, codes)
        )
        return "money" if means_money else None
    echoing = status in _UNSPECIFIC
    # An ordinary error about an invalid request may echo it without quotes: then only codes count.
    stated = "" if echoing and describes_a_fault(refusal.words) else refusal.words
    words = f"{stated}. {spoken(codes)}"
    throttled, denied = status is None or status in _SHARED, status in _DENIED
    if status == UNPAID and families.CONCURRENCY.search(words):
        return "concurrency_words"
    if status == UNPAID and families.COMPARED.search(stated):
        return "one_request"
    # A code of money with a limit of zero says that nothing was ever paid.
    if not coded and (throttled or status == 403) and (_states_zero(evidence) or families.ZERO.search(words)):
        return "limit_of_zero"
    window = _window(words, echoing)
    if throttled and window == "rate" and families.SPENDING.search(stated):
        return "rate_words"
    # A gateway passes a code on, or has one default for all: what its words state of a load or a rate is the reason.
    if _states_money(stated, frozenset()):
        return "money"
    if _states_money(words, codes) and not (throttled and _is_busy(stated)):
        return "money"
    if window != "rate" and families.BUDGET.search(words):
        return "day_used_up" if window == "day" else "money"
    rate = families.RATE.search(words) is not None or _any(families.RATE_CODES, codes)
    if denied and families.OFFER.search(words) and window is None:
        return "money"
    plan = evidence.rejected or window == "plan" or families.PLAN.search(words) is not None
    plan = plan or _any(families.PLAN_CODES, codes)
    if not throttled and not rate:
        plan = plan or families.QUOTA.search(words) is not None
        plan = plan or (denied and families.LIMIT.search(words) is not None)
    if plan and window != "rate" and (wait or families.AT_A_TIME.search(words)):
        return "rate_words" if _is_soon(refusal, window) else "plan_until"
    if coded and not (throttled and _is_busy(stated)):
        return "money"
    if window == "day" or _any(families.DAY_CODES, codes) or (window is None and families.FREE.search(words)):
        return "day_used_up"
    if (throttled or denied) and (_is_long(readings) or _is_long_window(refusal.exceeded)):
        return "day_used_up"
    if plan and window != "rate":
        return "day_used_up" if evidence.rejected or "quota_exhausted" in codes else "plan_used_up"
    if throttled and (families.LOADING.search(words) or _any(families.LOADING_CODES, codes)):
        return "not_ready"
    long = wait is not None and LONG_WAIT <= wait <= LONGEST_WAIT
    if long and (status is None or status == 429 or denied):
        return "long_wait"
    if throttled and (families.CAPACITY.search(words) or _any(families.CAPACITY_CODES, codes)):
        return "others_capacity_words" if status == 429 else "overload_words"
    if throttled and families.UPSTREAM.search(words):
        return "others_capacity_words"
    concurrent = families.CONCURRENCY.search(words) is not None or _any(families.CONCURRENCY_CODES, codes)
    if status == INVALID:
        # A longer message, or one that names the request's parts, may echo the caller's text: then only codes count.
        brief = len(words) <= LONGEST_STATEMENT and not is_of_the_request(words)
        if brief and families.OVER.search(words):
            return "concurrency_words" if concurrent else "rate_words" if rate else None
        return "rate_words" if _any(families.RATE_CODES, codes) else None
    if (throttled or denied) and concurrent:
        return "concurrency_words"
    if status == 429:
        counted = {reading.unit for reading in readings}
        return "rate_words" if window == "rate" else "concurrency_words" if counted == {"concurrent_requests"} else None
    empty = status in (403, 503) and any(reading.remaining == 0 for reading in readings)
    return "rate_words" if rate or empty else None


def _states_money(words: str, codes: frozenset[str]) -> bool:
    return (
        families.NO_MONEY.search(words) is not None
        or families.SPENDING.search(words) is not None
        or _any(families.MONEY_CODES, codes)
    )


def _window(words: str, echoing: bool) -> str | None:
    """Return the window that is used up: `rate`, `day` or `plan`, the first one named before any offer; else None.

    An ordinary error names a day or a plan only beside a bound and its excess.
    """
    found = families.WINDOW.search(families.OFFERED.split(words, maxsplit=1)[0])
    window = found.lastgroup if found is not None else None
    if window is None and families.LATER.search(words):
        window = "plan"
    if window in (None, "rate"):
        return window
    if not echoing:
        return window if families.USED_UP.search(words) else None
    bound = families.DAY_BOUND if window == "day" else families.PLAN_BOUND
    return window if families.OVER.search(words) and bound.search(words) else None


def _is_busy(stated: str) -> bool:
    """Return whether words state a load, or a rate with its window."""
    if families.UPSTREAM.search(stated) or families.CAPACITY.search(stated):
        return True
    return _window(stated, False) == "rate" and families.RATE.search(stated) is not None


def _is_soon(refusal: RefusalDetails, window: str | None) -> bool:
    """Return whether a quota is back within a rate's window, and neither words nor codes name a longer one."""
    longer = window is not None or _any(families.PLAN_CODES, refusal.codes) or _any(families.DAY_CODES, refusal.codes)
    return refusal.wait is not None and refusal.wait <= SHORT_WAIT and not longer


def _any(pattern: re.Pattern[str], codes: frozenset[str]) -> bool:
    return any(pattern.search(code) for code in codes)


def unquoted(status: int | None, text: str) -> str:
    """Return the text of an answer, for an ordinary error without what it quotes of the request."""
    return _QUOTED.sub(" ", text) if status in _UNSPECIFIC else text


def spoken(codes: frozenset[str]) -> str:
    """Return the codes of several words as words: `credits_depleted` states what "credits depleted" does."""
    joined = sorted(code for code in codes if "_" in code)
    return ". ".join(code.replace("_", " ") for code in joined)


def _states_zero(evidence: Evidence) -> bool:
    """Return whether a quota that the body lists as exceeded, or the only limits in the headers, are 0."""
    if any(quota.limit == 0 for quota in evidence.refusal.exceeded):
        return True
    return not evidence.readings and evidence.headers is not None and states_zero(evidence.headers)


def _is_long_window(exceeded: tuple[Exceeded, ...]) -> bool:
    """Return whether the body lists a day's quota as exceeded, or only quotas of a plan's window."""
    windows = [quota.window for quota in exceeded if quota.window is not None]
    return bool(windows) and (min(windows) >= LONG_WINDOW or max(windows) >= DAY_WINDOW)


def _is_long(readings: tuple[QuotaReading, ...]) -> bool:
    """Return whether all quotas at zero are those of a day or longer, by their window or else by their reset.

    A reset within a rate's wait denies a long window: another server may reuse the provider's headers.
    """
    empty = [reading for reading in readings if reading.remaining == 0 and (reading.window or reading.reset_after)]
    return bool(empty) and all(
        reading.window >= LONG_WINDOW and (reading.reset_after is None or reading.reset_after > SHORT_WAIT)
        if reading.window
        else (reading.reset_after or 0.0) >= LONG_WAIT
        for reading in empty
    )
