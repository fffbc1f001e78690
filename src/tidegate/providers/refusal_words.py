"""English words of refusals, as families: money, windows of a plan or a day, loads, concurrency, rates.

Words refine what codes, fields and status mean. A family is two things near each other in one clause, such as what is
owned ("balance", "credits") and its lack, or a bound and its excess; it is no list of messages. Sources: the recorded
answers `common.json`, and the project's collected answers of 2023 to 2026.

A message in another language is not translated: phrases of `foreign_phrases.toml` are replaced by English ones, and
other text stays. The file is read at the first refusal that has letters of such a language.
"""

from __future__ import annotations

import re
from functools import cache

from tidegate.core.safe_text import lazy_pattern

_GAP = r"(?:[^\w.,;!?]{1,3}[\w'$-]{1,20}(?:[.,][0-9]{1,9}){0,3}){0,4}?[^\w.,;!?]{1,3}"
"""Up to four words of one clause between two others."""


def _words(*patterns: str) -> re.Pattern[str]:
    return lazy_pattern("|".join(f"(?:{pattern})" for pattern in patterns))


def _near(one: str, other: str) -> str:
    """Return the pattern of two things near each other, in either order."""
    return rf"\b(?:{one})\b{_GAP}(?:{other})\b|\b(?:{other})\b{_GAP}(?:{one})\b"


EXCESS = r"exceed(?:s|ed)|reach(?:ed|es)|exhausted|depleted|consumed|used(?: up)?|hit|over|out of"
_BOUND = r"limits?|quotas?|allowance|allotment|allocation|cap"
OVER = lazy_pattern(rf"(?<!not )\b(?:{EXCESS}|(?:are|is|been|being) (?:throttled|rate[- ]limited))\b")
USED_UP = lazy_pattern(rf"\b(?:{EXCESS}|{_BOUND}|too many|max(?:imum)?|come back|try again)\b")

_OWNED = r"balance|funds|credits?(?! card| limit)|points|wallet"
_LACK = r"exceeded|exhausted|depleted|consumed|used up|out of|insufficient|low|empty|unpaid|overdue|past[- ]due|expired"
_LAPSED = r"expired|ended|overdue|past[- ]due|unpaid|in arrears|failed|declined|inactive|lapsed"
NO_MONEY = _words(
    _near(_OWNED, _LACK),
    rf"\b(?:insufficient|not enough|no|zero|negative|used|(?:have|has|had|do|does)(?:n't| not)){_GAP}(?:{_OWNED})\b",
    rf"\b(?:{_OWNED}){_GAP}(?:-[0-9]|\$?0(?:\.0{{1,9}})?(?![0-9.,]))",
    _near(r"invoices?|bills?|payment|subscription|trial(?: period)?", _LAPSED),
    r"\b(?:no|without an) active (?:subscription|plan)\b|\b(?:out of|from your) extra usage\b",
    r"\b(?:subscription|payment method) (?:is )?(?:required|missing)\b|\bplease (?:recharge|top[- ]?up)\b",
    rf"\b(?:{EXCESS}){_GAP}api usage limits?\b|\bnot active, please check your billing\b|\bin good standing\b",
)
"""What is owned is used up, or what is due is not paid."""
SPENDING = _words(
    _near(
        r"(?:billing|spend|spending|cost|credit|payment|hard)(?: hard| soft)? (?:limit|cap)", rf"{EXCESS}|insufficient"
    )
)
"""A limit of money is exceeded. In a window of up to an hour it passes like a rate."""
BUDGET = _words(_near(r"budget", rf"{EXCESS}|blocked|spent"))
"""A sum of money, or the tokens of a day if a day is named."""
OFFER = lazy_pattern(
    r"\b(?:purchase|buy|add|enter|provide)(?: \w{1,20}){0,2}? (?:credits?|funds|payment method)\b|\btop[-_ ]?up\b"
)
"""What a denied call offers to buy. A refusal for a rate or a window offers the same, so it counts only there."""
MONEY_CODES = lazy_pattern(
    r"^billing_|_billing$|exceeded_current_quota|arrear|overdue|payment_?required|spend(?:ing)?[-_]limit|credit_limit"
)
COMPARED = _words(
    r"[0-9] ?(?:>=?|≥) ?[0-9]",
    r"\b(?:request(?:ed|s)?|needs?|requires?|costs?|prompt)\b[^0-9]{0,40}[0-9][0-9.,]{0,15}"
    r"[^0-9]{0,40}\b(?:afford|have|has|left|available|remaining|balance(?: is| of)?|limit(?: is| of)?):?"
    r"[^0-9a-z-]{0,3}(?!0(?:[.,]0{1,9})?(?:[^0-9.,]|[.,](?![0-9])|\Z))[0-9]",
)
"""What one request needs beside what there is. A smaller request may pass, unless nothing is left."""
ZERO = lazy_pattern(
    r"(?<!remaining )(?<!current )\b(?:limit|(?:rate|quota) limit of|(?:limit|quota) is):? 0"
    r"(?![0-9]|[.,][0-9]| burst| remaining)"
)

_ADJECTIVE = r"hourly|weekly|monthly|(?:[0-9]{1,3}|five|seven)-(?:hour|day|week)"
_PERIOD = rf"(?<!concurrent )session|{_ADJECTIVE}|(?:[0-9]{{1,3}}|five|seven) ?(?:hours?|days?|weeks?|h|d)"
_CYCLE = r"(?:month|week|billing (?:cycle|period))\b"
_DAY = r"daily|today|[rti]pd|(?:per )?24[- ]?(?:h|hrs?|hours?)|(?:per|a|each|every)[- ]day|/ ?day"
WINDOW = lazy_pattern(
    r"(?P<rate>\b(?:(?:per|a|each|every)[- ]|/ ?)(?:1 )?(?:second|sec|minute|min|hour)\b|\b[io]?[rti]p[smh]\b|\bqps\b"
    r"|\b(?:hourly|(?:1|one)[- ]hour|[0-9]{1,3}[- ]?(?:second|minute)s?) (?:token|request|rate|credit|spend|budget))"
    rf"|(?P<day>\b(?:{_DAY}|tomorrow|at midnight)\b|/ ?day\b)"
    rf"|(?P<plan>\b(?:{_PERIOD})\b{_GAP}(?:{_BOUND})\b"
    rf"|\b(?:{_BOUND}){_GAP}(?:for|of|per) (?:your |this )?(?:{_PERIOD})\b"
    rf"|\b(?:this|the|current|per|a|each|every|your monthly)(?: current)? {_CYCLE}|\b(?:monthly|weekly) requests\b"
    rf"|\b(?:per|every|within|last|past) (?:{_PERIOD})\b)"
)
"""Windows of rates, days and plans. Of several in a message, the first is the exceeded one."""
OFFERED = lazy_pattern(r"\b(?:upgrade|unlock|purchase|buy|increase)\b")
"""Words after which a window is one of another plan."""
LATER = lazy_pattern(rf"\bresets? (?:\w{{1,20}} ){{0,4}}?(?:monthly|weekly|{_CYCLE})")
"""A plan's window that only the reset names."""
DAY_BOUND = _words(_near(r"daily|today|[rti]pd|24-hour|(?:per|a|each|every)[- ]day", _BOUND + "|budget"))
PLAN_BOUND = _words(_near(rf"{_ADJECTIVE}|(?:this|current|per) {_CYCLE}", _BOUND + "|requests|reached"))
"""A bound beside a day or a plan's window: in an ordinary error an excess counts only with it."""
PLAN = _words(
    _near(r"(?:usage|message|individual|plan)(?: usage| set usage)? (?:limit|quota|cap)", EXCESS),
    rf"\b(?:{EXCESS}){_GAP}your (?!current)(?:\w{{1,20}} ){{0,3}}?(?:quota|allowance|allotment|capacity)\b",
    r"\bout of(?: [\w-]{1,20}){0,3}? (?:quota|messages|requests)\b",
    r"\b(?:reached|hit) your (?:\w{1,20} )?session limit\b|\bset(?: \w{1,20})? limit\b",
    rf"\b(?:{EXCESS})(?: all)?{_GAP}(?:monthly requests|trial quota)\b",
    r"\bquota (?:(?:is )?(?:not enough|insufficient|used up)|will (?:be )?(?:reset|renew|replenish|refresh))",
    r"\b(?:plan|package|tokens) (?:exhausted|used up)\b"
    r"|\bexpired or been used up\b|\bover quota\b",
)
"""Words that state by themselves that a plan is used up."""
PLAN_CODES = lazy_pattern(
    r"usage_?limit|quota_exhausted|quota_?limit|token_quota|^quota_exceeded$|insufficient_\w+_quota|(?:^|_)(?:weekly|monthly)(?:_|$)"
    r"|^limitexceededexception$|allowance_(?:exceeded|exhausted)|^(?:usage|model)_not_included"
    r"|(?:monthly|weekly|five_hour|session)_(?:\w+_)?(?:count|limit)"
)
QUOTA = lazy_pattern(rf"\bquota{_GAP}(?:{EXCESS}|rejected)\b")
LIMIT = lazy_pattern(r"\blimit (?:exceeded|reached)\b")
"""A limit of a call that is denied. Of a call that is throttled, most are rates."""
DAY_CODES = lazy_pattern(r"daily|(?:^|_)(?:day|rpd|tpd)(?:_|$)|(?:by|per)_?day|free_?usage|free_?tier_?limit")
FREE = _words(_near(r"free (?!trial)(?:\w{1,20} )?(?:usage|tier|quota|allowance|allocation|requests?)", EXCESS))
"""A free allowance returns each day at those who name no window (OpenCode Zen: 00:00 UTC)."""
AT_A_TIME = lazy_pattern(
    r"\b(?:resets?|renews?|refreshe[sd]|available again)(?: at| on| by| next)? (?:[0-9]|midnight\b|tomorrow\b"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\b)"
)
"""The end of a window as a time, a day or a date. Its zone may not be named."""

RATE = _words(
    r"\brate[- ]limit(?:ed|s)?\b|\btoo many requests\b(?! in )|\bthrottl(?:ed|ing)\b|\bslow down\b",
    r"\btoo (?:quickly|fast|frequently)\b|\b(?:request|qps|[rt]p[ms]) limit\b",
    r"\b(?:tokens?|requests?) per (?:min|minute|sec|second) exceeded\b",
    r"(?<!\bbit )(?<!frame )(?<!sample )(?<!speech )(?<!learning )\b(?:rate|[rt]p[ms]|qps) (?:exceeded|too high)\b",
)
RATE_CODES = lazy_pattern(
    r"throttl|(?:rate|request)_?limit|too_?many_?requests|resource_?exhausted|slow_?down|(?:throughput|bandwidth)_?\w*exceeded"
)

_SERVING = (
    r"(?:gpu|worker|instance|replica|slot|channel|account|provider|upstream|backend|server|node|endpoint|deployment"
    r"|machine|resource|host|credential|key|engine|model)s?"
)
"""What serves a call: of others, or shared with them."""
LOADING = _words(
    rf"\b{_SERVING}\b(?: [\w./:'-]{{1,80}}){{0,3}}? (?:is|are|being|still|currently|just) (?:\w{{1,20}} ){{0,2}}?"
    r"(?:loading|warming|starting|initiali[sz]ing|booting|scaling|deploying)\b",
    rf"\b(?:loading|warming up|starting up|initiali[sz]ing)(?: the)? {_SERVING}\b|\bcold[- ]start|\bscaling up from\b",
    rf"\b{_SERVING}(?: (?:is|are|was))? not (?:yet )?ready\b|\bnot (?:yet )?ready to serve\b",
)
"""What serves the model is coming up: a model that is loaded, a replica that is started."""
LOADING_CODES = lazy_pattern(r"not_?ready|model_?loading|loading_?model|cold_?start")
CAPACITY = _words(
    r"\boverload(?:ed)?\b|\bback[- ]?pressure\b|\bload[- ]shed|\b(?:saturated|congest(?:ed|ion)|oversubscribed)\b",
    r"\b(?:no|insufficient|not enough|out of|at|limited|over|lack of)(?: \w{1,20}){0,2}? capacity\b",
    rf"\bcapacity{_GAP}(?:{EXCESS})\b|\b(?:{_SERVING}|service|system)(?: is| are)?(?: \w{{1,20}}){{0,2}}? busy\b",
    r"\b(?:high|heavy|peak|increased|spike in|surge in) (?:volume of )?(?:demand|traffic|load|volume|usage)\b",
    r"\bwe(?:'re| are)(?: \w{1,20}){0,2}? (?:receiving|processing|experiencing) too many\b",
    _near(r"queue (?:size|limit)|queue|pending", rf"is full|overflow|too many|max(?:imum)?|{EXCESS}"),
    r"\bbefore the (?:given )?deadline\b|\breset reason: overflow\b",
    rf"\b(?:insufficient|not enough|no (?:available|healthy|idle|free))(?: \w{{1,20}}){{0,2}}? {_SERVING}\b",
    rf"\bno(?: \w{{1,20}}){{0,2}}? {_SERVING}(?: (?:is|are|was|were|currently)){{0,2}}? "
    r"(?:available|healthy|idle|free)\b",
    rf"\ball(?: \w{{1,20}}){{0,2}}? {_SERVING}(?: [\w.-]{{1,40}}){{0,4}}? are(?: \w{{1,20}}){{0,2}}? "
    r"(?:busy|unavailable|exhausted|saturated|in use|cooling down|rate[- ]limited)\b",
    r"\b(?:worker|server) \w{0,20} ?(?:total )?request limit reached\b",
)
CAPACITY_CODES = lazy_pattern(r"overload|capacity|queue_?(?:full|limit|overflow)|_busy|resource_unavailable")
UPSTREAM = _words(_near(r"upstream", r"rate[- ]limit(?:s|ed)?|overloaded|busy|saturated|at capacity"))
CONCURRENCY = _words(
    _near(
        r"concurren(?:t|cy)|parallel|simultaneous|in[- ]flight", rf"{_BOUND}|{EXCESS}|too many|high|reduce|max(?:imum)?"
    ),
    r"\brequests? already (?:queued|running|in progress|in flight)\b|\btoo many (?:\w{1,20} )?connections\b",
)
CONCURRENCY_CODES = lazy_pattern(r"concurren|streams?_(?:cap|limit)")


_FOREIGN = lazy_pattern(r"[\u3400-\u9fff]")
"""Letters of the languages that the file has phrases of: Chinese."""


@cache
def _phrases() -> tuple[tuple[re.Pattern[str], str], ...]:
    import tomllib
    from importlib import resources

    packed = resources.files("tidegate.providers").joinpath("foreign_phrases.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(packed)["phrase"]
    return tuple((re.compile(row["words"]), f". {row['english']}. ") for row in rows)


def in_english(text: str) -> str:
    """Return the text, in lower case, with the English for each known phrase."""
    if _FOREIGN.search(text) is None:
        return text
    for pattern, english in _phrases():
        text = pattern.sub(english, text)
    return text
