"""Perplexity: https://docs.perplexity.ai/docs/admin/rate-limits-usage-tiers: a leaky bucket, in no header.

Models, agents and the search have separate limits.
"""

from __future__ import annotations

from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, Endpoint, Provider

_DOCS = "https://docs.perplexity.ai/docs/admin/rate-limits-usage-tiers read 2026-11-21 (provider-facts.md section 18)"

PERPLEXITY = Provider(
    name="perplexity",
    source=_DOCS,
    hosts=("api.perplexity.ai",),
    endpoints=(
        *endpoints("", "chat/completions", "v1/chat/completions", "v1/embeddings"),
        Endpoint("/async/chat/completions", family="async"),
        *(Endpoint(path, family="agent") for path in ("/v1/responses", "/responses", "/v1/agent")),
        Endpoint("/search", family="search"),
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_DOCS}: requests are limited, tokens are not, so nothing is paced by this",
    ),
    headers=(),
    common_errors=COMMON_ERRORS,
)
