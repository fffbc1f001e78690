"""Limits and waits in the message of a refusal, and in the details of a Google error. Never raises.

Theory of operation. Messages are the last source to be read, and only those of refusals. They are in lower case,
with white space collapsed, and cut to 4,096 characters. Every pattern is word-bounded and has bounded repetition.

Google's details list the exceeded quotas and the time to retry. Source: google.rpc.QuotaFailure, RetryInfo and
ErrorInfo as in captures gemini-429-paid-per-minute, gemini-429-free-tpm and gemini-429-codeassist-per-day (PROVIDERS.md
section 4).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import QuotaReading, Unit
from tidegate.providers import _values
from tidegate.providers._values import window_name

_NUMBER = r"([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,15})(?:\.0{1,6}(?![0-9]))?(k(?![a-z]))?"
_AMOUNT = r"[0-9]{1,9}(?:\.[0-9]{1,12})?"
_TIME = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)(?![a-z])"
_SPAN = rf"({_AMOUNT} ?{_TIME}(?:(?:,? and |, | )?{_AMOUNT} ?{_TIME}){{0,4}})"
_CLOCK = r"(?:([0-9]{1,4})\.)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?![0-9])"
"""A span as .NET writes it (Azure API Management: `5.03:23:11`, days first)."""
_AGAIN = (
    r"\b(?:try (?:your request |the request |this )?again|retry(?: your| the| this)?(?: request| call)?|retrying|wait"
    r"|resets?|renew(?:s|ed)|refreshe[sd]|replenishe[sd]|refills?|restored|unlocks?|cool ?down(?: period)?|slow down"
    r"|(?<!was )(?<!were )available(?: again)?|come back|(?:next|another) (?:request|call|attempt|message|try|reset)"
    r"(?: is| will be)?(?: allowed| possible| available| permitted)?"
    r"|(?:blocked|limited|suspended|throttled|paused)(?= for ))"
)
_ABOUT = r"(?: in| after| for| within| of)?:? (?:about |around |approximately |at least |another )?~?"
_WAIT = re.compile(rf"{_AGAIN}{_ABOUT}(?:{_CLOCK}|{_SPAN})")
_ONE = re.compile(rf"{_AGAIN}(?: in| after| for| within) (?:about |around )?an? (second|minute|hour|day|week)\b")
_MINUTES = re.compile(rf"{_AGAIN} in ([0-9]{{1,2}}):([0-5][0-9])(?![:0-9]| ?[ap]\.?m)")
_FIELD = re.compile(r"\bretry[-_ ]?(?:after|in|delay)(?:[-_ ]?(seconds|secs|s|ms))?[\"']? ?[:=] ?[\"']?"
                    rf"({_AMOUNT})(ms|s)?(?![0-9.:a-z-])")  # fmt: skip
"""The name of a field or header in a message: `retry_after=30`, `Retry-After: 12`."""
_LEFT = re.compile(
    rf"{_SPAN} (?:remaining |left )?(?:until|till|before) (?:the |your )?(?:next )?(?:reset|retry|quota|limit)"
    rf"|\bin {_SPAN},? (?:your|the) (?:quota|limit|window) (?:will )?resets?\b"
)
_PARTS = re.compile(rf"({_AMOUNT}) ?({_TIME})")
_UNTIL = re.compile(
    rf"(?:{_AGAIN}(?: at| on| by| after| until)?:?|\buntil) ([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:[t ]|,? at )"
    r"([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.[0-9]{1,9})?(z| ?utc| ?gmt| ?[+-][0-9]{2}:?[0-9]{2})?(?![0-9])"
)
_RETURN_DATE = re.compile(
    r"\b(?:regain access|resets?|renews?|returns?|available again)(?: at| on| by)? ([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?: at ([0-9]{2}:[0-9]{2} utc))?(?![0-9])"
)
_EPOCH = re.compile(
    rf"(?:{_AGAIN}(?: at| on| after)?:? |\blimit reached\|)([0-9]{{10}})(?:[0-9]{{3}})?(?:\.[0-9]{{1,9}})?(?![0-9])"
)
"""An instant in seconds or milliseconds since 1970 (Claude Code: `usage limit reached|1754200800`)."""
_BEIJING = "+08:00"
"""Zone of an instant without one. Only services of China are known to write such (Z.ai: collected answers of 2026)."""

_END = r"(?![0-9]|[.,][0-9])"
_LIMIT = re.compile(r"\blimit(?: of(?= [0-9,]{1,15} (?:exceeded|reached)))?:? ~?" + _NUMBER + _END)
_REQUESTED = re.compile(r"\brequested:? ~?" + _NUMBER + _END)
_WHAT = (
    r"(input tokens|output tokens|tokens?|requests?|reqs?|images|api calls|calls|queries|messages|times)"
    r"(?: per [a-z]{1,20}(?= per ))?"
)
_WINDOW = r"(?:([0-9]{1,5})[ -]?)?(second|sec|s|minute|min|hour|day|week|month)s?\b"
_WHAT_PER = re.compile(rf"\b{_WHAT}(?: per | ?/ ?){_WINDOW}")
_DAILY = re.compile(r"\b(hourly|daily|weekly|monthly) (token|request)s? (?:limit|quota)\b")
_PER = re.compile(rf"(?:\bper |/ ?){_WINDOW}")
_SHORT = re.compile(r"\b([rtq])p([smhd])\b")
_MAX_SHORT = re.compile(rf"\b(?:max(?:imum)? ([rt])p([smhd])|([rt])p([smhd]) limit)(?: of| is)?:? {_NUMBER}{_END}")
_WHAT_LIMIT_PER = re.compile(rf"\b(token|request) limit \({_NUMBER} per {_WINDOW}\)")
_AMOUNT_PER = re.compile(rf"(?<![0-9,.]){_NUMBER} {_WHAT} ?(?:per|/|every|each|(?:within|over|in)(?: an?)?) ?{_WINDOW}")
_BOUNDED = re.compile(r"limit|quota|maximum|max |exceed|allow|only|up to")
"""Words beside which an amount per window is the limit."""
_OFFERED = re.compile(r"\b(?:upgrade|unlock|increase)")
"""Words after which an amount is what another plan allows."""
_NUMBER_SHORT = re.compile(rf"(?<![0-9,.]){_NUMBER} ?([rtq])p([smhd])\b")
_ALONE = re.compile(rf"(?:rate limit exceeded|too many requests)?\W{{0,3}}{_NUMBER} ?(?:per|/) ?{_WINDOW}\W{{0,2}}")
"""A whole message of Flask-Limiter or SlowAPI: `50 per 1 minute`."""
_LIMIT_TIME = re.compile(rf"\blimit:? ?{_NUMBER},? ?(?:time|period|window|interval):? ?{_WINDOW}")
"""Huawei's gateway: `over ratelimit,limit:5,time:1 minute`."""
_NUMBER_PER = re.compile(rf"\blimit of {_NUMBER} per ([0-9]{{1,9}})s exceeded for ([a-z]{{1,40}})")
_ACTUAL_LIMIT = re.compile(rf"\b{_WHAT} per {_WINDOW} \(actual/limit\): {_NUMBER}/{_NUMBER}")
_AT_ONCE = re.compile(
    rf"\b(?:maximum|max|limit)(?: of)? {_NUMBER} (?:concurrent|parallel|simultaneous)\b"
    rf"|\b(?:concurrent|concurrency|parallel|simultaneous)(?: [a-z]{{1,20}})? limit(?: of| is)?:? {_NUMBER}{_END}"
    rf"|\bmax(?:imum)?(?: [a-z]{{1,20}})? concurrency:? {_NUMBER}{_END}"
    rf"|\bconcurrent [a-z]{{1,20}}(?: in flight)?(?:\.| \() ?(?:max(?:imum)?(?: allowed)?|limit):? {_NUMBER}{_END}"
    rf"|\ballows? (?:up to |only )?{_NUMBER} (?:concurrent|parallel|simultaneous)\b"
)

_MAX_BODY = 4096
"""Bytes of a refusal that are searched for a date. Raising it searches longer bodies. Derived from the characters of a
message that are read."""

_UNITS: dict[str, Unit] = {
    "tokens": "tokens",
    "input tokens": "input_tokens",
    "output tokens": "output_tokens",
    "requests": "requests",
    **dict.fromkeys(("request", "req", "reqs", "api calls", "calls", "queries", "messages", "times"), "requests"),
    "token": "tokens",
    "images": "input_images",
}
_SHORT_UNITS: dict[str, Unit] = {"r": "requests", "q": "requests", "t": "tokens"}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "mo": 2592000.0}


class Prose(NamedTuple):
    """The facts of a message. `wait` and `window` are in seconds; a window of 0 means "at the same time".

    `until` is the instant of a reset, in seconds since 1970.
    """

    wait: float | None = None
    limit: float | None = None
    requested: float | None = None
    unit: Unit | None = None
    window: float | None = None
    until: float | None = None

    @property
    def exceeds(self) -> bool:
        """Return whether the request alone is above the limit, so that waiting cannot help."""
        return self.limit is not None and self.requested is not None and self.requested > self.limit > 0


def read_prose(text: str, codes: frozenset[str] = frozenset()) -> Prose:
    """Return the wait, limit, request size, unit and window in the message of a refusal.

    `codes` gives the unit if the message names none (OpenAI's `type` is `tokens` or `requests`).
    """
    return _amounts(text, codes)._replace(wait=_wait(text), until=_until(text))


def _amounts(text: str, codes: frozenset[str]) -> Prose:
    match = _NUMBER_PER.search(text)
    if match is not None:
        concurrent = "concurrent" in match[4]
        counted = "concurrent_requests" if concurrent else "tokens" if "token" in match[4] else "requests"
        return Prose(None, _count(match[1], match[2]), None, counted, float(match[3]))
    match = _ACTUAL_LIMIT.search(text)
    if match is not None:
        return Prose(None, _count(match[6], match[7]), None, _UNITS[match[1]], _window(match[2], match[3]))
    match = _WHAT_LIMIT_PER.search(text)
    if match is not None:
        return Prose(None, _count(match[2], match[3]), None, _UNITS[f"{match[1]}s"], _window(match[4], match[5]))
    match = _LIMIT_TIME.search(text)
    if match is not None:
        return Prose(None, _count(match[1], match[2]), None, "requests", _window(match[3], match[4]))
    match = _AT_ONCE.search(text)
    if match is not None:
        written = next((match[place], match[place + 1]) for place in (1, 3, 5, 7, 9) if match[place])
        return Prose(None, _count(*written), None, "concurrent_requests", 0.0)
    match = _MAX_SHORT.search(text)
    if match is not None:
        unit: Unit = "requests" if (match[1] or match[3]) == "r" else "tokens"
        return Prose(None, _count(match[5], match[6]), None, unit, _SECONDS[match[2] or match[4]])
    limit = _LIMIT.search(text)
    if limit is not None:
        requested = _REQUESTED.search(text)
        counted_in, window = _what(text, codes)
        wanted = _count(requested[1], requested[2]) if requested else None
        return Prose(None, _count(limit[1], limit[2]), wanted, counted_in, window)
    stated = _OFFERED.split(text, maxsplit=1)[0]
    match = _AMOUNT_PER.search(stated) if _BOUNDED.search(stated) else None
    if match is not None:
        return Prose(None, _count(match[1], match[2]), None, _UNITS[match[3]], _window(match[4], match[5]))
    match = _NUMBER_SHORT.search(stated) if _BOUNDED.search(stated) else None
    if match is not None:
        return Prose(None, _count(match[1], match[2]), None, _SHORT_UNITS[match[3]], _SECONDS[match[4]])
    match = _ALONE.fullmatch(text)
    if match is not None:
        return Prose(None, _count(match[1], match[2]), None, "requests", _window(match[3], match[4]))
    return Prose()


def _wait(text: str) -> float | None:
    match = _WAIT.search(text)
    if match is None:
        return _worded_wait(text)
    if match[5] is None:
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups()[:4])
        return days * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds
    return _span(match[5])


def _worded_wait(text: str) -> float | None:
    """Return a wait in a rarer form: "in an hour", "in 04:30", "retry_after=30", "30 s left"."""
    one, minutes, field, left = _ONE.search(text), _MINUTES.search(text), _FIELD.search(text), _LEFT.search(text)
    if one is not None:
        return _SECONDS[one[1][0]]
    if minutes is not None:
        return 60.0 * float(minutes[1]) + float(minutes[2])
    if field is not None:
        return float(field[2]) / (1000.0 if "ms" in (field[1], field[3]) else 1.0)
    if left is not None:
        return _span(left[1] or left[2])
    return None


def _span(written: str) -> float | None:
    wait = sum(float(number) * _seconds(unit) for number, unit in _PARTS.findall(written))
    return wait if wait <= _values.MAX_SECONDS else None


def _seconds(unit: str) -> float:
    return 1e-3 if unit.startswith(("milli", "ms")) else _SECONDS[unit[0]]


def _until(text: str) -> float | None:
    match = _UNTIL.search(text)
    if match is None:
        epoch = _EPOCH.search(text)
        return float(epoch[1]) if epoch is not None else None
    zone = (match[3] or _BEIJING).strip()
    zone = "+00:00" if zone in ("z", "utc", "gmt") else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    clock = match[2] if match[2].count(":") == 2 else f"{match[2]}:00"
    found = _values.instant(f"{match[1]}t{clock}{zone}".encode("ascii"))
    return found[0] if found is not None else None


def return_date(body: bytes) -> str:
    """Return the date, with its time if there is one, on which a refusal says that access returns; else empty.

    Source: Anthropic's limit of an organization's own ("You will regain access on 2026-09-01 at 00:00 UTC").
    """
    match = _RETURN_DATE.search(body[:_MAX_BODY].decode("utf-8", "replace").lower())
    return " ".join(filter(None, match.groups())).upper() if match is not None else ""


def _what(text: str, codes: frozenset[str]) -> tuple[Unit | None, float | None]:
    match = _WHAT_PER.search(text)
    if match is not None:
        return _UNITS[match[1]], _window(match[2], match[3])
    match = _DAILY.search(text)
    if match is not None:
        return _UNITS[f"{match[2]}s"], _window(None, match[1])
    match = _SHORT.search(text)
    if match is not None:
        return _SHORT_UNITS[match[1]], _SECONDS[match[2]]
    for unit in ("tokens", "requests"):
        if unit in codes:
            match = _PER.search(text)
            return unit, _window(match[1], match[2]) if match is not None else None
    return None, None


def _window(number: str | None, word: str) -> float:
    return float(number or 1) * _SECONDS["mo" if word.startswith("month") else word[0]]


def _count(written: str, thousands: str | None) -> float:
    return float(written.replace(",", "")) * (1000.0 if thousands else 1.0)


_MAX_DETAILS = 32

"""Parts of an error's `details`, and violations in them, that are read. Raising it spends more time on a hostile
refusal. Chosen: captures have at most three of either."""

_MAX_TEXT = 256
"""Characters of a text in `details` above which it is ignored. Raising it compares longer texts. Chosen: longer than
any quotaId or duration."""

_COUNTED: tuple[tuple[str, Unit], ...] = (
    ("InputTokens", "input_tokens"),
    ("OutputTokens", "output_tokens"),
    ("Tokens", "tokens"),
    ("Requests", "requests"),
)
"""Words of a quotaId and their units, longer words first: `GenerateContentPaidTierInputTokensPerModelPerMinute`."""

_QUOTA_PERIOD = re.compile(r"Per(Second|Minute|Hour|Day|Month)(?![a-z])")
_PERIOD_SECONDS = {"Second": 1.0, "Minute": 60.0, "Hour": 3600.0, "Day": 86400.0, "Month": 2592000.0}


class Exceeded(NamedTuple):
    """A quota that a refusal reports as exceeded; a missing fact is None. `window` is in seconds."""

    unit: Unit | None
    window: float | None
    limit: float | None

    def reading(self) -> QuotaReading | None:
        """Return the quota reading if all facts are known; its windows follow the provider's clock."""
        if self.unit is None or self.window is None or not self.limit:
            return None
        name = f"{self.unit.replace('_', '-')}-{window_name(self.window)}"
        return QuotaReading(name, self.unit, "fixed", self.limit, None, None, self.window)


_LIMIT_FIELDS = ("limit", "maxrequests", "requestlimit", "ratelimit", "quota", "max")
_WINDOW_FIELDS = (
    "window",
    "windowseconds",
    "windows",
    "period",
    "interval",
    "per",
    "limittype",
    "windowsize",
    "quotatype",
)
_COUNTED_FIELDS = ("unit", "type", "metric", "dimension", "resource", "limittype", "quotatype")
_PER_WINDOW = re.compile(rf"{_NUMBER} ?(?:[a-z]{{1,10}} ?)?(?:/|per|every) ?{_WINDOW}")
_A_WINDOW = re.compile(
    r"(?:per[ _-])?(?:([0-9]{1,7}) ?)?(seconds?|secs?|s|minutes?|mins?|m|hours?|hr|h|days?|d|weeks?|w|months?)"
)
_WORDED_WINDOWS = {
    "hourly": "hour",
    "daily": "day",
    "weekly": "week",
    "monthly": "month",
    "rpm": "m",
    "rps": "s",
    "rpd": "d",
}


def stated_limit(fields: dict[str, object]) -> Exceeded | None:
    """Return the limit and its window in the fields of an error, whose names have no case and punctuation; else None.

    Seen: `{"limit": 20, "window": "60s"}`, `{"limit": "1000r/s"}`, `{"limit": 100, "limit_type": "per_minute"}`.
    """
    limit = next((fields[name] for name in _LIMIT_FIELDS if isinstance(fields.get(name), int | str)), None)
    if isinstance(limit, bool) or limit is None:
        return None
    counted = " ".join(str(fields[name])[:_MAX_TEXT] for name in _COUNTED_FIELDS if name in fields).lower()
    unit: Unit = "tokens" if "token" in counted or "tpm" in counted else "requests"
    rate = _PER_WINDOW.fullmatch(str(limit)[:_MAX_TEXT].lower())
    if rate is not None:
        unit = "tokens" if "token" in str(limit).lower() else unit
        return Exceeded(unit, _window(rate[3], rate[4]), _count(rate[1], rate[2]))
    amount = _values.amount(str(limit)[:_MAX_TEXT].encode("ascii", "replace"))
    seconds = _stated_window(next((fields[name] for name in _WINDOW_FIELDS if name in fields), None))
    if not amount or seconds is None:
        return None
    return Exceeded(unit, seconds, amount)


def _stated_window(window: object) -> float | None:
    if isinstance(window, int) and not isinstance(window, bool):
        return float(window) if 0 < window <= _values.MAX_SECONDS else None
    if not isinstance(window, str) or len(window) > _MAX_TEXT:
        return None
    written = window.strip().lower().replace("_", " ")
    match = _A_WINDOW.fullmatch(_WORDED_WINDOWS.get(written, written))
    return _window(match[1], match[2]) if match is not None else None


class Details(NamedTuple):
    """The facts in an error's details; `wait` is in seconds, `reasons` are in lower case.

    ErrorInfo names a quota in its metadata (`quota_limit_value`), and a reset (`quotaResetDelay`, with the decimals).
    """

    wait: float | None = None
    exceeded: tuple[Exceeded, ...] = ()
    reasons: frozenset[str] = frozenset()


def read_details(details: object) -> Details:
    """Return the facts in the `details` of an error; none if they have another shape."""
    if not isinstance(details, list):
        return Details()
    parts = [part for part in details[:_MAX_DETAILS] if isinstance(part, dict)]
    metadata = [each for part in parts if isinstance(each := part.get("metadata"), dict)]
    delays = [part.get("retryDelay") for part in parts] or [each.get("quotaResetDelay") for each in metadata]
    waits = [wait for delay in delays if (wait := _retry_delay(delay)) is not None]
    violations = [each for part in parts if isinstance(listed := part.get("violations"), list) for each in listed]
    exceeded = tuple(_exceeded(each) for each in violations[:_MAX_DETAILS] if isinstance(each, dict))
    exceeded += tuple(_in_metadata(each) for each in metadata if "quota_limit_value" in each)
    reasons = frozenset(text.lower() for part in parts if (text := _text(part.get("reason"))))
    return Details(max(waits, default=None), exceeded, reasons)


def _in_metadata(metadata: dict[str, object]) -> Exceeded:
    named = {"quotaId": metadata.get("quota_limit"), "quotaValue": metadata.get("quota_limit_value")}
    return _exceeded(named)


def _exceeded(violation: dict[str, object]) -> Exceeded:
    name = _text(violation.get("quotaId"))
    unit = next((unit for word, unit in _COUNTED if word in name), None)
    window = _QUOTA_PERIOD.search(name)
    limit = _values.amount(_text(violation.get("quotaValue")).encode("ascii", "replace"))
    return Exceeded(unit, _PERIOD_SECONDS[window[1]] if window is not None else None, limit)


def _retry_delay(delay: object) -> float | None:
    span = _values.duration(_text(delay).encode("ascii", "replace"))
    return span[0] if span is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_TEXT else ""
