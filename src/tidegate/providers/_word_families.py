"""Families of words that refusals use: money, plans, days, capacity, concurrency, rates.

Words are matched as families, not as single messages: a window ("5-hour", "weekly", "billing cycle") near a limit, or
what is owned ("balance", "credits", "funds") near its absence. Sources: the recorded answers `common.json`, and the
project's collected answers of 2023 to 2026.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class WordFamily(NamedTuple):
    """A pattern that is searched only in a message with one of the `hints`, because most messages have none."""

    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def found(self, words: str) -> bool:
        """Return whether the message has words of the family."""
        return any(hint in words for hint in self.hints) and self.pattern.search(words) is not None


def words_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


GAP = r"(?:\W{1,3}\w{1,20}){0,3}?\W{1,3}"
"""Up to three words between two others."""

FAR = r"(?:\W{1,3}\w{1,20}){0,5}?\W{1,3}"
"""Up to five words between two others."""

ZERO = re.compile(
    r"(?<!remaining )(?<!current )\b(?:limit|(?:rate|quota) limit of|(?:limit|quota) is):? 0"
    r"(?![0-9]|[.,][0-9]| burst| remaining)"
)

EXCESS = r"(?:exceed(?:ed|s)?|reach(?:ed|es)|exhausted|depleted|used up|hit|over)"
SPENDING = r"(?:billing|spend|spending|cost|credit|payment|budget|hard)(?: hard| soft)? (?:limit|cap)\b"
OWNED = r"(?:balance|funds|credits?)"
ABOUT_MONEY = ("balance", "funds", "credit", "usage", "bill", "spend", "cost", "pay", "budget", "standing", "account",
                "invoice", "charge", "top", "subscription", "trial", "plan",
                "points", "wallet", "limit")  # fmt: skip
MONEY = WordFamily(
    ABOUT_MONEY,
    words_of(
        rf"\b(?:insufficient|not enough|no|zero|negative)(?: \w{{1,20}}){{0,2}}? {OWNED}\b(?! card)",
        rf"\b(?:have|has|had)(?:n't| not)(?: \w{{1,20}}){{0,2}}? {OWNED}\b",
        rf"\b(?:doesn't|don't|does not|do not) have(?: \w{{1,20}}){{0,2}}? {OWNED}\b",
        rf"\b(?:used|depleted|exhausted|exceeded|consumed)(?: \w{{1,20}}){{0,4}}? {OWNED}\b",
        rf"\b(?:{OWNED}|wallet)(?: balance)? (?:(?:is|are|has been|have been|was) )?(?:\w{{1,20}} )?"
        r"(?:low|insufficient|exhausted|depleted|empty|used up)\b",
        r"\b(?:insufficient|not enough|no) points\b|\b(?:low|zero|empty) balance\b",
        r"\bout of (?:credits?|funds|points)\b",
        rf"\b(?:is|are|'re|run|ran) out of(?: \w{{1,20}}){{0,2}}? (?:{OWNED}|usage)\b",
        r"\bdraws? from your extra usage\b",
        rf"\brequires? more {OWNED}\b",
        rf"\b{EXCESS}(?: [\w']{{1,20}}){{0,4}}? {SPENDING}",
        rf"\b{SPENDING}(?:[^.!?]|\.(?=[0-9])){{0,40}}?\b{EXCESS}\b",
        r"\b(?:reached|exceeded) (?:your|the)(?: [\w']{1,20}){0,4}? api usage limits?\b",
        r"\bnot active, please check your billing\b",
        r"\bin good standing\b",
        r"\b(?:account|payment|invoice)(?: \w{1,20}){0,3}? (?:overdue|past due|in arrears)\b",
        r"\bplease (?:recharge|top[- ]?up)\b",
        r"\bpositive balance\b",
        rf"\b{OWNED}(?: \w{{1,20}}){{0,3}}?\W{{1,3}}(?:too )?(?:negative|low|zero|-[0-9]|0(?:\.0{{1,9}})?(?![0-9.,]))",
        r"\b(?:credit|spend|spending) limit(?: \w{1,20}){0,2}? insufficient\b",
        r"\b(?:unpaid|overdue|past[- ]due) (?:balance|invoices?|bills?|payments?)\b",
        r"\bpayment (?:has |was )?(?:failed|declined)\b",
        r"\bcredits? (?:has |have )?expired\b",
        r"\b(?:trial|subscription)(?: period)?(?: has| is)? (?:expired|ended|inactive|lapsed|required)\b",
        r"\bpayment method (?:is )?(?:required|missing)\b",
        r"\b(?:inactive|no active|without an active) (?:subscription|plan)\b",
    ),
)
COMPARED = words_of(
    r"[0-9] ?(?:>=?|≥) ?[0-9]",
    r"\b(?:request(?:ed|s)?|needs?|requires?|costs?|prompt)\b[^0-9]{0,40}[0-9][0-9.,]{0,15}"
    r"[^0-9]{0,40}\b(?:afford|have|has|left|available|remaining|balance(?: is| of)?|limit(?: is| of)?):?"
    r"[^0-9a-z-]{0,3}(?!0(?:[.,]0{1,9})?(?:[^0-9.,]|[.,](?![0-9])|\Z))[0-9]",
)
"""What one request needs beside what there is. A smaller request may pass, unless nothing is left."""
SHORT = (
    r"(?:[0-9]{1,3}[- ]?(?:seconds?|secs?|minutes?|mins?)|(?:one|1)[- ](?:minute|hour)|hourly"
    r"|(?:per|a|each|every)[- ](?:second|minute|hour))"
)
SHORT_SPENDING = words_of(rf"\b{SHORT}{GAP}{SPENDING}", rf"\b{SPENDING}{GAP}{SHORT}\b")
"""A limit of money in a window of up to an hour: it passes like a rate."""
BUDGET = WordFamily(
    ("budget",),
    words_of(
        r"\bbudget (?:has been |was |is )?(?:exceeded|exhausted|depleted|blocked|used up|spent)\b(?! the\b)",
        r"\b(?:exceeded|over|out of)(?: \w{1,20}){0,2}? budget\b(?!:)",
        r"\bexceededbudget\b",
    ),
)
"""A sum of money, or the tokens of a day if a day is named."""
OFFER = re.compile(
    rf"\b(?:purchase|buy|add|enter|provide|top up)(?: \w{{1,20}}){{0,2}}? (?:{OWNED}|payment method)\b|\btop[-_ ]?up\b"
)
"""What a denied call offers to buy. A refusal for a rate or a window offers the same, so it counts only there."""
MONEY_CODES = words_of(
    r"^billing_|_billing$|billing_hard_limit|insufficient_?(?:balance|funds|credits?)|credits?_(?:balance_)?exhausted",
    r"exceeded_current_quota|budget_(?:exceeded|exhausted)|arrear|overdue|payment_?required|spend(?:ing)?[-_]limit|credit_limit",
)
EXACT_MONEY_CODES = words_of(
    r"insufficient_(?:quota|balance|funds|credits?)|(?:budget|credits?|balance)_(?:exceeded|exhausted|depleted)"
    r"|payment_required|billing_hard_limit_reached"
)
"""Codes that mean money on any status."""

PERIOD = (
    r"(?:(?<!concurrent )session|hourly(?! (?:token|request|rate))|weekly|monthly"
    r"|(?:[0-9]{1,3}|five|seven)[- ]?(?:hours?|days?|weeks?|h|d))"
)
A_PERIOD = re.compile(rf"\b(?:{PERIOD}|daily|day|week|month|billing|cycle)\b")
BOUND = r"(?:limits?|quotas?|allowance|allocation|cap)"
ABOUT_PLANS = ("tokens", "package", "bundle", "session", "hour", "week", "month", "day", "usage", "message",
                "individual", "plan", "billing", "your ", "quota", " all ", "trial", " set ",
                *(f"{number}h" for number in range(10)))  # fmt: skip
STATED_PLANS = (
    r"\b(?:used|consumed|exhausted)(?: up)? all(?: \w{1,20}){0,4}? (?:requests|messages|usage|quota|allowance)\b",
    r"\bout of(?: [\w-]{1,20}){0,3}? (?:quota|messages|requests)\b",
    r"\bused (?:up )?(?:100% of )?your(?: \w{1,20}){0,3}? quota\b|\bover quota\b",
    r"(?<!quota violation\. )\bquota limit (?:exceeded|reached)\b",
    r"\b(?:plan|package|bundle|tokens)(?: has| is| are)?(?: been)? (?:expired or been used up|exhausted|used up)\b",
    r"\b(?:exceeded|exhausted|reached|used up)(?: \w{1,20}){0,4}? trial\b",
    r"\breached the set(?: \w{1,20})? limit\b",
    r"\bquota will (?:be )?(?:reset|renew|replenish|refresh|refill)(?:ed)?\b",
    r"\b(?:have no|no remaining) (?:quota|allowance)\b",
    r"\b(?:usage|individual|plan) (?:limit|quota|cap)(?: has been| was| is)? (?:reached|hit|exceeded|exhausted)\b",
    r"\bexhausted your (?:capacity|quota)\b",
    r"\bexceed(?:ed|s)? your (?!current )(?:\w{1,20} ){0,3}?(?:allowance|allotment|quota)\b",
    r"\bquota (?:is |was )?(?:not enough|insufficient|used up)\b",
)
"""Words that state by themselves that a plan is used up."""
PLAN = WordFamily(
    ABOUT_PLANS,
    words_of(
        *STATED_PLANS,
        rf"\b{PERIOD}\b{GAP}{BOUND}\b",
        rf"\b{BOUND} (?:reached|exceeded|exhausted|used up)? ?(?:for|of|per) (?:your |the |this )?{PERIOD}\b",
        r"\b(?:reach(?:ed|es)|hit|exceed(?:ed|s)?|exhausted|used up)(?: [\w']{1,20}){0,3}? "
        r"(?:usage|message|individual|plan) (?:limit|quota)\b",
        r"\b(?:have no|no remaining) (?:requests|messages)\b",
        r"\b(?:per|every|within|last|past) (?:[2-9]|[0-9]{2,3}|five|seven)[- ]?(?:hours?|days?|weeks?)\b",
        rf"\b(?:reached|limit|quota|exceeded|used)\b{GAP}(?:this|the|current|per)(?: current)? "
        r"(?:month|week|billing (?:cycle|period))\b",
    ),
)
SURE_PLAN = WordFamily(
    ABOUT_PLANS,
    words_of(
        *STATED_PLANS,
        r"\b(?:reached|hit|exhausted|used up|exceeded (?:your|the))(?: [\w']{1,20}){0,3}? "
        r"(?:usage|message|individual|plan) (?:limit|quota)\b",
        r"\b(?:reached|hit|exceeded) your (?:\w{1,20} )?session limit\b",
    ),
)
"""The words of `PLAN` that no ordinary error has: no length of a file, age of a key or size of a request."""
PLAN_BOUND = words_of(
    rf"\b(?:hourly|weekly|monthly|(?:[0-9]{{1,3}}|five|seven)-(?:hour|day|week))\b{GAP}{BOUND}\b",
    rf"\b(?:reached|limit|quota|used)\b{GAP}(?:this|current|per)(?: current)? "
    r"(?:month|week|billing (?:cycle|period))\b",
)
"""A bound beside a plan's window: an excess that is stated elsewhere in an ordinary error counts only with it."""
PLAN_CODES = words_of(
    r"usage_?limit",
    r"quota_exhausted",
    r"token_quota",
    r"^quota_exceeded$",
    r"insufficient_\w+_quota",
    r"(?:^|_)(?:weekly|monthly)(?:_|$)",
    r"^limitexceededexception$",
    r"^setlimitexceeded$",
    r"allowance_(?:exceeded|exhausted)",
    r"^(?:usage|model)_not_included",
    r"(?:monthly|weekly|five_hour|session)_(?:\w+_)?(?:count|limit)",
)

QUOTA = re.compile(r"\bquota\b(?:\W{1,3}\w{1,20}){0,3}?\W{1,3}(?:exceeded|exhausted|reached|rejected)\b")
LIMIT = re.compile(r"\blimit (?:was |is |has been )?(?:exceeded|reached)\b")
"""A limit of a call that is denied: a rate says so (OpenRouter: "Key limit exceeded (total limit)")."""
QUOTA_CODES = words_of(r"quota_(?:exceeded|exhausted|reached)")
"""Quotas of a call that is denied. Of a call that is throttled, most are rates."""

FREE_CODES = words_of(r"free_?usage|free_?tier_?(?:daily|limit)")
ALLOWED_FREE = r"free (?!trial)(?:\w{1,20} )?(?:usage|tier|quota|allowance|allocation|requests?)\b"
FREE = words_of(
    rf"\b{ALLOWED_FREE}{GAP}(?:exceeded|reached|exhausted|used up)\b",
    rf"\b(?:used|exhausted|exceeded|reached|hit)(?: \w{{1,20}}){{0,4}}? {ALLOWED_FREE}",
)
"""A free allowance returns each day at those who name no window (OpenCode Zen: 00:00 UTC)."""

AT_A_TIME = re.compile(
    r"\b(?:resets?|renews?|refreshe[sd]|available again)(?: at| on| by| next)? (?:[0-9]|midnight\b|tomorrow\b"
    r"|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\b)"
)
"""The end of a window as a time, a day or a date. Its zone may not be named."""
RATE_WORDS = words_of(
    r"\brate[- ]limit(?:ed|s)?\b",
    r"\btoo many requests\b",
    r"\bthrottl(?:ed|ing)\b",
    r"(?<!\bbit )(?<!frame )(?<!sample )(?<!speech )(?<!learning )"
    r"\b(?:rate|[rt]p[ms]|qps) (?:is |was |has been )?(?:exceeded|too high)\b|\brequest limit\b|\bqps limit\b",
    r"\btoo (?:quickly|fast|frequently)\b|\bslow down\b",
    r"\b(?:request|qps|[rt]p[ms]) limit (?:reached|exceeded)\b",
)
STATED_RATE = words_of(
    r"\b(?:are|is|was|were|been|being|currently|temporarily) (?:throttled|rate[- ]?limited)\b",
    r"\b(?:exceeded|reached|hit)(?: \w{1,20}){0,4}? (?:rate|request|concurrency|qps|[rt]p[ms]) limits?\b",
    r"\b(?:rate|concurrency|qps|[rt]p[ms])[- ]limits?(?: has been| was| is)? (?:exceeded|reached|hit)\b",
    r"\btoo many (?:concurrent |parallel |simultaneous )?(?:requests|calls)\b(?! in ).{0,40}?"
    r"\b(?:try|retry|wait|later|slow|per)\b",
    r"\b(?:tokens?|requests?) per (?:min(?:ute)?|sec(?:ond)?|hour)(?: limit)?(?: has been| was| is)? "
    r"(?:exceeded|reached)\b",
)
"""Words that state a rate's excess by themselves, where the status says that the request is invalid."""
RATE_CODES = words_of(r"throttl", r"rate_?limit", r"too_?many_?requests", r"resource_?exhausted")

A_DAY = WordFamily(
    ("day", "dai", "pd", "24", "tomorrow", "midnight"),
    words_of(
        r"\b(?:per|a|each|every|/) ?day\b",
        r"\bdaily\b",
        r"\bper-day\b",
        r"\b[rti]pd\b",
        r"\b(?:today|tomorrow)\b",
        r"\b24[- ]?(?:h|h(?:ou)?rs?)\b",
        r"\bat midnight\b",
    ),
)
ONE_DAY = r"(?:(?:per|a|each|every)[- ]day|daily|today|[rti]pd|24-hour)"
A_MONTH = re.compile(r"\b(?:this|per|a|each|every|/) ?(?:month|week|billing (?:cycle|period))\b")
LATER = re.compile(r"\bresets? (?:\w{1,20} ){0,4}?(?:monthly|weekly|month|week|billing)\b")
OFFERED = re.compile(r"\b(?:upgrade|unlock|purchase|buy|increase)\b")
DAY_CODES = words_of(r"(?:^|_)(?:daily|day|rpd|tpd)(?:_|$)", r"daily", r"(?:by|per)_?day")
A_RATE = words_of(
    r"\b(?:per|a|each|every|/) ?(?:1 )?(?:second|sec|minute|min|hour)\b",
    r"\bper-(?:sec|min|hour)|\bhourly (?:token|request|rate)",
    r"\b(?:(?:i|o)?[rti]p[smh]|qps)\b",
)
USED_UP = re.compile(
    r"\b(?:exceed(?:ed|s)?|reached|exhausted|used|too many|hit|over|limits?|quota|max(?:imum)?|come back|try again)\b"
)

DAY_BOUND = words_of(
    rf"\b{ONE_DAY}\b{FAR}{BOUND}\b",
    rf"\b{BOUND}\b{FAR}{ONE_DAY}\b",
)
"""A bound beside a day, as `PLAN_BOUND`."""
OVER = re.compile(rf"\b{EXCESS}\b")

UPSTREAM = WordFamily(
    ("upstream",),
    words_of(
        r"\brate[- ]limited upstream\b",
        r"\bupstream (?:request|call|provider)(?: has)? (?:failed|refused|rejected)\W{1,3}(?:\w{1,30}\W{1,3})?"
        r"rate[- ]limit(?:ed)?\b",
        r"\bupstream(?: \w{1,20}){0,3}? (?:rate[- ]limit\w{0,4}|overloaded|busy|saturated|at capacity)\b",
    ),
)
LOADED = r"(?:model|weights?|engine|pipeline|checkpoint|server|backend|worker|replica|deployment|endpoint|instance)s?"
LOADING = WordFamily(
    ("loading", "loaded", "warm", "ready", "start", "initiali", "scal", "boot", "cold", "building"),
    words_of(
        rf"\b{LOADED}\b(?: [\w./:'-]{{1,80}}){{0,3}}? (?:(?:is|are|being|still|currently|not yet|just) ){{1,4}}"
        r"(?:(?:being|up) )?(?:loading|loaded|warming(?: up)?|starting(?: up)?|initiali[sz]ing|booting|building"
        r"|scaling(?: up)?|deploying)\b",
        rf"\b(?:loading|warming up|starting up|initiali[sz]ing)(?: the)? {LOADED}\b",
        rf"\b{LOADED}(?: (?:is|are|was))? not (?:yet )?ready\b|\bnot (?:yet )?ready (?:to serve|for inference)\b",
        r"\bcold[- ]start|\bscal(?:ing|es) (?:up )?from zero\b",
    ),
)
"""What serves the model is coming up: a model that is loaded, a replica that is started."""
LOADING_CODES = words_of(r"not_?ready", r"model_?loading|loading_?model|scaling_?up|cold_?start|warming")

SERVING = (
    r"(?:gpus?|workers?|instances?|replicas?|slots?|channels?|accounts?|providers?|upstreams?|backends?|servers?|nodes?"
    r"|endpoints?|deployments?|machines?|resources?|hosts?|compute|credentials?|keys?|engines?|models?)"
)
"""What serves a call: of others, or shared with them."""
CAPACITY = WordFamily(
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
        "healthy",
        "deadline",
        "overflow",
        "gpu",
        "compute",
        "pressure",
        "pending",
        "saturated",
        "congest",
        "idle",
        "resource",
        "are ",
    ),
    words_of(
        r"\boverload(?:ed)?\b",
        r"\b(?:no|insufficient|not enough|out of|at|limited|lack of)(?: \w{1,20}){0,2}? capacity\b",
        r"\bcapacity(?: \w{1,20}){0,2}? (?:exceeded|reached|exhausted)\b",
        r"\b(?:model|server|engine|service|system|backend|worker)s?(?: is| are)?(?: \w{1,20}){0,2}? busy\b",
        r"\A\W{0,3}(?:too |very )?busy\b",
        r"\b(?:high|heavy|peak|increased) (?:demand|traffic|load|volume|usage)\b",
        r"\b(?:spike|surge|increase) (?:in|of) (?:demand|traffic|load|usage)\b",
        r"\bwe(?:'re| are)(?: \w{1,20}){0,2}? (?:receiving|getting|experiencing|processing|handling) too many\b",
        r"\bqueue is full\b",
        r"\bqueue(?: size| length| limit| depth| capacity)?(?: has been| was| is)? "
        r"(?:exceeded|overflow\w{0,4}|reached)\b",
        r"\b(?:exceed\w{0,4}|over)(?: \w{1,20}){0,3}? queue (?:size|length|limit|depth|capacity)\b",
        r"\bback[- ]?pressure\b|\bload[- ]shedd?\w{0,4}\b",
        r"\b(?:too many|maximum|max)(?: \w{1,20}){0,2}? pending\b",
        r"\b(?:saturated|congest(?:ed|ion)|oversubscribed)\b",
        r"\bbefore the (?:given )?deadline\b",
        r"\breset reason: overflow\b",
        rf"\b(?:insufficient|not enough|no (?:available|healthy|idle|free))(?: \w{{1,20}}){{0,2}}? {SERVING}\b",
        rf"\bno(?: \w{{1,20}}){{0,2}}? {SERVING}(?: (?:is|are|was|were|currently)){{0,2}}? "
        r"(?:available|healthy|idle|free|ready|online)\b",
        rf"\ball(?: \w{{1,20}}){{0,2}}? {SERVING}(?: [\w.-]{{1,40}}){{0,4}}? are(?: \w{{1,20}}){{0,2}}? "
        r"(?:busy|unavailable|exhausted|saturated|in use|cooling down|rate[- ]limited)\b",
        r"\b(?:worker|server) \w{0,20} ?(?:total )?request limit reached\b",
    ),
)
STATED_LOAD = words_of(
    r"\b(?:is|are|was|were|being|currently|temporarily)(?: \w{1,20}){0,2}? "
    r"(?:busy|overloaded|congested|saturated|(?:at|over) capacity)\b",
    r"\b(?:high|heavy|peak) (?:demand|traffic|load)\b",
    r"\bqueue is full\b|\btoo many pending requests\b",
)
"""Words that state a load by themselves, where the status says that the request is invalid. What is not available there
may never be: a model, a key, a provider."""
CAPACITY_CODES = words_of(
    r"overload",
    r"capacity",
    r"queue_?(?:full|limit|overflow)",
    r"(?:model|server|engine|system)_busy|resource_unavailable",
)

CONCURRENCY = WordFamily(
    ("concurren", "parallel", "simultaneous", "already", "connection", "flight"),
    words_of(
        r"\bin[- ]flight\b(?: \w{1,20}){0,3}? (?:exceed\w{0,4}|limit|budget|exhausted|for)\b",
        rf"\b(?:concurren(?:t|cy)|parallel|simultaneous)\b{GAP}(?:{BOUND}|exceed(?:ed|s)?|reached)\b",
        r"\b(?:too many|high|reduce|lower|exceed\w{0,4}|maximum|max)\b(?: \w{1,20}){0,3}? "
        r"(?:concurren(?:t|cy)|parallel|simultaneous)\b",
        r"\brequests? already (?:queued|running|in progress|in flight)\b",
        r"\btoo many (?:\w{1,20} )?connections\b",
    ),
)
CONCURRENCY_CODES = words_of(r"concurren", r"streams?_(?:cap|limit)")
