"""Fireworks: https://docs.fireworks.ai/serverless/rate-limits, and answers measured on 2026-08-05.

Limits adapt: a burst reduced a limit to a sixth (capture fireworks-429). `x-ratelimit-over-limit` says "no" even then,
so it is not read.
"""

from __future__ import annotations

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import COMMON_ERRORS, MINUTE, Part, endpoints, quota
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider

_DOCS = "https://docs.fireworks.ai/serverless/rate-limits read 2026-11-20 (provider-facts.md section 11)"
_PARTS: tuple[Part, ...] = ("limit", "remaining")


def _row(suffix: str, unit: Unit) -> HeaderRow:
    source = f"{_DOCS} (calls them tokens a second; measured to be a minute's: captures fireworks-200, fireworks-429)"
    return quota(suffix, unit, source, window=MINUTE, parts=_PARTS)


HEADERS = (
    _row("tokens-prompt", "input_tokens"),
    _row("tokens-cache-adjusted-prompt", "uncached_input_tokens"),
    _row("tokens-generated", "output_tokens"),
    quota(
        "requests", "requests", "provider-facts.md section 11 (older; RPM of the account)", window=MINUTE, parts=_PARTS
    ),
)

ERRORS = (
    ErrorRow(
        name="suspended",
        cause=Cause.MONEY,
        source="provider-facts.md section 11 (412: the account is suspended [unv])",
        status=frozenset({412}),
    ),
    ErrorRow("load_shed", Cause.OVERLOAD, f"{_DOCS}: 503, load is shed", status=frozenset({503})),
)

FIREWORKS = Provider(
    name="fireworks",
    source=_DOCS,
    hosts=("api.fireworks.ai",),
    endpoints=endpoints(
        "/inference/v1", "chat/completions", "completions", "responses", "embeddings", "rerank", "messages"
    ),
    credential=("authorization", "x-api-key"),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="nothing",
        produced="mean",
        source=f"{_DOCS}: prompt, uncached prompt and generated tokens apart; generated as written [inf]",
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
