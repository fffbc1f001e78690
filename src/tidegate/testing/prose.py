"""The words of refusals: Go's durations, "on tokens per min (TPM): Limit x, Used y, Requested z"."""

from __future__ import annotations

import math

from tidegate.testing.gate import Refusal
from tidegate.testing.limiters import DAY, SLACK, Reason

_SHORT = {1.0: "sec", 60.0: "min", 3600.0: "hour", DAY: "day"}
_LONG = {1.0: "second", 60.0: "minute", 3600.0: "hour", DAY: "day"}
_LETTER = {"requests": "R", "tokens": "T", "input_tokens": "IT", "output_tokens": "OT"}


def go_duration(seconds: float) -> str:
    """Seconds as Go writes a duration cut to milliseconds: `0s`, `6ms`, `8.64s`, `6m0s`, `2h47m48.417s`."""
    milliseconds = max(0, math.floor(seconds * 1000 * (1 + SLACK)))
    if milliseconds == 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    whole, thousandths = divmod(milliseconds, 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def openai_rate(refusal: Refusal, model: str, seconds: float | None) -> str:
    """The message of a rate, day or too-large refusal; `seconds` (None: nothing) is rounded up to milliseconds."""
    level = refusal.level
    counted = level.unit.replace("_", " ")
    per = f"{counted} per {_SHORT.get(level.window, f'{level.window:g}s')}"
    if level.window in _SHORT:
        per += f" ({_LETTER[level.unit]}P{_SHORT[level.window][0].upper()})"
    limit, requested = f"{level.limit:.0f}", math.ceil(refusal.requested)
    if refusal.reason is Reason.TOO_LARGE:
        return (
            f"Request too large for {model} in organization org-tidegate on {per}: Limit {limit}, Requested "
            f"{requested}. The input or output tokens must be reduced in order to run successfully."
        )
    message = (
        f"Rate limit reached for {model} in organization org-tidegate on {per}: Limit {limit}, "
        f"Used {math.ceil(max(0.0, refusal.used))}, Requested {requested}."
    )
    if seconds is not None:
        message += f" Please try again in {go_duration(math.ceil(seconds * 1000 * (1 - SLACK)) / 1000)}."
    return message + " Visit https://platform.openai.com/account/rate-limits to learn more."


def anthropic_rate(refusal: Refusal) -> str:
    """The message of a rate, day or too-large refusal: the limit with a comma for thousands, and no time."""
    level = refusal.level
    window = _LONG.get(level.window, f"{level.window:g} seconds")
    return (
        f"This request would exceed the rate limit for your organization (tidegate) of {level.limit:,.0f} "
        f"{level.unit.replace('_', ' ')} per {window}. For details, refer to: "
        "https://docs.claude.com/en/api/rate-limits. You can see the response headers for current usage."
    )
