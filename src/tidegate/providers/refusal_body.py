"""The refusal in a body: its codes, its words, and the time that it names. Pure; never raises.

Theory of operation. Services, gateways and frameworks wrap the same facts in objects of their own: `error`, `errors`,
`fault` (Apigee), `Response.Error` (Tencent), `ResponseMetadata.Error` (Volcengine), `detail` (FastAPI), `base_resp`
(MiniMax). Names of fields are compared without case and punctuation, so `errorCode`, `error_code` and `ErrorCode` are
one field. The innermost object is read first. Objects beside the message (`details`, `metadata`) give codes and waits.

Gateways answer 400, 500 or 502 for whatever their upstream refused, and put its answer into their message: `upstream
error 429: {"error": {...}}`, `[429]: Rate limit exceeded`, `litellm.RateLimitError: ...`. The quoted answer then says
more than the gateway's status. The same texts stand in ordinary errors that echo a request: a tool's result, a
conversation about limits. So a quotation counts only if it is an object of an error with a status, or a status that
the words before it announce. It does not count in a message about an invalid request or a download.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from itertools import islice
from typing import NamedTuple

from tidegate.core.safe_text import lazy_pattern
from tidegate.providers import _values
from tidegate.providers.refusal_limits import MAX_DETAIL, MAX_DETAILS, MAX_TEXT, Exceeded, read_details, stated_limit
from tidegate.providers.refusal_words import in_english

REFUSING = frozenset({402, 429, 503, 529})
"""Statuses of an upstream that mean the same at its gateway. Others may be faults of the gateway or of the request."""

RELAYING = frozenset({400, 424, 500, 502})
"""Statuses with which gateways answer for what their upstream refused."""

_MAX_LISTED = 4
"""Messages of a list, quoted objects, and objects around one another that are read. Chosen: most have one."""

_MAX_PREFIX = 200
"""Characters in which a status is announced. Chosen: the longest prefix seen has 90."""

_ERROR_FIELDS = frozenset({"error", "code", "status", "type", "message", "msg", "errcode", "error_code", "status_code"})

_FAULTS = (
    r"(?:in)?valid|validat\w{2,6}|max_tokens|schema|malformed|pars(?:e|ing)"
    r"|unexpected|must be|should be|cannot be|expected|input_value"
    r"|unsupported|download\w{0,3}|fetch\w{0,3}|flagged|moderation|safety|violat(?:es?|ing)|policy violation|mcp"
    r"|(?:function|tool)(?: \w{1,20})? (?:call|result|failed)|is not a"
    r"|(?:search|brows(?:er|ing)|crawl(?:er|ing)?|retrieval|plugin|lookup)(?: \w{1,20}){0,2} (?:failed|returned)"
    r"|(?:user|caller|document|conversation) (?:said|asked|wrote|mentions)"
)
_FAULT = lazy_pattern(rf"\b(?:{_FAULTS})\b")
"""Words of a fault in the request: a refusal of the caller's account has none of them."""

_OF_A_REQUEST = lazy_pattern(
    rf"\b(?:{_FAULTS}|must (?:have|not)|required|not supported|arguments?|parameters?|tools?|functions?|content|prompt"
    r"|messages?\.|role|max_tokens|json|urls?|image|permitted|retriev\w{1,4}"
    r"|(?:could not|cannot|failed to|unable to) load)\b"
)
"""Words of an error about the request, or about a file that it names."""

_STATED = lazy_pattern(r"""\}['"` ]{0,3}(?:is|was|does|did|must|should|has|cannot)\b""")
"""An object's end and a verb. The object is a part of the request ("{...} is not of type 'string'")."""

_STATUS = r"(402|429|503|529)(?![0-9]|[.,][0-9])"
_SUBJECT = r"(?:too many|rate|payment|service|overload|resource|quota|insuff|\S{0,20}error|\{)"
_ANNOUNCED = lazy_pattern(
    r"(?:\b(?:http(?:[ /][0-9.]{1,3})?|status(?:[ _]?code)?|(?:error|response)[ _]?code|code|returned|upstream|error"
    rf"|responded(?: with)?)\W{{1,4}}{_STATUS}|(?:\A|[\[(]){_STATUS}\W{{1,3}}{_SUBJECT}|\[{_STATUS}\])"
)
_THROWN = lazy_pattern(
    r"\b(?:ratelimiterror|ratelimitexceeded(?:error|exception)|throttlingexception|toomanyrequests(?:error|exception)?"
    r"|resource_?exhausted(?:error|exception))\b"
)
"""Names of exceptions for a rate (openai, litellm, botocore, google-api-core)."""

_THROTTLED = 429


def is_of_the_request(words: str) -> bool:
    """Return whether a message in lower case describes an invalid request, whose text it may echo."""
    return _OF_A_REQUEST.search(words) is not None


def describes_a_fault(words: str) -> bool:
    return _FAULT.search(words) is not None


def announced(words: str) -> int | None:
    """Return the status of an upstream that a gateway's message in lower case announces at its beginning, else None."""
    start = words[:_MAX_PREFIX]
    found = _ANNOUNCED.search(start)
    if found is None and _THROWN.search(start) is None:
        return None
    before = start if found is None else start[: found.start()]
    if is_of_the_request(before) or _STATED.search(words) is not None:
        return None
    return _THROTTLED if found is None else int(next(group for group in found.groups() if group))


def quoted_objects(message: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the JSON objects of errors that a message quotes, each with the words before it in lower case."""
    decoder = json.JSONDecoder()
    place = message.find("{")
    for _ in range(_MAX_LISTED):
        if place < 0:
            return
        try:
            found, end = decoder.raw_decode(message, place)
        except (ValueError, RecursionError):
            found, end = None, place + 1
        stated = found is not None and _STATED.match(message, end - 1) is not None
        if isinstance(found, dict) and not stated and not _ERROR_FIELDS.isdisjoint(found):
            yield message[:place].lower(), found
        place = message.find("{", end)


MAX_BODY = 1 << 18
"""Most bytes of a refusal's body that is parsed. Chosen: the longest capture has 2,300."""

_MAX_PAGE = 1 << 14
"""Bytes of a page of HTML or XML that are read. Chosen: proxies state the reason right after their styles."""

_HIDDEN = lazy_pattern(r"(?is)<(?:script\b.*?(?:</script|\Z)|style\b.*?(?:</style|\Z))?[^<>]*(?:>|\Z)")
"""What a page does not show: a tag, and a script or a style up to its end."""

_AROUND = ("error", "fault", "detail", "response", "baseresp", "responsemetadata", "header")
"""Fields whose object holds the error. A list of `errors` is read after the message beside it."""

_BESIDE = ("details", "detail", "metadata", "params", "ratelimit", "innererror", "retryinfo", "debug", "data", "cause",
           "originalerror", "providererror")  # fmt: skip
"""Fields whose object adds codes, waits and words to the error that holds it."""

_CODES = ("code", "type", "status", "errorcode", "errortype", "errcode", "reason", "reasons", "limitsource")
_STATUSES = ("code", "status", "statuscode")
_TEXTS = ("message", "detail", "msg", "errormessage", "errormsg", "errmsg", "faultstring", "title", "errordescription",
          "statusmsg", "error", "errors", "text")  # fmt: skip
_TEXTS_BESIDE = ("message", "msg", "title", "reason", "description")
_LISTED = ("error", "errors", "detail", "details", "messages")
"""Fields whose list may hold messages."""

_WAIT = lazy_pattern(
    r"(?:estimatedtime|next(?:access|retry|attempt|allowed|available|request)(?:time|at)?"
    r"|(?:quota|ratelimit)?(?:retry|resets?|wait|cooldown|clears|available|unlocks)"
    r"(?:(?:after|in|delay|time(?:stamp)?|at|date)(?:milliseconds?|millis|ms|seconds?|secs?|s)?|seconds?|secs?|ms))"
)
"""Names of fields that state when to try again: `retry_after`, `resetsInSeconds`, `quotaResetDelay`, `reset_at`.

Hugging Face's `estimated_time` is in seconds, though names that end so are instants elsewhere.
"""

_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH_NAMED = lazy_pattern(
    r"([0-9]{4})-(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)-([0-9]{2}) ([0-9:]{8}) ?([+-][0-9]{4})(?: UTC)?"
)
"""An instant as WSO2 writes it: `2026-Jan-17 00:00:00+0000 UTC`."""

_MILLISECONDS = lazy_pattern(r"(?:milliseconds?|millis|ms)\Z")

_A_CODE = lazy_pattern(r"(?=[A-Za-z]{1,40}[_.:-]|[A-Za-z]{0,40}[a-z][A-Z])[A-Za-z][A-Za-z0-9_.:-]{3,99}")
"""A message of one joined word: a code in the place of a message (`{"error": "RATE_LIMIT_EXCEEDED"}`)."""

_LEADING = lazy_pattern(r"[^A-Za-z]{0,3}((?:[A-Za-z][A-Za-z0-9.]*[_A-Z][A-Za-z0-9_.]*(?::? ?-? |\Z)){1,3})")
"""Codes at the beginning of a message: `insufficient_balance: ...`, `ThrottlingException: ...`."""

_CAPITAL = lazy_pattern(r"(?<=[a-z0-9])(?=[A-Z])")

_PUNCTUATION = str.maketrans("", "", "_-. ")


class RefusalDetails(NamedTuple):
    """A refusal in the form that rows are compared with: lower case, white space collapsed. `wait` is in seconds.

    `until` is the named end of the wait, in seconds since 1970. `headers` are those that the body quotes
    (`error.metadata.headers`, capture openrouter-429-free-day). `exceeded` are the quotas that the body lists as
    exceeded. `words` is `text` with the body's other texts, and what it quotes of an upstream's refusal, whose status
    is `upstream`.
    """

    codes: frozenset[str] = frozenset()
    text: str = ""
    wait: float | None = None
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    exceeded: tuple[Exceeded, ...] = ()
    words: str = ""
    until: float | None = None
    upstream: int | None = None


NOTHING = RefusalDetails()

Layer = dict[str, object]
"""The fields of one object, by their names without case and punctuation."""


def refusal_of(body: bytes | None) -> RefusalDetails:
    """Return the refusal in a body: a JSON object, an array of one, a JSON string, plain text, or a page's text."""
    if not body:
        return NOTHING
    start = body[:64].lstrip()
    if start[:1] == b"<":
        return refusal_in(_page_text(body[:_MAX_PAGE].decode("utf-8", "ignore")))
    if len(body) <= MAX_BODY:
        document = parsed(body)
        if document is not None:
            return refusal_in(document)
    return NOTHING if start[:1] in (b"{", b"[") else refusal_in(body[:MAX_TEXT].decode("utf-8", "ignore"))


def refusal_in(document: object) -> RefusalDetails:
    if isinstance(document, list):
        document = document[0] if document else None
    if isinstance(document, str):
        document = {"message": document}
    if not isinstance(document, dict):
        return NOTHING
    layers = list(_layers(document, 0))
    nested, upstream = _nested(layers)
    layers = [*nested, *layers]
    beside = [_named(inner) for layer in layers for key in _BESIDE if isinstance(inner := layer.get(key), dict)]
    codes = {code for layer in (*layers, *beside) for code in _codes(layer)}
    waits: list[float] = []
    ends: list[float] = []
    listed: tuple[Exceeded, ...] = ()
    for layer in (*layers, *beside):
        _read_times(layer, waits, ends)
        stated = stated_limit(layer)
        listed += (stated,) if stated is not None else ()
        details = layer.get("details")
        if isinstance(details, list):
            wait, exceeded, reasons = read_details(details)
            codes |= reasons
            listed += exceeded
            waits += [wait] if wait is not None else []
    status = next((code for layer in layers for key in _STATUSES if (code := _status(layer.get(key)))), None)
    texts = [text for layer in layers for text in _texts(layer)]
    codes |= {code for text in texts for word in _code_words(text) for code in _spellings(word)}
    others = [text for layer in beside for key in _TEXTS_BESIDE if isinstance(text := layer.get(key), str)]
    return RefusalDetails(
        frozenset(codes),
        plain(texts[0]) if texts else "",
        waits[0] if waits else None,
        status,
        _quoted(layers),
        listed,
        plain(" ".join(dict.fromkeys([*texts, *others, _quoted_text(layers)]))),
        ends[0] if ends else None,
        upstream,
    )


def _page_text(page: str) -> str:
    """Return the visible text of an HTML or XML page: its title first, without tags, scripts and styles."""
    texts = (text.strip() for text in _HIDDEN.split(page))
    return unescape(". ".join(text for text in texts if text))


def parsed(body: bytes | str) -> object:
    """Return the JSON document, or None if the text is not JSON or too deeply nested."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document


def plain(text: str) -> str:
    """Return the text as rows compare it: cut, lower case, one space between words, plain apostrophes, in English."""
    return " ".join(in_english(text[:MAX_TEXT].lower().replace("\u2019", "'")).split())


def _named(fields: dict[str, object]) -> Layer:
    named = {str(name).lower().translate(_PUNCTUATION): value for name, value in islice(fields.items(), MAX_DETAILS)}
    return {name: value for name, value in named.items() if value is not None}


def _layers(document: object, depth: int) -> Iterator[Layer]:
    """Yield the objects of a refusal, innermost first."""
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict) or depth >= _MAX_LISTED:
        return
    layer = _named(document)
    for name in _AROUND:
        yield from _layers(layer.get(name), depth + 1)
    yield layer
    yield from _layers(layer.get("errors"), depth + 1)


def _nested(layers: list[Layer]) -> tuple[list[Layer], int | None]:
    """Return the upstream's error objects that a gateway quotes, innermost first, and the upstream's status.

    A message that is nothing but JSON is always a quotation (recorded answer gemini-429-free-tpm).
    """
    texts = [text for layer in layers for text in _texts(layer)]
    upstream = next((status for text in texts if (status := announced(plain(text)))), None)
    for text in (*texts, _quoted_text(layers)):
        if len(text) > MAX_BODY:
            continue
        for before, found in quoted_objects(text):
            if not is_of_the_request(before):
                nested = list(_layers(found, _MAX_LISTED - 2))
                stated = (_status(layer.get(key)) for layer in nested for key in _STATUSES)
                return nested, next((status for status in stated if status), upstream)
    return [], upstream


def _texts(layer: Layer) -> Iterator[str]:
    for key in _TEXTS:
        text = layer.get(key)
        if isinstance(text, str) and text:
            yield text
    for key in _LISTED:
        listed = layer.get(key)
        if isinstance(listed, list):
            yield from (text for text in listed[:_MAX_LISTED] if isinstance(text, str) and text)


def _codes(layer: Layer) -> Iterator[str]:
    for key in _CODES:
        listed = layer.get(key)
        for value in listed[:_MAX_LISTED] if isinstance(listed, list) else (listed,):
            if isinstance(value, dict):
                yield from _codes({name: code for name, code in _named(value).items() if not isinstance(code, list)})
            elif isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= MAX_DETAIL:
                yield from _spellings(str(value))
    status = layer.get("statuscode")
    if "statusmsg" in layer and isinstance(status, int):
        yield str(status)


def _code_words(text: str) -> list[str]:
    """Return the codes that are the message, or that it begins with."""
    if _A_CODE.fullmatch(text):
        return [text]
    leading = _LEADING.match(text[:MAX_DETAIL])
    return [word for word in leading[1].replace(":", " ").split() if _A_CODE.fullmatch(word)] if leading else []


def _spellings(code: str) -> Iterator[str]:
    """Yield a code in lower case: whole, without its part after a colon, and with its words apart.

    Seen: `user_global_rate_limited:pro` (Copilot), `MonthlyQuotaExceeded`.
    """
    yield code.lower()
    yield code.partition(":")[0].lower()
    yield _CAPITAL.sub("_", code).lower().replace("-", "_")


def _read_times(layer: Layer, waits: list[float], ends: list[float]) -> None:
    """Add the times of the fields that state when to try again: to `waits` in seconds, to `ends` since 1970."""
    for name, value in layer.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str) or not _WAIT.fullmatch(name):
            continue
        text = f"{value:f}" if isinstance(value, float) else str(value)
        time = _values.time(_MONTH_NAMED.sub(_as_rfc_3339, text[:MAX_DETAIL]).encode("ascii", "replace"))
        if time is None:
            continue
        if time.form == "instant":
            ends.append(time.seconds)
        elif name == "estimatedtime" or not name.endswith(("at", "date", "time", "timestamp")):
            waits.append(time.seconds / 1000.0 if _MILLISECONDS.search(name) else time.seconds)


def _as_rfc_3339(written: re.Match[str]) -> str:
    year, month, day, clock, zone = written.groups()
    return f"{year}-{_MONTHS.index(month.lower()) // 3 + 1:02}-{day}T{clock}{zone[:3]}:{zone[3:]}"


def _quoted(layers: list[Layer]) -> tuple[tuple[bytes, bytes], ...]:
    for layer in layers:
        metadata = layer.get("metadata")
        headers = metadata.get("headers") if isinstance(metadata, dict) else None
        if isinstance(headers, dict):
            pairs = [(name, str(value)) for name, value in headers.items() if isinstance(value, str | int | float)]
            quoted = [(name.encode("ascii", "replace"), value.encode("ascii", "replace")) for name, value in pairs]
            return tuple(quoted[:MAX_DETAILS])
    return ()


def _quoted_text(layers: list[Layer]) -> str:
    """Return what a gateway quotes of its upstream's refusal (`error.metadata.raw` of OpenRouter and OpenCode)."""
    for layer in layers:
        metadata = layer.get("metadata")
        raw = metadata.get("raw") if isinstance(metadata, dict) else None
        if isinstance(raw, str):
            return raw[:MAX_TEXT]
    return ""


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isdecimal() and value.isascii():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599 else None
