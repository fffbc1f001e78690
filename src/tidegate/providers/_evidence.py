"""The meaning of a refusal, where the provider's table reads no more than its status. Pure; never raises.

Theory of operation. Providers, gateways and assistants report the same few facts in many forms: money is used up, a
plan's window or a day's quota is used up, the capacity of the server is used up, the limit is zero. A row of a table
that compares only the status, or a code such as `rate_limit_error`, cannot tell them apart. If such a row matches,
`meaning_of` asks four witnesses together: the error's codes, its words, the quotas at zero, and the named wait. The
status only excludes what it contradicts, and what an ordinary error may echo of the request. A row that compares words,
or an unambiguous code, is never overruled.

Words are matched as families, not as single messages: a window ("5-hour", "weekly", "billing cycle") near a limit, or
what is owned ("balance", "credits", "funds") near its absence. Sources: the recorded answers `common.json`, and the
project's collected answers of 2023 to 2026.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import Cause, Kind, QuotaReading

LONG_WAIT = 3600.0
"""Seconds from which a refusal's named wait means a used-up quota, not a rate. Raising it retries plans' windows in
vain. Derived from rates, whose longest window in use is an hour."""

LONGEST_WAIT = 31 * 86400.0
"""Seconds above which a named wait is no longer believed to be a quota's. Raising it closes a key for longer on a
garbled header. Derived from the longest window of a plan, a month."""

LONG_WINDOW = 18000.0
"""Seconds from which a window is a plan's or a day's. Raising it takes plans' windows for rates. Derived from the
shortest window of the known plans, 5 hours."""

_SHARED = frozenset({429, 500, 502, 503, 504, 529})
"""Statuses that may report another's capacity. A failure in a stream has none, and may too."""

_DENIED = frozenset({401, 402, 403})
"""Statuses that deny: what they offer to buy is missing, and a rate that they name is what they refuse for."""

_OF_REQUEST = frozenset({404, 405, 406, 408, 410, 411, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451})
"""Statuses that name a fault of the request itself. A limit that its words name is one of the request."""

_UNSPECIFIC = frozenset({400, 401, 403, *range(500, 600)}) - {503, 529}
"""Statuses of ordinary errors, whose messages echo the caller's text. Only words that state an excess count there."""

_QUOTED = re.compile(
    r"""https?://\S+|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\u201c[^\u201d]*(?:\u201d|\Z)|(?<!\w)'(?:[^']|'(?=\w))*(?:'|\Z)"""
)
"""URLs and quoted spans. One that is cut has no end, and an apostrophe within a word is no quote."""


class Meaning(NamedTuple):
    """The kind and cause of a refusal, and the name of the rule that found them."""

    name: str
    kind: Kind
    cause: Cause


class Witnesses(NamedTuple):
    """The facts of a refusal: codes and words in lower case, wait in seconds.

    `rejected` if a plan's header says that it is used up; `zero` if the only limits in the headers are 0.
    """

    status: int | None
    codes: frozenset[str]
    words: str
    wait: float | None
    readings: tuple[QuotaReading, ...]
    rejected: bool = False
    zero: bool = False


ZERO = Meaning("limit_of_zero", Kind.PERMANENT, Cause.NEVER_FITS)
MONEY = Meaning("money", Kind.QUOTA_EXHAUSTED, Cause.MONEY)
PLAN = Meaning("plan_used_up", Kind.QUOTA_EXHAUSTED, Cause.MONEY)
PLAN_UNTIL = Meaning("plan_until", Kind.DAILY_LIMIT, Cause.DAY)
DAY = Meaning("day_used_up", Kind.DAILY_LIMIT, Cause.DAY)
LONG = Meaning("long_wait", Kind.DAILY_LIMIT, Cause.DAY)
OTHERS = Meaning("others_capacity_words", Kind.OVERLOADED, Cause.OTHERS_CAPACITY)
OVERLOAD = Meaning("overload_words", Kind.OVERLOADED, Cause.OVERLOAD)
RATE = Meaning("rate_words", Kind.RATE_LIMIT, Cause.RATE)
CONCURRENCY = Meaning("concurrency_words", Kind.RATE_LIMIT, Cause.CONCURRENCY)

MEANINGS = (ZERO, MONEY, PLAN, PLAN_UNTIL, DAY, LONG, OTHERS, OVERLOAD, RATE, CONCURRENCY)


class WordFamily(NamedTuple):
    """A pattern that is searched only in a message with one of the `hints`, because most messages have none."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def found(self, words: str) -> bool:
        """Return whether the message has words of the family."""
        return any(hint in words for hint in self.hints) and self.pattern.search(words) is not None


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


_GAP = r"(?:\W{1,3}\w{1,20}){0,3}?\W{1,3}"
"""Up to three words between two others."""

_FAR = r"(?:\W{1,3}\w{1,20}){0,5}?\W{1,3}"
"""Up to five words between two others."""

_ZERO = re.compile(
    r"(?<!remaining )(?<!current )\b(?:limit|(?:rate|quota) limit of|(?:limit|quota) is):? 0"
    r"(?![0-9]|[.,][0-9]| burst| remaining)"
)

_EXCESS = r"(?:exceed(?:ed|s)?|reach(?:ed|es)|exhausted|depleted|used up|hit|over)"
_SPENDING = r"(?:billing|spend|spending|cost|credit|payment)(?: hard| soft)? (?:limit|cap)\b"
_OWNED = r"(?:balance|funds|credits?)"
_ABOUT_MONEY = ("balance", "funds", "credit", "usage", "bill", "spend", "cost", "pay", "budget", "standing", "account",
                "invoice", "charge", "top", "subscription", "trial", "余额", "欠费", "额度")  # fmt: skip
_MONEY = WordFamily(
    _ABOUT_MONEY,
    _words(
        rf"\b(?:insufficient|not enough|no|zero|negative)(?: \w{{1,20}}){{0,2}}? {_OWNED}\b(?! card)",
        rf"\b(?:have|has|had)(?:n't| not)(?: \w{{1,20}}){{0,2}}? {_OWNED}\b",
        rf"\b(?:doesn't|don't|does not|do not) have(?: \w{{1,20}}){{0,2}}? {_OWNED}\b",
        rf"\b(?:used|depleted|exhausted|exceeded|consumed)(?: \w{{1,20}}){{0,4}}? {_OWNED}\b",
        rf"\b{_OWNED} (?:is|are|has been|have been|was) (?:\w{{1,20}} )?"
        r"(?:low|insufficient|exhausted|depleted|empty)\b",
        rf"\b(?:is|are|'re|run|ran) out of(?: \w{{1,20}}){{0,2}}? (?:{_OWNED}|usage)\b",
        r"\bdraws? from your extra usage\b",
        rf"\brequires? more {_OWNED}\b",
        rf"\b{_EXCESS}(?: [\w']{{1,20}}){{0,4}}? {_SPENDING}",
        rf"\b{_SPENDING}(?:[^.!?]|\.(?=[0-9])){{0,40}}?\b{_EXCESS}\b",
        r"\bbudget (?:has been |was |is )?(?:exceeded|exhausted)\b(?! the\b)",
        r"\b(?:exceeded|over|out of)(?: \w{1,20}){0,2}? budget\b(?!:)",
        r"\bexceededbudget\b",
        r"\bnot active, please check your billing\b",
        r"\bin good standing\b",
        r"\b(?:account|payment|invoice)(?: \w{1,20}){0,3}? (?:overdue|past due|in arrears)\b",
        r"\bplease (?:recharge|top[- ]?up)\b",
        r"\bpositive balance\b",
        r"\bcredits? (?:has |have )?expired\b",
        r"\b(?:trial|subscription)(?: period)?(?: has| is)? (?:expired|ended)\b",
        r"\b(?:inactive|no active|without an active) (?:subscription|plan)\b",
        r"(?:余额|额度)(?:已)?(?:不足|用尽|用完|耗尽)|欠费",
    ),
)
_OFFER = re.compile(
    rf"\b(?:purchase|buy|add|enter|provide|top up)(?: \w{{1,20}}){{0,2}}? (?:{_OWNED}|payment method)\b"
)
"""What a denied call offers to buy. A refusal for a rate or a window offers the same, so it counts only there."""
_MONEY_CODES = _words(
    r"^billing_|_billing$|billing_hard_limit|insufficient_?(?:balance|funds|credits?)|credits?_(?:balance_)?exhausted",
    r"exceeded_current_quota|budget_(?:exceeded|exhausted)|arrear|overdue|payment_?required|spend(?:ing)?[-_]limit|credit_limit",
)

_PERIOD = r"(?:(?<!concurrent )session|hourly|weekly|monthly|(?:[0-9]{1,3}|five|seven)[- ]?(?:hours?|days?|weeks?|h|d))"
_BOUND = r"(?:limits?|quotas?|allowance|allocation|cap)"
_ABOUT_PLANS = ("session", "hour", "week", "month", "day", "usage", "message", "individual", "plan", "billing", "your ",
                "quota", " all ", "trial", " set ", "使用", "限额", "每周", "月",
                *(f"{number}h" for number in range(10)))  # fmt: skip
_STATED_PLANS = (
    r"\b(?:used|consumed|exhausted)(?: up)? all(?: \w{1,20}){0,4}? (?:requests|messages|usage|quota|allowance)\b",
    r"\bout of(?: [\w-]{1,20}){0,3}? quota\b",
    r"\b(?:exceeded|exhausted|reached|used up)(?: \w{1,20}){0,4}? trial\b",
    r"\breached the set(?: \w{1,20})? limit\b",
    r"\bquota will (?:be )?(?:reset|renew|replenish|refresh|refill)(?:ed)?\b",
    r"\b(?:have no|no remaining) (?:quota|allowance)\b",
    r"\b(?:usage|individual|plan) (?:limit|quota)(?: has been| was| is)? (?:reached|hit|exceeded|exhausted)\b",
    r"\bexhausted your (?:capacity|quota)\b",
    r"\bexceed(?:ed|s)? your (?!current )(?:\w{1,20} ){0,3}?(?:allowance|allotment|quota)\b",
    r"\bquota (?:is |was )?(?:not enough|insufficient|used up)\b",
)
"""Words that state by themselves that a plan is used up."""
_PLAN = WordFamily(
    _ABOUT_PLANS,
    _words(
        *_STATED_PLANS,
        rf"\b{_PERIOD}\b{_GAP}{_BOUND}\b",
        rf"\b{_BOUND} (?:reached|exceeded|exhausted|used up)? ?(?:for|of|per) (?:your |the |this )?{_PERIOD}\b",
        r"\b(?:reach(?:ed|es)|hit|exceed(?:ed|s)?|exhausted|used up)(?: [\w']{1,20}){0,3}? "
        r"(?:usage|message|individual|plan) (?:limit|quota)\b",
        r"\b(?:have no|no remaining) (?:requests|messages)\b",
        r"\b(?:per|every|within|last|past) (?:[2-9]|[0-9]{2,3}|five|seven)[- ]?(?:hours?|days?|weeks?)\b",
        rf"\b(?:reached|limit|quota|exceeded|used)\b{_GAP}(?:this|the|current|per)(?: current)? "
        r"(?:month|week|billing (?:cycle|period))\b",
        r"使用上限|限额|每周|每月|本月",
    ),
)
_SURE_PLAN = WordFamily(
    _ABOUT_PLANS,
    _words(
        *_STATED_PLANS,
        r"\b(?:reached|hit|exhausted|used up|exceeded (?:your|the))(?: [\w']{1,20}){0,3}? "
        r"(?:usage|message|individual|plan) (?:limit|quota)\b",
        r"\b(?:reached|hit|exceeded) your (?:\w{1,20} )?session limit\b",
    ),
)
"""The words of `_PLAN` that no ordinary error has: no length of a file, age of a key or size of a request."""
_PLAN_BOUND = _words(
    rf"\b(?:hourly|weekly|monthly|(?:[0-9]{{1,3}}|five|seven)-(?:hour|day|week))\b{_GAP}{_BOUND}\b",
    rf"\b(?:reached|limit|quota|used)\b{_GAP}(?:this|current|per)(?: current)? "
    r"(?:month|week|billing (?:cycle|period))\b",
    r"(?:每周|每月|本月)\w{0,10}(?:上限|限额|额度)|使用(?:上限|限额)",
)
"""A bound beside a plan's window: an excess that is stated elsewhere in an ordinary error counts only with it."""
_PLAN_CODES = _words(
    r"usage_?limit",
    r"quota_exhausted",
    r"^quota_exceeded$",
    r"insufficient_\w+_quota",
    r"(?:^|_)(?:weekly|monthly)(?:_|$)",
    r"^limitexceededexception$",
    r"^setlimitexceeded$",
    r"allowance_(?:exceeded|exhausted)",
    r"(?:monthly|weekly|five_hour|session)_(?:\w+_)?(?:count|limit)",
)

_QUOTA = re.compile(r"\bquota\b(?:\W{1,3}\w{1,20}){0,3}?\W{1,3}(?:exceeded|exhausted|reached|rejected)\b")
_LIMIT = re.compile(r"\blimit (?:was |is |has been )?(?:exceeded|reached)\b")
"""A limit of a call that is denied: a rate says so (OpenRouter: "Key limit exceeded (total limit)")."""
_QUOTA_CODES = _words(r"quota_(?:exceeded|exhausted|reached)")
"""Quotas of a call that is denied. Of a call that is throttled, most are rates."""

_FREE_CODES = _words(r"free_?usage|free_?tier_?(?:daily|limit)")
_ALLOWED_FREE = r"free (?!trial)(?:\w{1,20} )?(?:usage|tier|quota|allowance|allocation|requests?)\b"
_FREE = _words(
    rf"\b{_ALLOWED_FREE}{_GAP}(?:exceeded|reached|exhausted|used up)\b",
    rf"\b(?:used|exhausted|exceeded|reached|hit)(?: \w{{1,20}}){{0,4}}? {_ALLOWED_FREE}",
)
"""A free allowance returns each day at those who name no window (OpenCode Zen: 00:00 UTC)."""

_AT_A_TIME = re.compile(r"\bresets? (?:at|on) [0-9]")
_RATE_WORDS = _words(
    r"\brate[- ]limit(?:ed|s)?\b",
    r"\btoo many requests\b",
    r"\bthrottl(?:ed|ing)\b",
    r"\b(?:request|qps|[rt]p[ms]) limit (?:reached|exceeded)\b",
    r"限流|速率限制|频繁",
)
_RATE_CODES = _words(r"throttl", r"rate_?limit", r"too_?many_?requests")

_A_DAY = WordFamily(
    ("day", "dai", "pd", "24", "tomorrow", "日", "每天"),
    _words(
        r"\b(?:per|a|each|every|/) ?day\b",
        r"\bdaily\b",
        r"\bper-day\b",
        r"\b[rti]pd\b",
        r"\b(?:today|tomorrow)\b",
        r"\b24[- ]?h(?:ou)?rs?\b",
        r"今日|当日|每日|每天",
    ),
)
_ONE_DAY = r"(?:(?:per|a|each|every)[- ]day|daily|today|[rti]pd|24-hour)"
_A_MONTH = re.compile(r"\b(?:this|per|a|each|every|/) ?(?:month|week|billing (?:cycle|period))\b")
_LATER = re.compile(r"\bresets? (?:\w{1,20} ){0,4}?(?:monthly|weekly|month|week|billing)\b")
_OFFERED = re.compile(r"\b(?:upgrade|unlock|purchase|buy|increase)\b")
_DAY_CODES = _words(r"(?:^|_)(?:daily|day|rpd|tpd)(?:_|$)", r"daily", r"(?:by|per)_?day")
_A_RATE = _words(
    r"\b(?:per|a|each|every|/) ?(?:second|sec|minute|min|hour)\b",
    r"\bper-(?:sec|min|hour)",
    r"\b(?:(?:i|o)?[rti]p[smh]|qps)\b",
)
_USED_UP = re.compile(
    r"\b(?:exceed(?:ed|s)?|reached|exhausted|used up|too many|hit|over|limits?|quota)\b|上限|用完|用尽|超出|超过|耗尽"
)

_DAY_BOUND = _words(
    rf"\b{_ONE_DAY}\b{_FAR}{_BOUND}\b",
    rf"\b{_BOUND}\b{_FAR}{_ONE_DAY}\b",
    r"(?:今日|当日|每日|每天)\w{0,10}(?:上限|限额|额度|配额)",
)
"""A bound beside a day, as `_PLAN_BOUND`."""
_OVER = re.compile(rf"\b{_EXCESS}\b|超出|超过|用完|用尽|耗尽|达到|已达")

_UPSTREAM = WordFamily(
    ("upstream", "上游"),
    _words(
        r"\brate[- ]limited upstream\b",
        r"\bupstream(?: \w{1,20}){0,3}? (?:rate[- ]limit\w{0,4}|overloaded|busy|saturated|at capacity)\b",
        r"上游\w{0,8}(?:饱和|繁忙|限流)",
    ),
)
_CAPACITY = WordFamily(
    (
        "capacity",
        "overload",
        "busy",
        "demand",
        "traffic",
        "load",
        "volume",
        "usage",
        "too many",
        "queue",
        "worker",
        "server",
        "available",
        "deadline",
        "overflow",
        "gpu",
        "compute",
        "负载",
        "访问量",
        "繁忙",
        "拥挤",
    ),
    _words(
        r"\boverload(?:ed)?\b",
        r"\b(?:no|insufficient|not enough|out of|at|limited|lack of)(?: \w{1,20}){0,2}? capacity\b",
        r"\bcapacity(?: \w{1,20}){0,2}? exceeded\b",
        r"\b(?:model|server|engine|service|system|backend|worker)s?(?: is| are)?(?: \w{1,20}){0,2}? busy\b",
        r"\b(?:high|heavy|peak|increased) (?:demand|traffic|load|volume|usage)\b",
        r"\bwe(?:'re| are)(?: \w{1,20}){0,2}? (?:receiving|getting|experiencing) too many\b",
        r"\bqueue is full\b",
        r"\bno (?:healthy )?deployments? available\b",
        r"\bbefore the (?:given )?deadline\b",
        r"\breset reason: overflow\b",
        r"\b(?:insufficient|not enough|no available) (?:compute|gpus?|instances|workers)\b",
        r"负载|访问量过大|繁忙|过载|拥挤",
        r"\b(?:worker|server) \w{0,20} ?(?:total )?request limit reached\b",
    ),
)
_CAPACITY_CODES = _words(r"overload", r"capacity", r"(?:model|server|engine|system)_busy|resource_unavailable")

_CONCURRENCY = WordFamily(
    ("concurren", "parallel", "simultaneous", "already", "并发"),
    _words(
        rf"\b(?:concurren(?:t|cy)|parallel|simultaneous)\b{_GAP}(?:{_BOUND}|exceeded|reached)\b",
        r"\b(?:too many|high|reduce|lower|exceed\w{0,4}|maximum|max)\b(?: \w{1,20}){0,3}? "
        r"(?:concurren(?:t|cy)|parallel|simultaneous)\b",
        r"\brequests? already (?:queued|running|in progress|in flight)\b",
        r"并发",
    ),
)
_CONCURRENCY_CODES = _words(r"concurren")


def meaning_of(facts: Witnesses) -> Meaning | None:
    """Return what the witnesses say together, or None if they say no more than the status."""
    words, codes = facts.words, facts.codes
    echoing = facts.status in _UNSPECIFIC
    throttled = facts.status is None or facts.status in _SHARED
    if facts.status in _OF_REQUEST:
        return None
    denied = facts.status in _DENIED
    if (throttled or facts.status == 403) and (facts.zero or _ZERO.search(words)):
        return ZERO
    offered = denied and _OFFER.search(words) is not None and not _is_limited(words)
    if offered or _MONEY.found(words) or _any(_MONEY_CODES, codes):
        return MONEY
    plan = facts.rejected or _is_a_plan(words, echoing) or _any(_PLAN_CODES, codes)
    plan = plan or (not throttled and (_QUOTA.search(words) is not None or _any(_QUOTA_CODES, codes)))
    plan = plan or (denied and _LIMIT.search(words) is not None and not _is_throttled(words, codes))
    longer = _is_longer_than_a_day(words)
    plan = plan or (longer and not echoing)
    named = bool(facts.wait)
    if plan and not _is_a_rate(words) and (named or _AT_A_TIME.search(words)):
        return PLAN_UNTIL
    if _is_a_day(words, codes, echoing) or (not longer and (_FREE.search(words) or _any(_FREE_CODES, codes))):
        return DAY
    if (throttled or denied) and _is_long(facts.readings):
        return DAY
    if plan and not _is_a_rate(words):
        return DAY if facts.rejected or "quota_exhausted" in codes else PLAN
    long = facts.wait is not None and LONG_WAIT <= facts.wait <= LONGEST_WAIT
    if long and (facts.status is None or facts.status == 429 or denied):
        return LONG
    if throttled and _UPSTREAM.found(words):
        return OTHERS
    if throttled and (_CAPACITY.found(words) or _any(_CAPACITY_CODES, codes)):
        return OTHERS if facts.status == 429 else OVERLOAD
    if (throttled or denied) and (_CONCURRENCY.found(words) or _any(_CONCURRENCY_CODES, codes)):
        return CONCURRENCY
    if facts.status == 429:
        return RATE if _is_a_rate(words) else None
    said = _is_throttled("" if facts.status == 400 else words, codes)
    empty = facts.status in (403, 503) and any(reading.remaining == 0 for reading in facts.readings)
    return RATE if said or empty else None


def _any(pattern: re.Pattern[str], codes: frozenset[str]) -> bool:
    return any(pattern.search(code) for code in codes)


def unquoted(status: int | None, text: str) -> str:
    """Return the text of an answer, for an ordinary error without what it quotes of the request."""
    return _QUOTED.sub(" ", text) if status in _UNSPECIFIC else text


def _is_a_plan(words: str, echoing: bool) -> bool:
    if not echoing:
        return _PLAN.found(words)
    return _SURE_PLAN.found(words) or (_OVER.search(words) is not None and _PLAN_BOUND.search(words) is not None)


def _is_a_day(words: str, codes: frozenset[str], echoing: bool) -> bool:
    """Return whether a day's quota is used up: of several windows, the first one named is the one exceeded."""
    if _any(_DAY_CODES, codes):
        return True
    if not _A_DAY.found(words):
        return False
    day = (_DAY_BOUND if echoing else _A_DAY.pattern).search(words)
    if day is None or (_OVER if echoing else _USED_UP).search(words) is None:
        return False
    rate = _A_RATE.search(words)
    return rate is None or day.start() < rate.start()


def _is_longer_than_a_day(words: str) -> bool:
    """Return whether a week's or month's quota is used up, by the first window named before any offer, or the reset."""
    if _LATER.search(words) is not None:
        return True
    stated = _OFFERED.split(words, maxsplit=1)[0]
    longer = _A_MONTH.search(stated) if _USED_UP.search(stated) else None
    shorter = _A_RATE.search(stated)
    return longer is not None and (shorter is None or longer.start() < shorter.start())


def _is_throttled(words: str, codes: frozenset[str]) -> bool:
    return _RATE_WORDS.search(words) is not None or _any(_RATE_CODES, codes)


def _is_limited(words: str) -> bool:
    return _PLAN.found(words) or _is_a_rate(words)


def _is_a_rate(words: str) -> bool:
    return _A_RATE.search(words) is not None


def _is_long(readings: tuple[QuotaReading, ...]) -> bool:
    """Return whether the only quotas at zero are those of a day or longer, by their window or else by their reset."""
    empty = [reading for reading in readings if reading.remaining == 0 and (reading.window or reading.reset_after)]
    return bool(empty) and all(
        reading.window >= LONG_WINDOW if reading.window else (reading.reset_after or 0.0) >= LONG_WAIT
        for reading in empty
    )
