"""OpenRouter: https://openrouter.ai/docs/api-reference/limits, and the refusals that its users report.

Good answers carry no limits. A refusal quotes headers in its body. Refusals of an upstream provider are passed on; they
do not concern the caller's quota. All models whose name ends in `:free` share the account's quota of free requests.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, DAY, MINUTE, endpoints
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider

_SURVEY = "provider-facts.md section 18 (OpenRouter), read 2026-11-21"
_429 = frozenset({429})

HEADERS = (
    HeaderRow(
        name="requests",
        unit="requests",
        source=f"capture openrouter-429-free-day; {_SURVEY}: the reset in milliseconds since 1970",
        limit=("x-ratelimit-limit",),
        remaining=("x-ratelimit-remaining",),
        reset=("x-ratelimit-reset",),
        refill="fixed",
    ),
)

ERRORS = (
    ErrorRow(
        name="slope",
        cause=Cause.SLOPE,
        source="capture openrouter-alibaba-burst (paperclip issue 2885)",
        text=("request rate increased too quickly",),
    ),
    ErrorRow(
        "credits", Cause.MONEY, f"{_SURVEY}: limit_source openrouter_credits", codes=frozenset({"openrouter_credits"})
    ),
    ErrorRow(
        name="free_per_day",
        cause=Cause.DAY,
        source="capture openrouter-429-free-day (openclaude issue 936)",
        status=_429,
        text=("free-models-per-day",),
        window=DAY,
    ),
    ErrorRow(
        name="free_per_minute",
        cause=Cause.RATE,
        source=f"{_SURVEY}: 20 a minute; the words as in capture openrouter-429-free-day [inf]",
        status=_429,
        text=("free-models-per-min",),
        window=MINUTE,
    ),
    ErrorRow(
        name="upstream_code",
        cause=Cause.OTHERS_CAPACITY,
        source=f"{_SURVEY}: limit_source upstream_provider_shared_pool",
        codes=frozenset({"upstream_provider_shared_pool"}),
    ),
    ErrorRow(
        name="upstream",
        cause=Cause.OTHERS_CAPACITY,
        source=f"{_SURVEY}: an upstream's 429, with its name; capture openrouter-alibaba-burst (Upstream error)",
        status=_429,
        text=("provider returned error", "upstream error", "rate-limited upstream"),
    ),
)

OPENROUTER = Provider(
    name="openrouter",
    source=_SURVEY,
    hosts=("openrouter.ai",),
    endpoints=endpoints("/api/v1", "chat/completions", "completions", "responses", "embeddings", "messages"),
    credential=("authorization", "x-api-key"),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_SURVEY}: requests and credits are limited, tokens are not, so nothing is paced by this",
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
    pooled=(":free",),
    body_headers=True,
)
