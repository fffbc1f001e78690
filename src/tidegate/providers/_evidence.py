"""The meaning of a refusal, where the provider's table reads no more than its status. Pure; never raises.

Theory of operation. Providers, gateways and assistants report the same few facts in many forms: money is used up, a
plan's window or a day's quota is used up, the capacity of the server is used up, the limit is zero. A row of a table
that compares only the status, or a code such as `rate_limit_error`, cannot tell them apart. If such a row matches,
`meaning_of` asks four witnesses together: the error's codes, its words, the quotas at zero, and the named wait. The
status only excludes what it contradicts, and what an ordinary error may echo of the request. A row that compares words,
or an unambiguous code, is never overruled.

Words are compared as families (`_words`), not as single messages.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import Cause, QuotaReading
from tidegate.providers import _words as families
from tidegate.providers._quoted_refusal import describes_a_fault, is_of_the_request

LONG_WAIT = 3600.0
"""Seconds of a named wait that mean a used-up quota: the longest window of a rate in use is an hour."""

LONGEST_WAIT = 31 * 86400.0
"""Seconds above which a named wait is not believed: the longest window of a plan is a month."""

LONG_WINDOW = 18000.0
"""Seconds from which a window is a plan's or a day's. Derived from the shortest window of the known plans, 5 hours."""

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

_QUOTED = re.compile(
    r"""https?://\S+|"(?:[^"\\]|\\.)*(?:"|\Z)|`[^`]*(?:`|\Z)|\u201c[^\u201d]*(?:\u201d|\Z)|(?<!\w)'(?:[^']|'(?=\w))*(?:'|\Z)"""
)
"""URLs and quoted spans. One that is cut has no end, and an apostrophe within a word is no quote."""


class Meaning(NamedTuple):
    """The cause of a refusal, which gives its kind, and the name of the rule that found it."""

    name: str
    cause: Cause


class Witnesses(NamedTuple):
    """The facts of a refusal: codes and words in lower case, wait in seconds.

    `windows` are those of the quotas that the body lists as exceeded, in seconds. `rejected` if a plan's header says
    that it is used up; `zero` if the only limits in the headers are 0.
    """

    status: int | None
    codes: frozenset[str]
    words: str
    wait: float | None
    readings: tuple[QuotaReading, ...]
    windows: tuple[float, ...] = ()
    rejected: bool = False
    zero: bool = False


ONE_REQUEST = Meaning("one_request", Cause.NEVER_FITS)
ZERO = Meaning("limit_of_zero", Cause.NEVER_FITS)
MONEY = Meaning("money", Cause.MONEY)
PLAN = Meaning("plan_used_up", Cause.MONEY)
PLAN_UNTIL = Meaning("plan_until", Cause.DAY)
DAY = Meaning("day_used_up", Cause.DAY)
LONG = Meaning("long_wait", Cause.DAY)
OTHERS = Meaning("others_capacity_words", Cause.OTHERS_CAPACITY)
NOT_READY = Meaning("not_ready", Cause.NOT_READY)
OVERLOAD = Meaning("overload_words", Cause.OVERLOAD)
RATE = Meaning("rate_words", Cause.RATE)
CONCURRENCY = Meaning("concurrency_words", Cause.CONCURRENCY)

LOADS = (OTHERS, OVERLOAD)
"""Meanings of a load that is not the caller's."""

MEANINGS = (ONE_REQUEST, ZERO, MONEY, PLAN, PLAN_UNTIL, DAY, LONG, NOT_READY, OTHERS, OVERLOAD, RATE, CONCURRENCY)


def meaning_of(facts: Witnesses) -> Meaning | None:
    """Return what the witnesses say together, or None if they say no more than the status."""
    status, codes = facts.status, facts.codes
    if status in _OF_REQUEST:
        # Words may name a limit of the request, but a code does not.
        return MONEY if families.NO_MONEY.search(spoken(codes)) or families.BUDGET.search(spoken(codes)) else None
    echoing = status in _UNSPECIFIC
    # An ordinary error about an invalid request may echo it without quotes: then only codes count.
    stated = "" if echoing and describes_a_fault(facts.words) else facts.words
    words = f"{stated}. {spoken(codes)}"
    throttled, denied = status is None or status in _SHARED, status in _DENIED
    if status == UNPAID and families.CONCURRENCY.search(words):
        return CONCURRENCY
    if status == UNPAID and families.COMPARED.search(stated):
        return ONE_REQUEST
    if (throttled or status == 403) and (facts.zero or families.ZERO.search(words)):
        return ZERO
    window = _window(words, echoing)
    if throttled and window == "rate" and families.SPENDING.search(stated):
        return RATE
    # A gateway passes a code on, or has one default for all: what its words state of a load or a rate is the reason.
    if _states_money(stated, frozenset()) or (_states_money(words, codes) and not (throttled and _is_busy(stated))):
        return MONEY
    if window != "rate" and families.BUDGET.search(words):
        return DAY if window == "day" else MONEY
    rate = families.RATE.search(words) is not None or _any(families.RATE_CODES, codes)
    if denied and families.OFFER.search(words) and window is None:
        return MONEY
    plan = facts.rejected or window == "plan" or families.PLAN.search(words) is not None
    plan = plan or _any(families.PLAN_CODES, codes)
    if not throttled and not rate:
        plan = plan or families.QUOTA.search(words) is not None
        plan = plan or (denied and families.LIMIT.search(words) is not None)
    if plan and window != "rate" and (facts.wait or families.AT_A_TIME.search(words)):
        return RATE if _is_soon(facts, window) else PLAN_UNTIL
    if window == "day" or _any(families.DAY_CODES, codes) or (window is None and families.FREE.search(words)):
        return DAY
    if (throttled or denied) and (_is_long(facts.readings) or _is_long_window(facts.windows)):
        return DAY
    if plan and window != "rate":
        return DAY if facts.rejected or "quota_exhausted" in codes else PLAN
    if throttled and (families.LOADING.search(words) or _any(families.LOADING_CODES, codes)):
        return NOT_READY
    long = facts.wait is not None and LONG_WAIT <= facts.wait <= LONGEST_WAIT
    if long and (status is None or status == 429 or denied):
        return LONG
    if throttled and (families.CAPACITY.search(words) or _any(families.CAPACITY_CODES, codes)):
        return OTHERS if status == 429 else OVERLOAD
    if throttled and families.UPSTREAM.search(words):
        return OTHERS
    concurrent = families.CONCURRENCY.search(words) is not None or _any(families.CONCURRENCY_CODES, codes)
    if status == INVALID:
        # A longer message, or one that names the request's parts, may echo the caller's text: then only codes count.
        brief = len(words) <= LONGEST_STATEMENT and not is_of_the_request(words)
        if brief and families.OVER.search(words):
            return CONCURRENCY if concurrent else RATE if rate else None
        return RATE if _any(families.RATE_CODES, codes) else None
    if (throttled or denied) and concurrent:
        return CONCURRENCY
    if status == 429:
        counted = {reading.unit for reading in facts.readings}
        return RATE if window == "rate" else CONCURRENCY if counted == {"concurrent_requests"} else None
    empty = status in (403, 503) and any(reading.remaining == 0 for reading in facts.readings)
    return RATE if rate or empty else None


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


def _is_soon(facts: Witnesses, window: str | None) -> bool:
    """Return whether a quota is back within a rate's window, and neither words nor codes name a longer one."""
    longer = window is not None or _any(families.PLAN_CODES, facts.codes) or _any(families.DAY_CODES, facts.codes)
    return facts.wait is not None and facts.wait <= SHORT_WAIT and not longer


def _any(pattern: re.Pattern[str], codes: frozenset[str]) -> bool:
    return any(pattern.search(code) for code in codes)


def unquoted(status: int | None, text: str) -> str:
    """Return the text of an answer, for an ordinary error without what it quotes of the request."""
    return _QUOTED.sub(" ", text) if status in _UNSPECIFIC else text


def spoken(codes: frozenset[str]) -> str:
    """Return the codes of several words as words: `credits_depleted` states what "credits depleted" does."""
    joined = sorted(code for code in codes if "_" in code)
    return ". ".join(code.replace("_", " ") for code in joined)


def _is_long_window(windows: tuple[float, ...]) -> bool:
    """Return whether all quotas that the body lists as exceeded are of a plan's or a day's window."""
    return bool(windows) and min(windows) >= LONG_WINDOW


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
