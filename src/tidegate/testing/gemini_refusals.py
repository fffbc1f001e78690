"""The refusals of Gemini: all of it in the body, nothing in headers.

The violated quota stands in `google.rpc.QuotaFailure`, the time in `google.rpc.RetryInfo` (whole seconds, rounded down)
and, with its decimals, in the message: as a capture of 2026-08-19 has them.
"""

from __future__ import annotations

import math
from typing import Any

from tidegate.testing.gate import Refusal
from tidegate.testing.limiters import DAY, Reason

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


def gemini_error(refusal: Refusal, model: str, seconds: float | None, prose: bool) -> tuple[int, dict[str, Any]]:
    """Status and body; `seconds` (None: nothing) go into `RetryInfo` and, with `prose`, into the message."""
    if refusal.reason is Reason.OUTAGE or (refusal.reason is Reason.SLOTS and refusal.status != 429):
        status = refusal.status or 503
        overloaded = "The model is overloaded. Please try again later."
        return status, _body(status, overloaded if status in (503, 529) else "An internal error has occurred.")
    if refusal.reason in (Reason.SLOTS, Reason.SLOPE):
        return 429, _body(429, _SHARED)
    if refusal.reason is Reason.TOO_LARGE:
        message = (
            f"The input token count ({math.ceil(refusal.requested)}) exceeds the maximum number of tokens allowed "
            f"({refusal.level.limit:.0f})."
        )
        return 400, _body(400, message)
    return 429, _exceeded(refusal, model, seconds, prose)


def _exceeded(refusal: Refusal, model: str, seconds: float | None, prose: bool) -> dict[str, Any]:
    level = refusal.level
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
    return _body(429, message, details)


def _body(status: int, message: str, details: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    error = {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}
    return {"error": error | ({"details": details} if details else {})}
