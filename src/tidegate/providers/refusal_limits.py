"""Limits and waits that a refusal states in its message, its fields, or the details of a Google error. Never raises.

Theory of operation. Messages are the last source to be read, and only those of refusals. They are in lower case and
English, with white space collapsed, and cut to 4,096 characters. Every pattern has bounded repetition. Sources of the
details: google.rpc.QuotaFailure, RetryInfo and ErrorInfo as in captures gemini-429-paid-per-minute,
gemini-429-free-tpm and gemini-429-codeassist-per-day (provider-facts.md section 4).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.safe_text import lazy_pattern
from tidegate.core.values import QuotaReading, Unit
from tidegate.providers import _values
from tidegate.providers._values import window_name

_AMOUNT = r"[0-9]{1,9}(?:\.[0-9]{1,12})?"
_TIME = r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)(?![a-z])"
_SPAN = rf"(?P<span>(?:{_AMOUNT}|an?(?= )) ?{_TIME}(?:(?:,? and |, | )?{_AMOUNT} ?{_TIME}){{0,4}})"
_CLOCK = r"(?:(?P<days>[0-9]{1,4})\.)?(?P<hours>[0-9]{1,2}):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})(?![0-9])"
"""A span as .NET writes it (Azure API Management: `5.03:23:11`, days first)."""
_AGAIN = (
    r"\b(?:try (?:your request |the request |this )?again|retry(?: your| the| this)?(?: request| call)?|retrying|wait"
    r"|resets?|renew(?:s|ed)|refreshe[sd]|replenishe[sd]|refills?|restored|unlocks?|cool ?down(?: period)?|slow down"
    r"|(?<!was )(?<!were )available(?: again)?|come back|(?:next|another) (?:request|call|attempt|message|try|reset)"
    r"(?: is| will be)?(?: allowed| possible| available| permitted)?"
    r"|(?:blocked|limited|suspended|throttled|paused)(?= for ))"
)
_WAIT = lazy_pattern(
    rf"{_AGAIN}(?: in| after| for| within| of)?:? (?:about |around |approximately |at least |another )?~?"
    rf"(?:{_CLOCK}|{_SPAN})"
)
_FIELD = lazy_pattern(
    r"\bretry[-_ ]?(?:after|in|delay)(?:[-_ ]?(?P<unit>seconds|secs|s|ms))?[\"']? ?[:=] ?[\"']?"
    rf"(?P<wait>{_AMOUNT})(?P<end>ms|s)?(?![0-9.:a-z-])"
)
"""The name of a field or header in a message: `retry_after=30`, `Retry-After: 12`."""
_PARTS = lazy_pattern(rf"({_AMOUNT}|\ban?(?= )) ?({_TIME})")
_UNTIL = lazy_pattern(
    rf"(?:{_AGAIN}(?: at| on| by| after| until)?:?|\buntil) ([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:[t ]|,? at )"
    r"([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:\.[0-9]{1,9})?(z| ?utc| ?gmt| ?[+-][0-9]{2}:?[0-9]{2})?(?![0-9])"
)
_EPOCH = lazy_pattern(
    rf"(?:{_AGAIN}(?: at| on| after)?:? |\blimit reached\|)([0-9]{{10}})(?:[0-9]{{3}})?(?:\.[0-9]{{1,9}})?(?![0-9])"
)
"""An instant in seconds or milliseconds since 1970 (Claude Code: `usage limit reached|1754200800`)."""
_BEIJING = "+08:00"
"""Zone of an instant without one. Only services of China are known to write such (Z.ai: collected answers of 2026)."""
_RETURN_DATE = lazy_pattern(
    r"\b(?:regain access|resets?|renews?|returns?|available again)(?: at| on| by)? ([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?: at ([0-9]{2}:[0-9]{2} utc))?(?![0-9])"
)

NUMBER = r"(?P<amount>[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,15})(?:\.0{1,6}(?![0-9]))?(?P<k>k(?![a-z]))?"
_END = r"(?![0-9]|[.,][0-9])"
WINDOW = r"(?:(?P<count>[0-9]{1,9})[ -]?)?(?P<window>second|sec|s|minute|min|hour|day|week|month)s?\b"
_WHAT = (
    r"(?P<what>input tokens|output tokens|tokens?|requests?|reqs?|images|api calls|calls|queries|messages|times)"
    r"(?: per [a-z]{1,20}(?= per ))?"
)
_SHORT = r"(?P<what>[rtq])p(?P<window>[smhd])\b"
_AT_ONCE = r"(?P<what>concurrent|concurrency|parallel|simultaneous)"

_LIMIT = lazy_pattern(rf"\blimit(?: of(?= [0-9,]{{1,15}} (?:exceeded|reached)))?:? ~?{NUMBER}{_END}")
_REQUESTED = lazy_pattern(rf"\brequested:? ~?{NUMBER}{_END}")
_COUNTED = lazy_pattern(
    rf"\b(?:{_WHAT}(?: per | ?/ ?){WINDOW}"
    r"|(?P<period>hourly|daily|weekly|monthly) (?P<counted>token|request)s? (?:limit|quota)"
    r"|(?P<letter>[rtq])p(?P<short>[smhd])\b)"
)
"""What a limit counts, and its window, elsewhere in the message."""

_FORMS = (
    lazy_pattern(rf"\blimit of {NUMBER} per (?P<count>[0-9]{{1,9}})(?P<window>s) exceeded for (?P<what>[a-z]{{1,40}})"),
    lazy_pattern(rf"\b{_WHAT} per {WINDOW} \(actual/limit\): [0-9,]{{1,20}}/{NUMBER}"),
    lazy_pattern(rf"\b{_WHAT} limit \({NUMBER} per {WINDOW}\)"),
    lazy_pattern(rf"\blimit:? ?{NUMBER},? ?(?:time|period|window|interval):? ?{WINDOW}"),
    lazy_pattern(rf"\b(?:maximum|max|limit|allows?)(?: of| up to| only)? {NUMBER} {_AT_ONCE}\b"),
    lazy_pattern(rf"\b{_AT_ONCE}(?: [a-z]{{1,20}})? limit(?: of| is)?:? {NUMBER}{_END}"),
    lazy_pattern(rf"\bmax(?:imum)?(?: [a-z]{{1,20}})? {_AT_ONCE}:? {NUMBER}{_END}"),
    lazy_pattern(
        rf"\b{_AT_ONCE} [a-z]{{1,20}}(?: in flight)?(?:\.| \() ?(?:max(?:imum)?(?: allowed)?|limit):? {NUMBER}{_END}"
    ),
    lazy_pattern(rf"\b(?:max(?:imum)? )?{_SHORT}(?:(?<=max ...)|(?<=maximum ...)| limit)(?: of| is)?:? {NUMBER}{_END}"),
)
"""Forms in which a message states a limit with its unit and window: of GitHub Models, xAI, g4f, Huawei, Moonshot."""

_AMOUNTS = (
    lazy_pattern(rf"(?<![0-9,.]){NUMBER} {_WHAT} ?(?:per|/|every|each|(?:within|over|in)(?: an?)?) ?{WINDOW}"),
    lazy_pattern(rf"(?<![0-9,.]){NUMBER} ?{_SHORT}"),
)
_BOUNDED = lazy_pattern(r"limit|quota|maximum|max |exceed|allow|only|up to")
"""Words beside which an amount per window is the limit."""
_OFFERED = lazy_pattern(r"\b(?:upgrade|unlock|increase)")
"""Words after which an amount is what another plan allows."""
_ALONE = lazy_pattern(rf"(?:rate limit exceeded|too many requests)?\W{{0,3}}{NUMBER} ?(?:per|/) ?{WINDOW}\W{{0,2}}")
"""A whole message of Flask-Limiter or SlowAPI: `50 per 1 minute`."""

MAX_TEXT = 4096
"""Characters of a message that are read. Chosen: longer than any captured refusal."""

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
        return self.limit is not None and self.requested is not None and self.requested > self.limit > 0


def read_prose(text: str, codes: frozenset[str] = frozenset()) -> Prose:
    """Return the facts in the message of a refusal; `codes` give the unit if the message names none."""
    return _limit(text, codes)._replace(wait=_wait(text), until=_until(text))


def _limit(text: str, codes: frozenset[str]) -> Prose:
    form = next((found for pattern in _FORMS if (found := pattern.search(text))), None)
    if form is None and (limit := _LIMIT.search(text)) is not None:
        requested = _REQUESTED.search(text)
        wanted = amount_of(requested) if requested is not None else None
        return Prose(None, amount_of(limit), wanted, *_counted(text, codes))
    if form is None:
        stated = _OFFERED.split(text, maxsplit=1)[0]
        bounded = _AMOUNTS if _BOUNDED.search(stated) else ()
        form = next((found for pattern in bounded if (found := pattern.search(stated))), None) or _ALONE.fullmatch(text)
    if form is None:
        return Prose()
    named = form.groupdict()
    unit = unit_of(named.get("what") or "")
    window = 0.0 if unit == "concurrent_requests" else window_of(named.get("count"), named["window"])
    return Prose(None, amount_of(form), None, unit, window)


def unit_of(what: str) -> Unit:
    """Return the unit that a word for what is counted means; requests for most words, and for none."""
    if what.startswith(("concurren", "parallel", "simultaneous")) or "concurrent" in what:
        return "concurrent_requests"
    if what == "t" or "token" in what:
        return "input_tokens" if "input" in what else "output_tokens" if "output" in what else "tokens"
    return "input_images" if what == "images" else "requests"


def window_of(count: str | None, word: str) -> float:
    """Return the seconds of a window that a word names, of one or of `count`."""
    return float(count or 1) * _SECONDS["mo" if word.startswith("month") else word[0]]


def amount_of(found: re.Match[str]) -> float:
    return float(found["amount"].replace(",", "")) * (1000.0 if found["k"] else 1.0)


def _counted(text: str, codes: frozenset[str]) -> tuple[Unit | None, float | None]:
    """Return the unit and window of a limit that stands alone: of the message's words, else the unit of the codes."""
    found = _COUNTED.search(text)
    if found is None:
        units: tuple[Unit, ...] = ("tokens", "requests")
        return next((unit for unit in units if unit in codes), None), None
    word = found["window"] or found["period"] or found["short"]
    return unit_of(found["what"] or found["counted"] or found["letter"]), window_of(found["count"], word)


def _wait(text: str) -> float | None:
    found = _WAIT.search(text)
    if found is None:
        field = _FIELD.search(text)
        milliseconds = field is not None and "ms" in (field["unit"], field["end"])
        return float(field["wait"]) / (1000.0 if milliseconds else 1.0) if field is not None else None
    if found["span"] is None:
        parts = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
        return sum(float(found[name] or 0) * seconds for name, seconds in parts)
    written = _PARTS.findall(found["span"])
    wait = sum((1.0 if amount[0] == "a" else float(amount)) * _seconds(unit) for amount, unit in written)
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
    match = _RETURN_DATE.search(body[:MAX_TEXT].decode("utf-8", "replace").lower())
    return " ".join(filter(None, match.groups())).upper() if match is not None else ""


MAX_DETAILS = 64
"""Parts of an error's `details`, fields of one object, and quoted headers that are read. Chosen: an answer of a
provider has a few dozen headers."""

MAX_DETAIL = 256
"""Characters of a code, or of a text in `details`, above which it is ignored. Chosen: longer than any quotaId."""

_QUOTA_UNITS: tuple[tuple[str, Unit], ...] = (
    ("InputTokens", "input_tokens"),
    ("OutputTokens", "output_tokens"),
    ("Tokens", "tokens"),
    ("Requests", "requests"),
)
"""Words of a quotaId and their units, longer words first: `GenerateContentPaidTierInputTokensPerModelPerMinute`."""

_QUOTA_PERIOD = lazy_pattern(r"Per(Second|Minute|Hour|Day|Month)(?![a-z])")

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
_PER_WINDOW = lazy_pattern(rf"{NUMBER} ?(?:[a-z]{{1,10}} ?)?(?:/|per|every) ?{WINDOW}")
_A_WINDOW = lazy_pattern(
    r"(?:per[ _-])?(?:([0-9]{1,7}) ?)?(seconds?|secs?|s|minutes?|mins?|m|hours?|hr|h|days?|d|weeks?|w|months?)"
)
_WORDED_WINDOWS = {"hourly": "h", "daily": "d", "weekly": "w", "monthly": "month", "rpm": "m", "rps": "s", "rpd": "d"}


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


def stated_limit(fields: dict[str, object]) -> Exceeded | None:
    """Return the limit and its window in the fields of an error, by names without case and punctuation; else None.

    Seen: `{"limit": 20, "window": "60s"}`, `{"limit": "1000r/s"}`, `{"limit": 100, "limit_type": "per_minute"}`.
    """
    limit = next((fields[name] for name in _LIMIT_FIELDS if isinstance(fields.get(name), int | str)), None)
    if isinstance(limit, bool) or limit is None:
        return None
    written = str(limit)[:MAX_DETAIL].lower()
    counted = " ".join(str(fields[name])[:MAX_DETAIL] for name in _COUNTED_FIELDS if name in fields).lower()
    unit: Unit = "tokens" if "token" in f"{counted} {written}" or "tpm" in counted else "requests"
    rate = _PER_WINDOW.fullmatch(written)
    if rate is not None:
        return Exceeded(unit, window_of(rate["count"], rate["window"]), amount_of(rate))
    amount = _values.amount(written.encode("ascii", "replace"))
    seconds = _stated_window(next((fields[name] for name in _WINDOW_FIELDS if name in fields), None))
    return Exceeded(unit, seconds, amount) if amount and seconds is not None else None


def _stated_window(window: object) -> float | None:
    if isinstance(window, int) and not isinstance(window, bool):
        return float(window) if 0 < window <= _values.MAX_SECONDS else None
    if not isinstance(window, str) or len(window) > MAX_DETAIL:
        return None
    written = window.strip().lower().replace("_", " ")
    match = _A_WINDOW.fullmatch(_WORDED_WINDOWS.get(written, written))
    return window_of(match[1], match[2]) if match is not None else None


def read_details(details: list[object]) -> tuple[float | None, tuple[Exceeded, ...], frozenset[str]]:
    """Return the wait (seconds), the exceeded quotas and the reasons (lower case) in an error's details.

    ErrorInfo names a quota in its metadata (`quota_limit_value`), and a reset (`quotaResetDelay`, with the decimals).
    """
    parts = [part for part in details[:MAX_DETAILS] if isinstance(part, dict)]
    metadata = [each for part in parts if isinstance(each := part.get("metadata"), dict)]
    delays = [part.get("retryDelay") for part in parts] or [each.get("quotaResetDelay") for each in metadata]
    waits = [wait for delay in delays if (wait := _retry_delay(delay)) is not None]
    violations = [each for part in parts if isinstance(listed := part.get("violations"), list) for each in listed]
    named = [
        (each.get("quotaId"), each.get("quotaValue")) for each in violations[:MAX_DETAILS] if isinstance(each, dict)
    ]
    named += [(each.get("quota_limit"), each["quota_limit_value"]) for each in metadata if "quota_limit_value" in each]
    reasons = frozenset(text.lower() for part in parts if (text := _text(part.get("reason"))))
    return max(waits, default=None), tuple(_exceeded(*pair) for pair in named), reasons


def _exceeded(quota: object, value: object) -> Exceeded:
    name = _text(quota)
    unit = next((unit for word, unit in _QUOTA_UNITS if word in name), None)
    window = _QUOTA_PERIOD.search(name)
    limit = _values.amount(_text(value).encode("ascii", "replace"))
    return Exceeded(unit, window_of(None, window[1].lower()) if window is not None else None, limit)


def _retry_delay(delay: object) -> float | None:
    span = _values.duration(_text(delay).encode("ascii", "replace"))
    return span[0] if span is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_DETAIL else ""
