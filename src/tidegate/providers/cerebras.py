"""Cerebras: https://inference-docs.cerebras.ai/support/rate-limits, and captured answers of 2024 to 2026.

Windows end at boundaries of the wall clock. A refusal has none of the headers, only a flat body and a `retry-after` of
about a minute. The refusal of a full queue says `x-should-retry: false`, although a retry within seconds would be
right.
"""

from __future__ import annotations

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import COMMON_ERRORS, DAY, HOUR, MINUTE, endpoints, quota
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider

_DOCS = "https://inference-docs.cerebras.ai/support/rate-limits read 2026-11-20 (provider-facts.md section 15)"


def _row(suffix: str, unit: Unit, window: float) -> HeaderRow:
    source = f"{_DOCS}; captures cerebras-200-docs, hf-router-cerebras-int64 (2025-12-31)"
    return quota(suffix, unit, source, window=window, refill="fixed", bare="seconds")


HEADERS = (
    _row("requests-minute", "requests", MINUTE),
    _row("requests-hour", "requests", HOUR),
    _row("requests-day", "requests", DAY),
    _row("tokens-minute", "tokens", MINUTE),
    _row("tokens-hour", "tokens", HOUR),
    _row("tokens-day", "tokens", DAY),
)

ERRORS = (
    ErrorRow(
        "queue", Cause.OTHERS_CAPACITY, "capture cerebras-429-queue (2026-07-26)", codes=frozenset({"queue_exceeded"})
    ),
    ErrorRow(
        name="quota",
        cause=Cause.RATE,
        source="capture cerebras-429-tokens (continue issue 9800); provider-facts.md section 15",
        codes=frozenset({"request_quota_exceeded", "token_quota_exceeded"}),
    ),
)

CEREBRAS = Provider(
    name="cerebras",
    source=_DOCS,
    hosts=("api.cerebras.ai",),
    endpoints=endpoints("/v1", "chat/completions", "completions"),
    credential=("authorization",),
    charging=Charging(
        tokens="input+max",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_DOCS}: input and max_completion_tokens at admission (without it the longest sequence)",
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
