"""xAI: https://docs.x.ai/developers/rate-limits, and captured answers of 2025 and 2026."""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, MINUTE, Part, endpoints, quota
from tidegate.providers._schema import Charging, ErrorRow, Provider

_DOCS = "https://docs.x.ai/developers/rate-limits read 2026-11-20 (provider-facts.md section 6)"
_NO_RESET: tuple[Part, ...] = ("limit", "remaining")

HEADERS = (
    quota(
        "requests",
        "requests",
        "capture xai-200 (2026-08-10: 1800 read as a minute's [inf]; the documents enforce a sixtieth a second)",
        window=MINUTE,
        parts=_NO_RESET,
    ),
    quota("tokens", "tokens", f"{_DOCS}: TPM; capture xai-200", window=MINUTE, parts=_NO_RESET),
)

ERRORS = (
    ErrorRow(
        name="wrong_key",
        cause=Cause.AUTH,
        source="provider-facts.md section 6 (400 with `error` as a string; the words [unv])",
        status=frozenset({400}),
        text=("incorrect api key",),
    ),
)

XAI = Provider(
    name="xai",
    source=f"{_DOCS}; regional hosts [unv]",
    hosts=("api.x.ai", "*.api.x.ai"),
    endpoints=endpoints(
        "/v1", "chat/completions", "completions", "responses", "embeddings", "images/generations", "messages"
    ),
    credential=("authorization", "x-api-key"),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="nothing",
        produced="mean",
        source=f"{_DOCS}: cached, reasoning and image tokens count; capture xai-429-tokens counts what was used [inf]",
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
