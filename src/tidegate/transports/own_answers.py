"""Answers that tidegate makes itself: for a call that waited too long, or has no price."""

from __future__ import annotations

from math import ceil
from typing import Any

from tidegate.admission.call import GovernedCall
from tidegate.core.exchange import ExchangeResult
from tidegate.core.safe_text import printable
from tidegate.core.values import Key

NO_RETRY = "x-should-retry"
"""Header. `false` stops the retries of the openai and anthropic SDKs (openai 3.52 `_should_retry`)."""

RETRY_AFTER = "retry-after"
"""Header with the whole seconds until the key opens, where they are known."""

WAITED, GATE, REASON = "x-tidegate-waited", "x-tidegate-gate", "x-tidegate-reason"
"""Headers of the answer to a call that is given up: the seconds that it waited, the gate (limiter of a key) that was
closed, and a sentence with both and until when."""

ERROR_TYPE = "x-amzn-errortype"
"""Amazon's header with the error's name."""

TOO_MANY_REQUESTS_STATUS = 429

MAX_RETRY_AFTER_SECONDS = 31_536_000.0
"""Most seconds of a `retry-after` that tidegate writes: a year, as of `Settings.max_wait`."""

RETRYABLE = frozenset({408, 409, 429}) | frozenset(range(500, 600))
"""Statuses that the openai and anthropic SDKs retry by themselves (openai 3.52 `_should_retry`)."""


def wait_headers(call: GovernedCall, ended: ExchangeResult, reason: str) -> dict[str, str]:
    """Return the headers that state how long the call waited, for what and why."""
    text = reason.replace(" · ", ", ").encode("ascii", "backslashreplace").decode()
    return {WAITED: f"{ended.waited:.1f}", GATE: ended.gate or call.gate or "none", REASON: text}


def without_price(key: Key, model: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return headers and JSON body for a call that was not sent because its price is unknown."""
    text = printable(
        f"tidegate: no request was sent: {model or 'the model'} at {key.provider} has no "
        "price, and the experiment has a budget in US dollars; tidegate.providers.register_price adds one."
    )
    error = {"message": text, "type": "tidegate_no_price", "param": None, "code": "no_price"}
    return {NO_RETRY: "false", "x-tidegate": "no-price"}, {"type": "error", "error": error}


def deadline_refusal(call: GovernedCall, ended: ExchangeResult) -> tuple[dict[str, str], dict[str, Any]]:
    """Return headers and JSON body of the 429 for a call whose time, or the life of its token, ended as it waited."""
    reason = ": ".join(filter(None, (ended.gate or "queue", call.registry.closing(call).cause)))
    text = (
        f"tidegate: no request was sent: {call.key} ({reason}) did not admit the call in time; "
        f"it waited {ended.waited:.1f} s of max_wait = {call.policy.max_wait:g} s; a longer max_wait waits longer."
    )
    if ended.opens_in is not None and ended.opens_in < MAX_RETRY_AFTER_SECONDS:
        text = (
            f"tidegate: no request was sent: {call.key} ({reason}) opens in {ended.opens_in:.1f} s; "
            f"the call waited {ended.waited:.1f} s of max_wait = {call.policy.max_wait:g} s."
        )
    text = call.reason_of(ended) if call.is_exiting else text
    if ended.attempt is not None:
        text = (
            f"tidegate: {call.key} rejected the token (status 401) of a call that waited {ended.waited:.1f} s, "
            "in which the token may have ended; the call may be repeated with a new one."
        )
    error = {"message": printable(text), "type": "tidegate_queue_deadline", "param": None, "code": "queue_deadline"}
    headers = {NO_RETRY: "false", "x-tidegate": "queue-deadline"}
    if ended.opens_in is not None and 0.0 < ended.opens_in < MAX_RETRY_AFTER_SECONDS:
        headers[RETRY_AFTER] = str(ceil(ended.opens_in))
    headers |= wait_headers(call, ended, call.reason_of(ended) or text)
    return headers, {"type": "error", "error": error}
