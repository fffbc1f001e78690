"""NVIDIA NIM, the hosted catalogue: about 40 requests a minute per account, in no header."""

from __future__ import annotations

from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, Provider

_SURVEY = "provider-facts.md section 18 (NVIDIA NIM), read 2026-11-21"

NVIDIA = Provider(
    name="nvidia",
    source=f"{_SURVEY}: no headers, clears within a minute (62 s measured 2026-07-26)",
    hosts=("integrate.api.nvidia.com",),
    endpoints=endpoints("/v1", "chat/completions", "completions", "responses", "embeddings"),
    credential=("authorization",),
    charging=Charging(
        "input", "input", "mean", "nothing", source=f"{_SURVEY}: requests are limited, tokens are not known to be"
    ),
    headers=(),
    common_errors=COMMON_ERRORS,
    scope="account",
)
