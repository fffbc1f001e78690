"""Cohere: limits for each endpoint and model; only trial keys get headers about remaining quota.

Source: https://docs.cohere.com/docs/rate-limits and captures cohere-* (provider-facts.md section 18, read 2026-11-21).
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, MONTH
from tidegate.providers._schema import Charging, Endpoint, ErrorRow, HeaderRow, Provider

_LIMITS = "https://docs.cohere.com/docs/rate-limits (provider-facts.md section 18, read 2026-11-21)"
_429 = frozenset({429})

_FAMILIES = {
    "chat": ("/v1/chat", "/v2/chat", "/compatibility/v1/chat/completions"),
    "embed": ("/v1/embed", "/v2/embed", "/compatibility/v1/embeddings"),
    "rerank": ("/v1/rerank", "/v2/rerank"),
    "generate": ("/v1/generate",),
    "classify": ("/v1/classify",),
    "summarize": ("/v1/summarize",),
}

COHERE = Provider(
    name="cohere",
    source=f"{_LIMITS}; captures cohere-200-prod, cohere-429-trial-tokens",
    hosts=("api.cohere.com", "api.cohere.ai"),
    endpoints=tuple(Endpoint(path, family=family) for family, paths in _FAMILIES.items() for path in paths),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_LIMITS}: calls are counted; of tokens only a trial's embeddings (capture cohere-429-trial-tokens)",
    ),
    headers=(
        HeaderRow(
            name="trial-calls",
            label="requests",
            unit="requests",
            source="provider-facts.md section 18 (a rolling minute, absent on 429); a recorded answer of 2026-04-16",
            limit=("x-trial-endpoint-call-limit",),
            remaining=("x-trial-endpoint-call-remaining",),
            refill="fixed",
            window=60.0,
        ),
        HeaderRow(
            name="calls-month",
            label="requests",
            unit="requests",
            source=f"{_LIMITS}: calls a month of a trial; a recorded answer of 2026-04-16",
            limit=("x-endpoint-monthly-call-limit",),
            refill="fixed",
            window=MONTH,
        ),
    ),
    errors=(
        ErrorRow(
            name="trial_month",
            cause=Cause.MONEY,
            source=f"{_LIMITS}: 1,000 calls a month with a trial key, over all endpoints",
            status=_429,
            text=("api calls / month", "calls per month"),
        ),
        ErrorRow(
            name="too_many_tokens",
            cause=Cause.NEVER_FITS,
            source="capture cohere-400-too-many-tokens (2026-08-13): the model's context, not a rate",
            codes=frozenset({"too_many_tokens"}),
        ),
    ),
    common_errors=COMMON_ERRORS,
)
"""Table of Cohere's API."""
