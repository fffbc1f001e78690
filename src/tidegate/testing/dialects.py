"""Dialects of providers: the headers that announce limits, and the bodies of refusals.

Theory of operation. The functions are pure: they turn levels, refusals and the wall time into header pairs and JSON
values, as the real providers do.

- OpenAI's remaining is the floor of the level, and its reset the time to *full*, as a Go duration. Refusals read "on
  tokens per min (TPM): Limit x, Used y, Requested z".
- Anthropic's reset is an RFC 3339 instant cut to whole seconds. Its token counts are rounded to thousands.
- Gemini has everything in the body. `google.rpc.QuotaFailure` has the quota. `google.rpc.RetryInfo` has the time (whole
  seconds, rounded down), as has the message with decimals. Source: a capture of 2026-08-19.
- Bedrock never names a limit or a time. Sources: captures bedrock-429-too-many-tokens, bedrock-429-via-claude-code and
  bedrock-503-ServiceUnavailable; names and statuses are those of botocore's bedrock-runtime service-2.json.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from tidegate.testing.admission import Refusal
from tidegate.testing.limiters import DAY, SLACK, Level, Reason, Unit

_SHORT = {1.0: "sec", 60.0: "min", 3600.0: "hour", DAY: "day"}
_LONG = {1.0: "second", 60.0: "minute", 3600.0: "hour", DAY: "day"}
_LETTER = {"requests": "R", "tokens": "T", "input_tokens": "IT", "output_tokens": "OT"}


def go_duration(seconds: float) -> str:
    """Format seconds as Go does, cut to milliseconds: `0s`, `6ms`, `8.64s`, `6m0s`, `2h47m48.417s`."""
    milliseconds = max(0, math.floor(seconds * 1000 * (1 + SLACK)))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{minutes // 60}h{minutes % 60}m" if minutes >= 60 else f"{minutes}m" if minutes else ""
    return f"{text}{rest / 1000:g}s"


def _openai_rate(refusal: Refusal, telling: RefusalFacts) -> str:
    """Return the message of a rate, day or too-large refusal; a time is rounded up to ms."""
    level = refusal.level
    per = f"{level.unit.replace('_', ' ')} per {_SHORT.get(level.window, f'{level.window:g}s')}"
    if level.window in _SHORT:
        per += f" ({_LETTER[level.unit]}P{_SHORT[level.window][0].upper()})"
    where = f"for {telling.model} in organization org-tidegate on {per}: Limit {level.limit:.0f}"
    requested = math.ceil(refusal.requested)
    if refusal.reason is Reason.TOO_LARGE:
        must = "The input or output tokens must be reduced in order to run successfully."
        return f"Request too large {where}, Requested {requested}. {must}"
    used = math.ceil(max(0.0, refusal.used))
    message = f"Rate limit reached {where}, Used {used}, Requested {requested}."
    if telling.prose and telling.seconds is not None:
        message += f" Please try again in {go_duration(math.ceil(telling.seconds * 1000 * (1 - SLACK)) / 1000)}."
    return message + " Visit https://platform.openai.com/account/rate-limits to learn more."


def anthropic_rate(refusal: Refusal) -> str:
    """Return the message of a rate, day or too-large refusal: the limit with commas for thousands, and no time."""
    level = refusal.level
    window = _LONG.get(level.window, f"{level.window:g} seconds")
    return (
        f"This request would exceed the rate limit for your organization (tidegate) of {level.limit:,.0f} "
        f"{level.unit.replace('_', ' ')} per {window}. For details, refer to: "
        "https://docs.claude.com/en/api/rate-limits. You can see the response headers for current usage."
    )


TOO_MANY_TOKENS = "Too many tokens, please wait before trying again."

_BROKEN = {
    500: ("InternalServerException", "The system encountered an unexpected error during processing. Try your request."),
    503: ("ServiceUnavailableException", "The service isn't currently available."),
}

_RPC = "type.googleapis.com/google.rpc"
_EXCEEDED = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, "
    "head to: https://ai.google.dev/gemini-api/docs/rate-limits. To monitor your current usage, head to: "
    "https://ai.dev/rate-limit."
)
_SHARED = "Resource exhausted. Please try again later. Please refer to https://cloud.google.com/error-code-429."
_STATUS = {
    400: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PER = {60.0: "PerMinute", DAY: "PerDay"}


def _exceeded(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return a used-up quota; its time goes into `RetryInfo` and, with `prose`, into the message."""
    level, (model, seconds, prose) = refusal.level, telling
    value = "0" if refusal.reason is Reason.MONEY else f"{level.limit:.0f}"
    metric = "requests" if level.unit == "requests" else "input_token_count"
    metric = f"generativelanguage.googleapis.com/generate_content_paid_tier_{metric}"
    message = f"{_EXCEEDED} \n* Quota exceeded for metric: {metric}, limit: {value}, model: {model}"
    details: list[dict[str, Any]] = [
        {"@type": f"{_RPC}.Help", "links": [{"url": "https://ai.google.dev/gemini-api/docs/rate-limits"}]}
    ]
    violation = {"quotaMetric": metric, "quotaDimensions": {"model": model, "location": "global"}, "quotaValue": value}
    per = _PER.get(level.window)
    if per is not None:
        requests = f"GenerateRequests{per}PerProjectPerModel"
        tokens = f"GenerateContentPaidTierInputTokensPerModel{per}"
        violation["quotaId"] = requests if level.unit == "requests" else tokens
    details.append({"@type": f"{_RPC}.QuotaFailure", "violations": [violation]})
    if seconds is not None:
        details.append({"@type": f"{_RPC}.RetryInfo", "retryDelay": f"{math.floor(seconds)}s"})
        if prose:
            message += f"\nPlease retry in {seconds:.9f}s."
    return _gemini_error(429, message, details)


def _gemini_error(status: int, message: str, details: list[dict[str, Any]] | None = None) -> RefusalResponse:
    error = {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}
    return RefusalResponse(status, [], {"error": error | ({"details": details} if details else {})})


Headers = list[tuple[str, str]]

ABSURD = 31_536_000.0
"""Seconds of an absurd retry-after. Chosen: a year, far above `core.backoff.ABSURD_HINT_SECONDS`."""

FIXED = {"absurd": ABSURD, "one": 1.0, "minute": 60.0}
"""Seconds of a retry-after that is the same in every refusal."""

SLOPE_KIND = ("limit_burst_rate", "limit_burst_rate")
SLOPE = (
    "Request rate increased too quickly. To ensure system stability, please adjust your client logic to scale requests "
    "more smoothly over time."
)
"""Message of DashScope (OpenRouter passes it on)."""

ACCELERATION = (
    "This request would exceed your organization's acceleration limit: its usage has increased too sharply. "
    "Please ramp up your traffic gradually."
)
"""Message for acceleration limits, which Anthropic's documents name without quoting the refusal."""


class RefusalResponse(NamedTuple):
    """Response of a refusal; `body` is JSON, or text for the HTML page of a proxy that has lost its server."""

    status: int
    headers: Headers
    body: dict[str, Any] | str


class RefusalFacts(NamedTuple):
    """Facts of a refusal: the model's name and the seconds to wait (None: no time), in headers and in prose."""

    model: str
    seconds: float | None
    prose: bool


class Dialect(NamedTuple):
    """Two functions of a dialect: `headers(levels, wall, resets)` of any answer, and `refuse(refusal, telling)`."""

    headers: Callable[..., Headers]
    refuse: Callable[[Refusal, RefusalFacts], RefusalResponse]


def told(mode: str, seconds: float | None) -> float | None:
    """Return the seconds that a refusal states for a retry-after `exact`, `late`, `absurd`, `one`, `minute`, `none`."""
    if seconds is None or mode == "none":
        return None
    if mode in FIXED:
        return FIXED[mode]
    return seconds * 3 if mode == "late" else seconds


def _by_unit(levels: Sequence[Level]) -> dict[Unit, Level]:
    first: dict[Unit, Level] = {}
    for level in levels:
        first.setdefault(level.unit, level)
    return first


def floor_of(level: Level) -> int:
    """Return the remaining amount as it is announced: whole, and never negative."""
    return max(0, math.floor(level.remaining * (1 + SLACK)))


def _whole_seconds(seconds: float) -> str:
    return str(max(1, math.ceil(seconds * (1 - SLACK))))


def openai_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    rows: Headers = []
    for unit, level in _by_unit(levels).items():
        if unit in ("requests", "tokens"):
            rows.append((f"x-ratelimit-limit-{unit}", f"{level.limit:.0f}"))
            rows.append((f"x-ratelimit-remaining-{unit}", str(floor_of(level))))
            rows.append((f"x-ratelimit-reset-{unit}", go_duration(_reset_after(level, resets))))
    return rows


def _reset_after(level: Level, resets: Resets) -> float:
    return level.reset_after if resets == "own" else rounded(level.reset_after, resets)


def azure_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    """Return `x-ratelimit-{limit,remaining}-*`, as of 2025: no time."""
    return [(name, value) for name, value in openai_headers(levels, wall) if "-reset-" not in name]


def azure_renewal_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    """Add `renewalperiod-*` and `reset-*`, as of 2026, in seconds (reset in milliseconds in other deployments)."""
    rows = azure_headers(levels, wall)
    for unit, level in _by_unit(levels).items():
        if unit in ("requests", "tokens"):
            rows.append((f"x-ratelimit-renewalperiod-{unit}", f"{level.window:g}"))
            rows.append((f"x-ratelimit-reset-{unit}", f"{math.floor(_reset_after(level, resets))}"))
    return rows


def anthropic_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    """Return `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-*`; default tokens: input + output."""
    rows: Headers = []
    known = _by_unit(levels)
    if "tokens" not in known and "input_tokens" in known and "output_tokens" in known:
        into, out = known["input_tokens"], known["output_tokens"]
        reset, both = max(into.reset_after, out.reset_after), into.remaining + out.remaining
        limit = into.limit + out.limit
        known["tokens"] = dataclasses.replace(into, limit=limit, remaining=both, reset_after=reset)
    for unit, level in known.items():
        left = floor_of(level)
        if unit != "requests" and level.limit >= 10_000:
            left = round(left / 1000) * 1000
        prefix = f"anthropic-ratelimit-{unit.replace('_', '-')}"
        rows.append((f"{prefix}-limit", f"{level.limit:.0f}"))
        rows.append((f"{prefix}-remaining", str(left)))
        rows.append((f"{prefix}-reset", instant(wall + level.reset_after, resets)))
    return rows


def ietf_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    """Return the three fields of draft 03, for the limit with the least share left; reset in seconds."""
    if not levels:
        return []
    tight = min(levels, key=lambda level: level.remaining / level.limit)
    policies = ", ".join(f"{level.limit:.0f};w={level.window:g}" for level in levels)
    return [
        ("ratelimit-limit", f"{tight.limit:.0f}, {policies}"),
        ("ratelimit-remaining", str(floor_of(tight))),
        ("ratelimit-reset", str(math.ceil(_reset_after(tight, resets)))),
    ]


def no_headers(levels: Sequence[Level], wall: float, resets: Resets = "own") -> Headers:
    return []


def _retry_after(telling: RefusalFacts, *, milliseconds: bool) -> Headers:
    if telling.seconds is None:
        return []
    rows = [("retry-after", _whole_seconds(telling.seconds))]
    if milliseconds:
        rows.append(("retry-after-ms", str(math.ceil(telling.seconds * 1000 * (1 - SLACK)))))
    return rows


def _openai_error(message: str, kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def openai_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return OpenAI's errors: rate and day 429, `insufficient_quota`, "Request too large", and 5xx."""
    if refusal.reason is Reason.OUTAGE:
        return _broken(refusal.status or 503)
    if refusal.reason is Reason.MONEY:
        message = "You exceeded your current quota, please check your plan and billing details."
        return RefusalResponse(429, [], _openai_error(message, "insufficient_quota", "insufficient_quota"))
    if refusal.reason is Reason.SLOTS and refusal.status != 429:
        message = "The engine is currently overloaded, please try again later. The request queue is full."
        return RefusalResponse(
            refusal.status or 503, [], _openai_error(message, "server_error", "server_is_overloaded")
        )
    if refusal.reason is Reason.SLOTS:
        message = f"Too many concurrent requests: Limit {refusal.level.limit:.0f}."
        return RefusalResponse(429, [], _openai_error(message, "requests", "rate_limit_exceeded"))
    if refusal.reason is Reason.SLOPE:
        return RefusalResponse(429, _retry_after(telling, milliseconds=True), _openai_error(SLOPE, *SLOPE_KIND))
    kind = "requests" if refusal.level.unit == "requests" else "tokens"
    headers = [] if refusal.reason is Reason.TOO_LARGE else _retry_after(telling, milliseconds=True)
    return RefusalResponse(429, headers, _openai_error(_openai_rate(refusal, telling), kind, "rate_limit_exceeded"))


def _broken(status: int) -> RefusalResponse:
    names = {500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout"}
    name = names.get(status, "Overloaded")
    if status in (502, 504):
        return RefusalResponse(
            status, [], f"<html><head><title>{status} {name}</title></head><body>{name}</body></html>"
        )
    message = "The server had an error while processing your request." if status == 500 else f"{name}."
    return RefusalResponse(status, [], _openai_error(message, "server_error", None))


def azure_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return Azure's 429, which states the time in whole seconds; other errors are those of OpenAI."""
    if refusal.reason not in (Reason.RATE, Reason.DAY):
        return openai_refusal(refusal, telling)
    counted = "call" if refusal.level.unit == "requests" else "token"
    day = " per day" if refusal.reason is Reason.DAY else ""
    message = (
        "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded "
        f"{counted} rate limit{day} of your current OpenAI S0 pricing tier."
    )
    if telling.prose and telling.seconds is not None:
        message += f" Please retry after {_whole_seconds(telling.seconds)} seconds."
    headers = _retry_after(telling, milliseconds=True)
    return RefusalResponse(429, headers, {"error": {"code": "429", "message": message}})


def _anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def anthropic_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return Anthropic's errors; `overloaded_error` is for 529 and for slots, `api_error` for any other outage."""
    status = refusal.status or 503
    if refusal.reason is Reason.OUTAGE and status in (502, 504):
        return _broken(status)
    if refusal.reason is Reason.MONEY:
        message = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."
        return RefusalResponse(400, [("x-should-retry", "false")], _anthropic_error("invalid_request_error", message))
    if refusal.reason is Reason.SLOTS and status == 429:
        message = "Number of concurrent connections has exceeded your rate limit. Please try again later."
        return RefusalResponse(429, [], _anthropic_error("rate_limit_error", message))
    if refusal.reason in (Reason.OUTAGE, Reason.SLOTS):
        overloaded = status == 529 or refusal.reason is Reason.SLOTS
        error = ("overloaded_error", "Overloaded") if overloaded else ("api_error", "Internal server error")
        return RefusalResponse(status, [], _anthropic_error(*error))
    headers = [] if refusal.reason is Reason.TOO_LARGE else _retry_after(telling, milliseconds=False)
    message = ACCELERATION if refusal.reason is Reason.SLOPE else anthropic_rate(refusal)
    return RefusalResponse(429, headers, _anthropic_error("rate_limit_error", message))


def bedrock_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return Bedrock's errors: a header has their name, with the suffix that botocore cuts off after the colon."""
    if refusal.reason is Reason.OUTAGE and refusal.status in (502, 504):
        return _broken(refusal.status)
    counted = "requests" if refusal.level.unit == "requests" else "tokens"
    words = TOO_MANY_TOKENS.replace("tokens", f"{counted} per day" if refusal.reason is Reason.DAY else counted)
    status, name = 429, "ThrottlingException"
    if refusal.reason is Reason.OUTAGE:
        status = refusal.status or 503
        name, words = _BROKEN.get(status, _BROKEN[503])
    elif refusal.reason is Reason.MONEY:
        status, name, words = 403, "AccessDeniedException", "Model access is denied due to INVALID_PAYMENT_INSTRUMENT."
    elif refusal.reason is Reason.TOO_LARGE:
        status, name, words = 400, "ValidationException", "Input is too long for requested model."
    elif refusal.reason is Reason.SLOTS:
        words = "Too many connections, please wait before trying again."
        if refusal.status != 429:
            status, name = 503, "ServiceUnavailableException"
    kind = f"{name}:http://internal.amazon.com/coral/com.amazon.bedrock/"
    return RefusalResponse(status, [("x-amzn-errortype", kind)], {"message": words})


def gemini_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return Gemini's errors, which have everything in their details; a proxy's 502 is HTML."""
    if refusal.status == 502:
        return _broken(502)
    if refusal.reason is Reason.OUTAGE or (refusal.reason is Reason.SLOTS and refusal.status != 429):
        status = refusal.status or 503
        overloaded = "The model is overloaded. Please try again later."
        return _gemini_error(status, overloaded if status in (503, 529) else "An internal error has occurred.")
    if refusal.reason in (Reason.SLOTS, Reason.SLOPE):
        return _gemini_error(429, _SHARED)
    if refusal.reason is Reason.TOO_LARGE:
        message = (
            f"The input token count ({math.ceil(refusal.requested)}) exceeds the maximum number of tokens allowed "
            f"({refusal.level.limit:.0f})."
        )
        return _gemini_error(400, message)
    return _exceeded(refusal, telling)


def ietf_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return OpenAI's bodies with a `retry-after` in seconds, and no other time."""
    answer = openai_refusal(refusal, RefusalFacts(telling.model, telling.seconds, prose=False))
    return RefusalResponse(answer.status, [row for row in answer.headers if row[0] == "retry-after"], answer.body)


def silent_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return the status and a bare message: no header and no time anywhere."""
    if refusal.reason in (Reason.RATE, Reason.SLOPE, Reason.DAY):
        message = "Too Many Requests per day" if refusal.reason is Reason.DAY else "Too Many Requests"
        return RefusalResponse(429, [], {"error": {"message": message}})
    return openai_refusal(refusal, RefusalFacts(telling.model, None, prose=False))


def hinted_refusal(refusal: Refusal, telling: RefusalFacts) -> RefusalResponse:
    """Return the status and a bare message, with a `retry-after` in seconds."""
    answer = silent_refusal(refusal, telling)
    return RefusalResponse(answer.status, answer.headers + _retry_after(telling, milliseconds=False), answer.body)


DIALECT_TABLE: dict[str, Dialect] = {
    "openai": Dialect(openai_headers, openai_refusal),
    "azure": Dialect(azure_headers, azure_refusal),
    "azure-renewal": Dialect(azure_renewal_headers, azure_refusal),
    "anthropic": Dialect(anthropic_headers, anthropic_refusal),
    "bedrock": Dialect(no_headers, bedrock_refusal),
    "gemini": Dialect(no_headers, gemini_refusal),
    "ietf": Dialect(ietf_headers, ietf_refusal),
    "hint": Dialect(no_headers, hinted_refusal),
    "none": Dialect(no_headers, silent_refusal),
}


Resets = Literal["own", "exact", "ms", "ms-up", "seconds", "seconds-up"]

_STEPS: dict[Resets, float] = {"own": 1.0, "exact": 1e-6, "ms": 1e-3, "ms-up": 1e-3, "seconds": 1.0, "seconds-up": 1.0}
_DIGITS: dict[Resets, int] = {"exact": 6, "ms": 3, "ms-up": 3}
_TOLERANCE = 1e-6
"""Share of a step that a float may miss a multiple by."""


def rounded(seconds: float, resets: Resets) -> float:
    """Return `seconds` as a multiple of the step: cut, or rounded up if the name ends so."""
    step = _STEPS[resets]
    if resets == "exact":
        return round(seconds / step) * step
    if resets.endswith("up"):
        return math.ceil(seconds / step - _TOLERANCE) * step
    return math.floor(seconds / step + _TOLERANCE) * step


def instant(wall: float, resets: Resets) -> str:
    """Return a rounded instant as RFC 3339, with the digits of its step; `own` is cut to whole seconds."""
    if resets == "own":
        wall = math.floor(wall)
    digits = _DIGITS.get(resets, 0)
    micros = round(rounded(wall, resets) * 1e6)
    text = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{micros % 1_000_000:06d}"[: digits + 1] if digits else ""
    return f"{text}{fraction}Z"
