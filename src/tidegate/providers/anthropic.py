"""Anthropic: https://platform.claude.com/docs/en/api/rate-limits and /errors, and captured answers of 2024 to 2026."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import IETF_ROW, as_produced
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, HeaderRow, PlanWindow, Provider, SharedQuotas

_LIMITS = "https://platform.claude.com/docs/en/api/rate-limits read 2026-10-04 (provider-facts.md section 5)"
_ERRORS = "https://platform.claude.com/docs/en/api/errors read 2026-10-04 (provider-facts.md section 5)"


def _row(name: str, unit: Unit, quantum: float, *, compatible: bool = False) -> HeaderRow:
    """Return a row for a quota of one minute, in whole seconds, with token levels rounded to thousands.

    The window is declared because the reset contradicts it: capture anthropic-200-2024-haiku says 19 s for one request
    of 1,000 used. Rounding: capture anthropic-200-rounded-thousand.
    """
    prefix = f"anthropic-ratelimit-{name}"
    other = (
        ((f"x-ratelimit-{name}",), (f"x-ratelimit-remaining-{name}",), (f"x-ratelimit-reset-{name}",))
        if compatible
        else ((), (), ())
    )
    return HeaderRow(
        name=name,
        unit=unit,
        source=f"{_LIMITS}; captures anthropic-200-retry-after-55, anthropic-200-openai-compat",
        limit=(f"{prefix}-limit", *other[0]),
        remaining=(f"{prefix}-remaining", *other[1]),
        reset=(f"{prefix}-reset", *other[2]),
        window=60.0,
        bare="seconds",
        quantum=quantum,
    )


HEADERS = (
    _row("requests", "requests", 1.0, compatible=True),
    _row("tokens", "tokens", 1000.0, compatible=True),
    _row("input-tokens", "input_tokens", 1000.0),
    _row("output-tokens", "output_tokens", 1000.0),
)

_COMBINED = (
    "https://platform.claude.com/docs/en/api/rate-limits (one limit for all models of a class), as tabulated on "
    "https://www.developersdigest.tech/rate-limits/anthropic, read 2026-10-17"
)

_QUOTAS = tuple(row.name for row in HEADERS)

SHARED = (
    SharedQuotas(
        name="claude-opus-4",
        models=("claude-opus-4-5*", "claude-opus-4-6*", "claude-opus-4-7*", "claude-opus-4-8*"),
        quotas=_QUOTAS,
        source=f"{_COMBINED}: Opus 4.8, 4.7, 4.6 and 4.5 combined",
    ),
    SharedQuotas(
        name="claude-sonnet-4",
        models=("claude-sonnet-4-5*", "claude-sonnet-4-6*"),
        quotas=_QUOTAS,
        source=f"{_COMBINED}: Sonnet 4.6 and 4.5 combined",
    ),
)

_429 = frozenset({429})
_RATE = frozenset({"rate_limit_error"})
_STATUS = "anthropic-ratelimit-unified-status"

PLAN = PlanWindow(
    spent=_STATUS,
    full="rejected",
    reset="anthropic-ratelimit-unified-reset",
    source="capture anthropic-unified-200-2026 (seconds since 1970); https://github.com/router-for-me/CLIProxyAPI/pull/3148",
)

ERRORS = (
    ErrorRow(
        name="enforced_spend_limit_reached",
        cause=Cause.MONEY,
        source="capture anthropic-429-spend-cap (until the 1st of next month 00:00 UTC)",
        codes=frozenset({"enforced_spend_limit_reached"}),
    ),
    ErrorRow(
        name="long_context",
        cause=Cause.NEVER_FITS,
        source="https://github.com/openclaw/openclaw docs, gateway/troubleshooting (for 1M only), read 2026-11-23",
        status=_429,
        text=("extra usage is required for long context", "usage credits are required for long context"),
    ),
    ErrorRow(
        name="server_throttle",
        cause=Cause.OTHERS_CAPACITY,
        source="capture anthropic-429-rate-limited-transient (claude-code issue 71670); teamclaude issue 165 (Error)",
        status=_429,
        codes=_RATE,
        text=("rate limited", "error"),
        whole=True,
        without=(_STATUS,),
    ),
    ErrorRow(
        name="overloaded_error",
        cause=Cause.OVERLOAD,
        source="capture anthropic-529; also in a stream, after 200",
        codes=frozenset({"overloaded_error"}),
    ),
    ErrorRow(
        "request_too_large", Cause.NEVER_FITS, _ERRORS, status=frozenset({413}), codes=frozenset({"request_too_large"})
    ),
)

ANTHROPIC = Provider(
    name="anthropic",
    source=f"{_LIMITS}; anthropic-sdk-python 2.11",
    hosts=("api.anthropic.com",),
    endpoints=(Endpoint("/v1/messages"), Endpoint("/v1/complete"), Endpoint("/v1/chat/completions")),
    credential=("x-api-key", "authorization"),
    charging=as_produced(
        f"{_LIMITS}: OTPM counts what is produced, max_tokens does not matter; cache reads are free",
        cache_reads_free=True,
    ),
    headers=HEADERS,
    errors=ERRORS,
    shared=SHARED,
    plans=(PLAN,),
    image_chars=6400,  # 1,600 tokens, the largest picture: docs/en/build-with-claude/vision [unv], at 4 characters
)
"""Table of Anthropic's own API."""

ANTHROPIC_COMPATIBLE = replace(
    ANTHROPIC,
    name="anthropic-compatible",
    source=f"{_LIMITS}; any server that speaks /v1/messages (capture anthropic-gateway-200-retry-after)",
    hosts=(),
    endpoints=tuple(Endpoint(f"**/{path}") for path in ("messages", "v1/complete", "chat/completions")),
    headers=(*HEADERS, IETF_ROW),
    shared=(),  # a gateway's limits are its own
    closed=("threads", "batches", "organizations"),
)
"""Table of any other server that speaks Anthropic's messages."""
