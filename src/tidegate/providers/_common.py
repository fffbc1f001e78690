"""Error rows that every table ends with, in the order of comparison, and helpers for tables."""

from __future__ import annotations

from typing import Any, Literal

from tidegate.core.values import Cause, Refill, Unit
from tidegate.providers._schema import Bare, Charging, Endpoint, ErrorRow, HeaderRow

_RULES = "provider-facts.md section 0, rules 6, 7 and 10, read 2026-11-21"
_RFC = "https://www.rfc-editor.org/rfc/rfc9110#section-15 read 2026-11-21"
_DRAFT = "draft-ietf-httpapi-ratelimit-headers-03..10, read 2026-11-20 (provider-facts.md section 0)"

MINUTE, HOUR, DAY, MONTH = 60.0, 3600.0, 86400.0, 2592000.0
"""Windows in seconds; a month is 30 days."""

Part = Literal["limit", "remaining", "reset"]
PARTS: tuple[Part, ...] = ("limit", "remaining", "reset")


def quota(
    suffix: str,
    unit: Unit,
    source: str,
    *,
    name: str = "",
    window: float | None = None,
    refill: Refill = "continuous",
    bare: Bare = "fit",
    parts: tuple[Part, ...] = PARTS,
) -> HeaderRow:
    """Return the quota in the headers `x-ratelimit-{limit,remaining,reset}-<suffix>`, or in some of them (`parts`)."""
    limit, remaining, reset = ((f"x-ratelimit-{part}-{suffix}",) if part in parts else () for part in PARTS)
    return HeaderRow(
        name=name or suffix,
        unit=unit,
        source=source,
        limit=limit,
        remaining=remaining,
        reset=reset,
        window=window,
        refill=refill,
        bare=bare,
        label=unit if window is not None else "",
    )


def endpoints(base: str, *paths: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(f"{base}/{path}") for path in paths)


def at_admission(source: str) -> Charging:
    """Return the rule that a call is charged its input, and the mean output where output has a limit."""
    return Charging("input", "input", "mean", "nothing", source)


def up_to_the_bound(source: str, cache_reads_free: bool = False, **more: Any) -> Charging:
    """Return the rule that a call is charged its input and its own bound on output when it is admitted."""
    return Charging("input+max", "input", "mean", "nothing", source, cache_reads_free, **more)


def as_produced(source: str, cache_reads_free: bool = False) -> Charging:
    """Return the rule that output is charged as it is written."""
    return Charging("input", "input", "nothing", "mean", source, cache_reads_free)


IETF_ROW = HeaderRow(
    name="ratelimit",
    unit="requests",
    source=_DRAFT,
    dialect="ietf",
    refill="fixed",
    bare="seconds",
    limit=("ratelimit-limit",),
    remaining=("ratelimit-remaining",),
    reset=("ratelimit-reset",),
    combined=("ratelimit",),
    policy=("ratelimit-policy",),
)
"""Quota in the headers of the IETF draft, `RateLimit` and `RateLimit-Policy`, old and new."""

NEVER_FITS = ErrorRow(
    name="never_fits",
    cause=Cause.NEVER_FITS,
    source="captures groq-429-never-fits, groq-413-tpm; provider-facts.md rule 6",
    status=frozenset({413, 429}),
    exceeds=True,
)

INSUFFICIENT_QUOTA = ErrorRow(
    name="insufficient_quota",
    cause=Cause.MONEY,
    source="capture openai-429-insufficient_quota (OpenAI's shape, sent by its imitators too)",
    codes=frozenset({"insufficient_quota"}),
)

COMMON_ERRORS = (
    NEVER_FITS,
    INSUFFICIENT_QUOTA,
    ErrorRow(
        name="payment_required",
        cause=Cause.MONEY,
        source="captures deepseek-402, hf-402-credits; provider-facts.md rule 7",
        status=frozenset({402}),
    ),
    ErrorRow(
        name="rate_limit",
        cause=Cause.RATE,
        source="https://www.rfc-editor.org/rfc/rfc6585#section-4 read 2026-11-21",
        status=frozenset({429}),
    ),
    ErrorRow(
        name="overloaded_status",
        cause=Cause.OVERLOAD,
        source="https://platform.claude.com/docs/en/api/errors (provider-facts.md section 5, read 2026-10-04)",
        status=frozenset({529}),
    ),
    ErrorRow(
        name="unavailable_for_a_time",
        cause=Cause.OVERLOAD,
        source=f"{_RFC} (503 with Retry-After: expected to be over by then)",
        status=frozenset({503}),
        waits=True,
    ),
    ErrorRow(
        name="unavailable_code",
        cause=Cause.UNAVAILABLE,
        source="capture bedrock-503-ServiceUnavailable; provider-facts.md section 4 (status UNAVAILABLE)",
        codes=frozenset({"unavailable", "serviceunavailableexception"}),
    ),
    ErrorRow(
        name="unavailable",
        cause=Cause.UNAVAILABLE,
        source=f"{_RFC} (503: a temporary overload or scheduled maintenance), whatever the body is",
        status=frozenset({503}),
    ),
    ErrorRow(
        "auth", Cause.AUTH, f"{_RFC}; captures mistral-401, bedrock-403-expired", status=frozenset({401, 403, 407})
    ),
    ErrorRow(
        name="auth_code",
        cause=Cause.AUTH,
        source="https://platform.claude.com/docs/en/api/errors (provider-facts.md section 5, read 2026-10-04)",
        codes=frozenset({"authentication_error", "permission_error"}),
    ),
    ErrorRow("too_large", Cause.NEVER_FITS, f"{_RFC}; provider-facts.md rule 7", status=frozenset({413})),
    ErrorRow(
        name="outage",
        cause=Cause.OUTAGE,
        source=f"{_RFC}; openai-python and anthropic-sdk-python retry 408, 409 and 5xx (`_should_retry`)",
        status=frozenset({408, 409, 425, *range(500, 600)}),
    ),
    ErrorRow(
        name="invalid",
        cause=Cause.INVALID,
        source=f"{_RFC}; captures openai-400-with-headers, openai-404-with-headers",
        status=frozenset(range(400, 500)),
    ),
    ErrorRow(
        name="invalid_in_stream",
        cause=Cause.INVALID,
        source=_RULES,
        codes=frozenset({"invalid_request_error", "invalid_prompt", "not_found_error", "request_too_large"}),
    ),
)
"""Refusals that every provider may answer; a custom table ends with them."""
