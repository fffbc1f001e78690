"""OpenAI: https://developers.openai.com/api/docs/guides/rate-limits, and 2,750 captured answers."""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import IETF_ROW, at_admission, quota
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, Provider

_DOCS = "https://developers.openai.com/api/docs/guides/rate-limits read 2026-10-04 (provider-facts.md section 1)"

GENERATING = (
    "chat/completions",
    "completions",
    "responses",
    "responses/compact",
    "embeddings",
    "moderations",
    "images/generations",
    "images/edits",
    "images/variations",
    "audio/transcriptions",
    "audio/translations",
    "audio/speech",
)
"""Inference endpoints, as openai-python 3.52 names them; not files, batches, videos, realtime or stored objects."""

CREDENTIAL = ("authorization", "openai-organization", "openai-project")


_USAGE_BASED = "capture openai-200-usage-based-hyphen (2023-11-26); provider-facts.md section 1 (both spellings)"

HEADERS = (
    quota("requests", "requests", f"{_DOCS}; captures openai-200-rpm-6ms, openai-200-rpd-8.64s"),
    quota("tokens", "tokens", f"{_DOCS}; capture openai-200-rpm-6ms"),
    quota("input-images", "input_images", "capture openai-200-input-images (2025-06-20)"),
    quota("project-tokens", "tokens", "capture openai-200-project-tokens (2025-11-24)"),
    quota("project-requests", "requests", "provider-facts.md section 1, read 2026-11-21"),
    quota("tokens-usage-based", "tokens", _USAGE_BASED, spellings=("tokens_usage_based",)),
)

_429 = frozenset({429})
_RATE = frozenset({"rate_limit_exceeded"})

ERRORS = (
    ErrorRow(
        name="request_too_large",
        cause=Cause.NEVER_FITS,
        source="capture openai-429-request-too-large-structured",
        status=_429,
        codes=_RATE,
        exceeds=True,
    ),
    ErrorRow("rate_limit_exceeded", Cause.RATE, _DOCS, status=_429, codes=_RATE),
    ErrorRow(
        name="flex_unavailable",
        cause=Cause.OTHERS_CAPACITY,
        source="provider-facts.md section 1 (flex: 429 Resource Unavailable, not charged), read 2026-11-21",
        status=_429,
        text=("resource unavailable",),
    ),
    ErrorRow(
        name="no_credits",
        cause=Cause.MONEY,
        source="provider-facts.md section 1 (You have no credits remaining); capture openai-429-insufficient_quota",
        status=_429,
        text=("exceeded your current quota", "no credits remaining"),
    ),
    ErrorRow(
        name="slow_down",
        cause=Cause.SLOPE,
        source="provider-facts.md section 1 (503 Slow Down: ramp down, hold 15 minutes), read 2026-11-21",
        status=frozenset({503}),
        text=("slow down",),
    ),
)

OPENAI = Provider(
    name="openai",
    source=f"{_DOCS}; openai-python 3.52",
    hosts=("api.openai.com", "*.api.openai.com"),
    endpoints=tuple(Endpoint(f"/v1/{path}") for path in GENERATING),
    credential=CREDENTIAL,
    charging=at_admission(
        "capture openai-200-max_tokens-not-reserved (the same in 15 of 15); cached input counts [unv]"
    ),
    headers=(*HEADERS, IETF_ROW),
    errors=ERRORS,
    image_chars=3060,  # 765 tokens, a high-detail picture: 774 were debited in capture openai-200-input-images
)
"""Table of OpenAI's own API."""
