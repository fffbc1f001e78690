"""Hugging Face's inference router, which passes on the answers of the chosen provider.

https://huggingface.co/docs/inference-providers; the Hub's own limits, in the IETF's fields, are documented in
huggingface/hub-docs docs/hub/rate-limits.md (2025-09).
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, HOUR, endpoints
from tidegate.providers._schema import Endpoint, ErrorRow, Provider
from tidegate.providers.compatible import COMPATIBLE

_SURVEY = "provider-facts.md section 18 (Hugging Face), read 2026-11-21"

ERRORS = (
    ErrorRow(
        name="free_per_hour",
        cause=Cause.RATE,
        source="capture hf-legacy-hourly (reset hourly)",
        status=frozenset({429}),
        text=("free usage limit",),
        window=HOUR,
    ),
    *COMPATIBLE.errors,
)

_PATHS = ("chat/completions", "completions", "responses", "embeddings", "images/generations")

HUGGING_FACE = Provider(
    name="huggingface",
    source=f"{_SURVEY}; captures hf-router-cerebras-int64, hf-router-together-200-retry-after",
    hosts=("router.huggingface.co", "api-inference.huggingface.co"),
    endpoints=(
        *endpoints("/v1", *_PATHS),
        *endpoints("/{family}/v1", *_PATHS),
        *endpoints("/{family}/models/{}/{model}/v1", *_PATHS),
        *endpoints("/{family}/{}/{}", *_PATHS),  # the upstream's own base path: `/groq/openai/v1` [unv]
        Endpoint("/{family}/models/{}/{model}"),
    ),
    credential=("authorization",),
    charging=COMPATIBLE.charging,
    headers=COMPATIBLE.headers,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
