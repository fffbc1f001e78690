"""NVIDIA NIM, the hosted catalogue: about 40 requests a minute per account, in no header."""

from __future__ import annotations

from tidegate.core.values import Cause, Kind
from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, ErrorRow, Provider

_SURVEY = "PROVIDERS.md section 18 (NVIDIA NIM), read 2026-11-21"

NVIDIA = Provider(
    name="nvidia",
    source=f"{_SURVEY}: no headers, clears within a minute (62 s measured 2026-07-26)",
    hosts=("integrate.api.nvidia.com",),
    endpoints=endpoints("/v1", "chat/completions", "completions", "responses", "embeddings"),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_SURVEY}: requests are limited, tokens are not known to be",
    ),
    headers=(),
    errors=(
        ErrorRow(
            name="credits",
            kind=Kind.QUOTA_EXHAUSTED,
            cause=Cause.MONEY,
            source=f"{_SURVEY}: 402 [unv]",
            status=frozenset({402}),
        ),
        ErrorRow(
            name="rate_limit",
            kind=Kind.RATE_LIMIT,
            cause=Cause.RATE,
            source=f"{_SURVEY}: status 429, title Too Many Requests",
            status=frozenset({429}),
        ),
    ),
    common_errors=COMMON_ERRORS,
    scope="account",
)
