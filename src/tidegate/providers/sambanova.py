"""SambaNova: https://docs.sambanova.ai/docs/en/models/rate-limits. Its plain `requests` headers count a minute."""

from __future__ import annotations

from tidegate.providers._common import COMMON_ERRORS, DAY, MINUTE, endpoints, quota
from tidegate.providers._schema import Charging, Provider

_DOCS = "https://docs.sambanova.ai/docs/en/models/rate-limits read 2026-11-20 (provider-facts.md section 18, SambaNova)"
_ROWS = f"{_DOCS}; capture sambanova-headers (names; how a reset is written is not known)"

SAMBANOVA = Provider(
    name="sambanova",
    source=_DOCS,
    hosts=("api.sambanova.ai",),
    endpoints=endpoints(
        "/v1",
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "audio/transcriptions",
        "audio/translations",
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_DOCS}: tokens are limited by the day only, and no header tells of them",
    ),
    headers=(
        quota("requests", "requests", _ROWS, window=MINUTE, refill="fixed"),
        quota("requests-day", "requests", _ROWS, window=DAY, refill="fixed"),
    ),
    errors=(),
    common_errors=COMMON_ERRORS,
)
