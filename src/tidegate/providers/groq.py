"""Groq: https://console.groq.com/docs/rate-limits, and captured answers of 2024 to 2026.

The `requests` headers always count a day and the `tokens` headers a minute. The limits of requests per minute and of
tokens per day are in no header; only the message of a refusal names them.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, DAY, MINUTE, NEVER_FITS, endpoints, quota
from tidegate.providers._schema import Charging, ErrorRow, Provider

_DOCS = "https://console.groq.com/docs/rate-limits read 2026-11-20 (provider-facts.md section 7)"

HEADERS = (
    quota("requests", "requests", f"{_DOCS}: RPD; capture groq-200-1h23m31s (58 used, 86.4 s each)", window=DAY),
    quota("tokens", "tokens", f"{_DOCS}: TPM; capture groq-200-17.399999999s", window=MINUTE),
)

ERRORS = (
    NEVER_FITS,
    ErrorRow(
        name="flex_capacity",
        cause=Cause.OTHERS_CAPACITY,
        source="provider-facts.md section 7 (498 capacity_exceeded, flex [unv])",
        status=frozenset({498}),
    ),
)

GROQ = Provider(
    name="groq",
    source=_DOCS,
    hosts=("api.groq.com",),
    endpoints=endpoints(
        "/openai/v1",
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "audio/transcriptions",
        "audio/translations",
        "audio/speech",
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input+max",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source="provider-facts.md section 7: prompt and max_completion_tokens at admission [inf]; cached free",
        cache_reads_free=True,
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
