"""DeepSeek: https://api-docs.deepseek.com/quick_start/error_codes. It limits concurrency, and sends no limit headers.

While a call is queued there, it sends blank lines or comments: a long read is no failure.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, Endpoint, ErrorRow, Provider

_DOCS = "https://api-docs.deepseek.com/quick_start/error_codes read 2026-11-20 (provider-facts.md section 8)"

ERRORS = (
    ErrorRow(
        name="concurrency",
        cause=Cause.CONCURRENCY,
        source="capture deepseek-429-concurrency (2026: calls at once by account and model, no limit of a minute)",
        status=frozenset({429}),
    ),
    ErrorRow(
        name="overloaded",
        cause=Cause.OVERLOAD,
        source=f"{_DOCS}: 503, retry after a brief wait; capture deepseek-503",
        status=frozenset({503}),
    ),
)

DEEPSEEK = Provider(
    name="deepseek",
    source=_DOCS,
    hosts=("api.deepseek.com",),
    endpoints=(
        *(e for base in ("", "/v1", "/beta") for e in endpoints(base, "chat/completions", "completions")),
        Endpoint("/anthropic/v1/messages"),
    ),
    credential=("authorization", "x-api-key"),
    charging=Charging(
        "input", "input", "mean", "nothing", source=f"{_DOCS}: tokens are not limited, so nothing is paced by this"
    ),
    headers=(),
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
