"""The outcome of an attempt, from its status, headers and body. Pure; never raises.

Theory of operation. `judge` reads the quota headers of every answer, and the usage of a good one, without parsing its
body. Of a refusal it collects the evidence in headers, body and message; `refusal_meaning` decides what it means.
`judge_event` does the same for a failure inside a stream. `concerns_key` tells a rejection of the key from one of a
single request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from math import ceil

from tidegate.core.safe_text import lazy_pattern
from tidegate.core.values import REFUSED, TERMINAL, Cause, Kind, Outcome, QuotaReading, Unit
from tidegate.providers import _values
from tidegate.providers._headers import Found, gather, noted, origin, read_found, row_at
from tidegate.providers._schema import CODE, KINDS, RETRY_AFTER, RETRY_AFTER_MS, SPECIAL, WAIT, HeaderRow, Provider
from tidegate.providers._usage import has_content, usage_of
from tidegate.providers._values import window_name
from tidegate.providers.refusal_body import (
    MAX_BODY,
    NOTHING,
    REFUSING,
    RELAYING,
    RefusalDetails,
    parsed,
    refusal_in,
    refusal_of,
)
from tidegate.providers.refusal_limits import Prose, read_prose
from tidegate.providers.refusal_meaning import INVALID, Evidence, meaning_of, unquoted

_PROSE_STATUSES = frozenset({413, 429, 503, 529})

_THROWN = re.compile(rb":exception-type\x07[\x00-\x01].([A-Za-z]{1,64})", re.DOTALL)
"""A header of Amazon's event stream: a name, type 7 (text), its length in two bytes, the text."""

_PAYLOAD = re.compile(rb"\{[^{}]{0,4096}\}")

_REFUSED = re.compile(rb'"(?:status_code|error_code|code)"\s*:\s*"?[1-9]')
"""Code of a refusal in `base_resp` or at the top: a good answer has 0 there, or none."""

_CONTENT = frozenset({
    "choices", "content", "output", "outputs", "text", "answer", "candidates", "data", "result", "results", "embedding",
    "embeddings", "completion", "response", "message", "image", "images", "audio", "task_id",
})  # fmt: skip
"""Fields of a good answer, in any case, beside which no code is a refusal: it may have been paid."""

_GOOD_CODES = frozenset({"", "200", "201", "202", "20000", "success", "ok", "none", "false"})
"""Codes of good answers, without leading zeros."""

_UNLIKE = re.compile(rb'"Error"|"success"\s{0,4}:\s{0,4}false')
"""Marks of a refusal in a good answer that has no `error`."""

ANSWERED_STATUS = 200
"""HTTP status of an answer that holds a refusal."""

_NULL_ERRORS = (b'"error":null', b'"error": null')


def judge(
    provider: Provider, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None, now_on: datetime
) -> Outcome:
    """Return the outcome of an answer, with the quotas and usage in it. Never raise.

    `headers` are the raw pairs in any case; `body` may be None. `now_on` is timezone-aware, and used if the answer has
    no `date`. On a good answer (below 400) `retry-after` is ignored (provider-facts.md rule 1) and usage is read from
    the body.
    """
    found = gather(provider, headers)
    readings, ignored = read_found(provider, found, now_on) if found else ([], 0)
    if status < 400:
        usage = usage_of(provider, body) if body else None
        return Outcome(Kind.OK, Cause.NONE, None, tuple(readings), usage, "", status, ignored)
    refusal = refusal_of(body)
    if provider.body_headers and refusal.headers:
        found = gather(provider, refusal.headers, found)
        readings, ignored = read_found(provider, found, now_on)
    readings = _with_reset(readings)
    named, unusable = _header_wait(found, now_on)
    codes = refusal.codes | _header_codes(found)
    # A gateway relays its upstream's refusal with a status of its own.
    meant = refusal.upstream if refusal.upstream in REFUSING and status in RELAYING else status
    refusal, prose = _without_echo(refusal._replace(codes=codes), meant)
    rejected, until = _plan(provider, found, now_on)
    if until is not None:
        named = max(named or 0.0, until)
    wait = _first(named, _said(refusal, prose, found, now_on), _reset_wait(provider, found, readings))
    full = Evidence(refusal._replace(wait=wait, status=meant), tuple(readings), found, prose, rejected)
    if meant not in _PROSE_STATUSES:
        # Only a quota's refusal is worth waiting for, and it names its limit; an invalid request's words name another.
        brief = full.refusal._replace(wait=_first(named, refusal.wait))
        outcome = _outcome(provider, full._replace(refusal=brief, prose=Prose()), ignored + unusable, status)
        if outcome.kind not in REFUSED:
            return outcome
    return _outcome(provider, full, ignored + unusable, status)


def _with_reset(readings: list[QuotaReading]) -> list[QuotaReading]:
    """Return the readings with a reset that names no quota given to the one that it ends.

    Kong sends one `ratelimit-reset` for several windows; it ends the shortest window at zero that is as long.
    """
    bare = [r for r in readings if r.reset_after and r.limit is None and r.remaining is None and r.window is None]
    if len(bare) != 1:
        return readings
    reset = bare[0].reset_after or 0.0
    ended = [r for r in readings if r.remaining == 0 and r.reset_after is None and (r.window or 0.0) >= reset]
    shortest = min(ended, key=lambda r: r.window or 0.0, default=None)
    if shortest is None:
        return readings
    given = shortest._replace(reset_after=reset, resolution=bare[0].resolution)
    return [given if r is shortest else r for r in readings if r is not bare[0]]


def _without_echo(refusal: RefusalDetails, status: int | None) -> tuple[RefusalDetails, Prose]:
    """Return the refusal without what an ordinary error quotes of the request, and the facts in its message."""
    refusal = refusal._replace(text=unquoted(status, refusal.text), words=unquoted(status, refusal.words))
    return refusal, read_prose(refusal.text, refusal.codes)


def _first(*waits: float | None) -> float | None:
    return next((wait for wait in waits if wait is not None), None)


def _said(refusal: RefusalDetails, prose: Prose, found: Found, now_on: datetime) -> float | None:
    """Return the wait in a field of the body, else in the message, as a span or as an instant."""
    wait = _body_wait(refusal.wait, prose.wait)
    until = _first(refusal.until, prose.until)
    return wait if wait is not None or until is None else _left(until, found, now_on)


def _left(until: float, found: Found, now_on: datetime) -> float | None:
    """Return the seconds until an instant, 0 after it; None if it is too far away to be believed."""
    left = max(0.0, until - origin(found, now_on)[0])
    return left if left <= _values.MAX_SECONDS else None


def _plan(provider: Provider, found: Found, now_on: datetime) -> tuple[bool, float | None]:
    """Return whether a plan's headers say that it is used up, and the longest wait of the windows that are."""
    rejected, waits = False, []
    for plan in provider.plans:
        spent = noted(provider, found, plan.spent)
        if spent is None or not plan.is_used_up(spent):
            continue
        rejected = True
        reset = _values.time(noted(provider, found, plan.reset) or b"")
        if reset is not None:
            waits.append(_left(reset.seconds, found, now_on) if reset.form == "instant" else reset.seconds)
    return rejected, max((wait for wait in waits if wait is not None), default=None)


def judge_event(provider: Provider, chunk: bytes, whole: bool = False) -> Outcome | None:
    """Return the failure in a chunk of a good stream, or None. Quick if there is none; never raise.

    `chunk` should hold whole lines: server-sent events (`data: {…}`) or JSON lines. It may also hold whole messages of
    Amazon's event stream, whose exceptions name their type in a header. Text of a model cannot match: JSON escapes its
    quotes, and only top-level fields of a parsed event count. A `whole` answer is one JSON document, and no event.
    """
    thrown = _thrown(chunk) if b":exception-type" in chunk else None
    if thrown is not None:
        return _failure(provider, thrown, None)
    native = b'"base_resp"' in chunk or b'"msg"' in chunk
    # Bare words first: each chunk of a stream passes here, and a search for a quote stops at every field.
    unlike = (b"Error" in chunk or b"success" in chunk) and _UNLIKE.search(chunk) is not None
    if not native and not unlike and b"error" not in chunk:
        return None
    native = ((native or b'"error_code"' in chunk) and _REFUSED.search(chunk) is not None) or unlike
    named = b"event: error" in chunk or b"event:error" in chunk
    if not native and not named and b'"error"' not in chunk:
        return None
    for line, failing in ((chunk, False),) if whole else _event_lines(chunk):
        refused, sure = _refused_with_200(line) if native else (None, False)
        if refused is not None:
            # An unknown code is no outage: the server has answered.
            failure = _failure(provider, refused, ANSWERED_STATUS)._replace(status=None)
            if sure or failure.kind in REFUSED:
                return failure
        refusal = _event_refusal(line, failing)
        if refusal is not None:
            return _failure(provider, refusal, None)
    return None


def _failure(provider: Provider, refusal: RefusalDetails, status: int | None) -> Outcome:
    """Return the outcome of a refusal that came with a good status."""
    refusal = refusal._replace(status=refusal.status or (refusal.upstream if refusal.upstream in REFUSING else None))
    refusal, prose = _without_echo(refusal, refusal.status)
    # A wait that only the message of an invalid request names may be an echo of the caller's text.
    said = None if refusal.status == INVALID else prose.wait
    refusal = refusal._replace(wait=_body_wait(refusal.wait, said))
    return _outcome(provider, Evidence(refusal, prose=prose, in_stream=status is None), 0, status)


def _thrown(chunk: bytes) -> RefusalDetails | None:
    """Return the exception in a message of Amazon's event stream. Its JSON is between headers and checksum."""
    name = _THROWN.search(chunk)
    if name is None:
        return None
    payload = _PAYLOAD.search(chunk, name.end())
    refusal = refusal_in(parsed(payload[0])) if payload is not None else NOTHING
    return refusal._replace(codes=frozenset({name[1].lower().decode("ascii")}))


def _event_lines(chunk: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the JSON texts of a chunk, each with whether its event is named `error`. A JSON document may span lines."""
    whole = chunk.strip(b" \t\r\n,[]")
    if whole[:1] == b"{" and whole[-1:] == b"}" and b"\n" in whole and len(whole) <= MAX_BODY:
        yield whole, False
        if parsed(whole) is not None:
            return
    failing = False
    for line in chunk.splitlines():
        if line.startswith(b"event:"):
            failing = line[6:].strip() == b"error"
        elif line.startswith(b"data:"):
            yield line[5:], failing
        elif line.startswith(b"{"):
            yield line, failing
        elif not line:
            failing = False


def _refused_with_200(line: bytes) -> tuple[RefusalDetails | None, bool]:
    """Return the refusal that a service puts into a good answer or event, and whether it surely is one.

    MiniMax has it in `base_resp`, Baidu in `error_code` and `error_msg` or `code` and `msg`, Tencent in
    `Response.Error`, Volcengine in `ResponseMetadata.Error`. Others have `success: false` beside a code.
    """
    document = parsed(line) if len(line) <= MAX_BODY else None
    if not isinstance(document, dict):
        return None, False
    for name in ("Response", "ResponseMetadata"):
        holder = document.get(name)
        if isinstance(holder, dict) and isinstance(holder.get("Error"), dict):
            refused = _states(holder["Error"]) and not _answers({**document, **holder, name: None})
            return (refusal_in({name: {"Error": holder["Error"]}}) if refused else None), refused
    if _answers(document):
        return None, False
    found = document.get("base_resp")
    if isinstance(found, dict) and isinstance(found.get("status_code"), int) and _states(found["status_code"]):
        return refusal_in({"base_resp": found}), True
    if document.get("success") is False and any(_states(document.get(name)) for name in ("code", "error", "errors")):
        return refusal_in(document), True
    code = document.get("error_code")
    if isinstance(code, int | str) and _states(code):
        return refusal_in(document), True
    # A good answer may have a code and a message too: its words must state a refusal, which no part of it caused.
    stated = isinstance(document.get("msg"), str) and _states(document.get("code")) and not document.get("errors")
    return (refusal_in(document) if stated else None), False


def _answers(document: dict[str, object]) -> bool:
    """Return whether a document holds anything of an answer. A usage of zero and a message of words are nothing."""
    usage, message = document.get("usage"), document.get("message")
    if isinstance(usage, dict) and any(isinstance(number, int) and number > 0 for number in usage.values()):
        return True
    held = {**document, "message": message if isinstance(message, dict) else None}
    return any(value and name.lower() in _CONTENT for name, value in held.items())


def _states(error: object) -> bool:
    """Return whether a code or an error states a failure. The code of a good answer and an empty object do not."""
    if isinstance(error, str | int):
        return str(error).lower().lstrip("0") not in _GOOD_CODES
    if not isinstance(error, dict):
        return bool(error)
    code = error.get("code", error.get("Code"))
    if code not in (None, "") and not _states(code):
        return False
    return any(bool(value) if isinstance(value, dict) else _states(value) for value in error.values())


def _event_refusal(line: bytes, failing: bool) -> RefusalDetails | None:
    if not failing:
        for null in _NULL_ERRORS:
            line = line.replace(null, b"")
        if b'"error"' not in line:
            return None
    if len(line) > MAX_BODY:
        return NOTHING if failing else None
    document = parsed(line)
    if not isinstance(document, dict):
        return refusal_of(line) if failing else None
    kind, error = document.get("type"), document.get("error")
    if failing or kind in ("error", "response.failed"):
        return refusal_in(document)
    # An error beside a text is that of a part, or of a provider that a gateway asked first.
    return refusal_in(document) if _states(error) and not (_answers(document) and has_content(line)) else None


def _outcome(provider: Provider, evidence: Evidence, ignored: int, status: int | None) -> Outcome:
    readings = list(evidence.readings)
    stated = _prose_reading(provider, evidence.prose, readings)
    readings += [stated] if stated is not None else []
    for quota in evidence.refusal.exceeded:
        reading = quota.reading()
        if reading is None or any(reading.name == other.name for other in readings):
            continue
        if all((reading.unit, reading.window) != (other.unit, other.window) for other in readings):
            readings.append(reading)
    meaning = meaning_of(provider, evidence._replace(readings=tuple(readings)))
    if meaning.window is not None:
        readings = [_over(reading, meaning.window) for reading in readings]
    kind, wait = KINDS[meaning.cause], evidence.refusal.wait
    if kind is Kind.DAILY_LIMIT and wait is None:
        # The key stays closed until the wait ends, and its mirrors forget a day's reset with the refusal.
        wait = max((r.reset_after for r in readings if r.reset_after and _is_empty(r)), default=None)
    return Outcome(kind, meaning.cause, wait, tuple(readings), None, meaning.label, status, ignored)


def _over(reading: QuotaReading, window: float) -> QuotaReading:
    """Return the reading with `window` seconds if its own header states no window."""
    if reading.window is not None:
        return reading
    return reading._replace(name=f"{reading.name}-{window_name(window)}", window=window)


def _header_wait(found: Found, now_on: datetime) -> tuple[float | None, int]:
    """Return the largest wait in the headers (provider-facts.md rule 9: `retry-after: 1` beside `retry-after-ms: 0`).

    A `retry-after` that is the rounded-up `retry-after-ms` gives way to the exact value.
    """
    cells = found.get(SPECIAL)
    if cells is None:
        return None, 0
    now = origin(found, now_on)[0] if cells[RETRY_AFTER] is not None else 0.0
    milliseconds = _values.amount(cells[RETRY_AFTER_MS])
    exact = milliseconds / 1000.0 if milliseconds is not None and milliseconds <= 1000 * _values.MAX_SECONDS else None
    whole = _values.retry_after(cells[RETRY_AFTER], now)
    waits = (whole, exact, _values.seconds(cells[WAIT]))
    sent = sum(cells[place] is not None for place in (RETRY_AFTER, RETRY_AFTER_MS, WAIT))
    usable = [wait for wait in waits if wait is not None]
    if exact and whole == ceil(exact):
        return exact, sent - len(usable)
    return (max(usable) if usable else None), sent - len(usable)


def _body_wait(written: float | None, said: float | None) -> float | None:
    """Return the wait in a field of the body, else in the message.

    A field that is the message's wait cut to a second gives way to the message. Capture gemini-429-paid-per-minute:
    `retryDelay` 48s, "Please retry in 48.939935699s".
    """
    if written is None or (said is not None and written < said < written + 1.0):
        return said
    return written


def _header_codes(found: Found) -> frozenset[str]:
    cells = found.get(SPECIAL)
    raw = cells[CODE] if cells is not None else None
    if raw is None:
        return frozenset()
    return frozenset({raw[:128].partition(b":")[0].strip().lower().decode("ascii", "ignore")})


def _reset_wait(provider: Provider, found: Found, readings: list[QuotaReading]) -> float | None:
    rows = [row_at(provider, index) for index in found if index >= 0]
    names = {row.name for row in rows if row.reset_waits}
    waits = [r.reset_after for r in readings if r.name in names and r.reset_after is not None]
    empty = [r for r in readings if r.remaining == 0]
    if len(empty) == 1 and _is_empty(empty[0]) and empty[0].reset_after:
        waits.append(empty[0].reset_after)
    return max(waits) if waits else None


def _is_empty(reading: QuotaReading) -> bool:
    """Return whether the quota is used up until its reset, while a continuous one has room before it."""
    return reading.refill == "fixed" and reading.remaining == 0


def _prose_reading(provider: Provider, prose: Prose, readings: list[QuotaReading]) -> QuotaReading | None:
    """Return the limit in the message as a reading, named after the header row for the same quota, if any."""
    if prose.limit is None or prose.unit is None or prose.limit <= 0:
        return None
    if any(r.unit == prose.unit and r.limit == prose.limit for r in readings):
        return None
    window = prose.window or None
    name = prose.unit.replace("_", "-")
    if window is not None:
        same = (row.name for row in provider.headers if _counts(row, prose.unit, window, provider))
        name = next(same, f"{name}-{window_name(window)}")
    if any(reading.name == name for reading in readings):
        return None
    return QuotaReading(name, prose.unit, "continuous", prose.limit, None, None, window)


def _counts(row: HeaderRow, unit: Unit, window: float, provider: Provider) -> bool:
    """Return whether the row is that quota. Undeclared request rows may count days (provider-facts.md rule 2)."""
    assumed = provider.default_window if row.window is None and unit != "requests" else row.window
    return row.unit == unit and assumed == window


UNAUTHENTICATED = 401

AUTHENTICATION = frozenset(
    {
        "authenticationerror",
        "incorrectapikey",
        "invalidapikey",
        "invalidauthentication",
        "invalidauthenticationerror",
        "invalidtoken",
        "unauthenticated",
        "unauthorized",
    }
)
"""Codes, without punctuation, by which providers report a wrong credential.

OpenAI: `invalid_api_key`; Anthropic: `authentication_error`; Google: `UNAUTHENTICATED`; DashScope: `InvalidApiKey`;
Moonshot: `invalid_authentication_error` (provider-facts.md sections 1, 4, 5 and 9).
"""

OF_ONE_REQUEST = lazy_pattern(r"(?s)tokens?\b.*\d|\d.*tokens?\b")
"""A lack of money that is stated as a number of tokens is that of one request: a smaller one may pass.

OpenRouter's 402: "can only afford 1200 ... fewer max_tokens", "Prompt tokens limit exceeded: 230799 > 91442".
"""

EXPIRED = "expired"
"""Word in a 401 about a token whose time is over: the next call of the same account will carry another one."""


def concerns_key(outcome: Outcome, body: bytes | None) -> bool:
    """Return whether a rejection holds for its key; False where it concerns one request, or is unclear."""
    if outcome.status is None or not body or len(body) > MAX_BODY or outcome.kind not in TERMINAL:
        return False
    document = parsed(body)
    error = document[0] if isinstance(document, list) and document else document
    refusal = refusal_in(error) if isinstance(error, dict) else None
    if refusal is None or not refusal.text:
        return False
    if outcome.kind is not Kind.PERMANENT:
        return outcome.kind is not Kind.QUOTA_EXHAUSTED or not OF_ONE_REQUEST.search(refusal.text)
    named = {_plain(code) for code in refusal.codes}
    expired = EXPIRED in refusal.text or any(EXPIRED in code for code in named)
    known = outcome.status == UNAUTHENTICATED and not named.isdisjoint(AUTHENTICATION)
    return outcome.cause is Cause.AUTH and known and not expired


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
