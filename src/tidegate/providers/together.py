"""Together: https://docs.together.ai/docs/rate-limits, and a captured answer of 2025.

The rate is dynamic: about twice the last hour's successes, and never below 60 a minute. A refusal above that rate is a
429; one below it is a 503 of the platform itself. `retry-after` is on good answers too.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider

_DOCS = "https://docs.together.ai/docs/rate-limits read 2026-11-20 (provider-facts.md section 13)"
_CAPTURE = "capture together-200-2025 (2025-12-18: reset 2 read as a window of 2 s [inf]; 19 left of 10)"

_WINDOW = 2.0
"""Seconds of a window. Source: capture together-200-2025, where a reset of 2 was read as the window."""

HEADERS = (
    HeaderRow(
        name="requests",
        unit="requests",
        source=f"{_CAPTURE}; {_DOCS}: measured by the second",
        limit=("x-ratelimit-limit",),
        remaining=("x-ratelimit-remaining",),
        reset=("x-ratelimit-reset",),
        window=_WINDOW,
        refill="fixed",
        bare="seconds",
        overfull=True,
    ),
    HeaderRow(
        name="tokens",
        unit="tokens",
        source=f"{_CAPTURE}; {_DOCS}: x-tokenlimit",
        limit=("x-ratelimit-limit-tokens", "x-tokenlimit-limit"),
        remaining=("x-ratelimit-remaining-tokens", "x-tokenlimit-remaining"),
        window=_WINDOW,
        refill="fixed",
        overfull=True,
    ),
)

ERRORS = (
    ErrorRow(
        name="dynamic",
        cause=Cause.RATE,
        source=f"{_DOCS}; capture together-429-dynamic",
        codes=frozenset({"dynamic_request_limited", "dynamic_token_limited"}),
    ),
    ErrorRow(
        name="below_the_rate",
        cause=Cause.OTHERS_CAPACITY,
        source=f"{_DOCS}: 503 at or below the dynamic rate; capture together-503-capacity",
        status=frozenset({503}),
    ),
)

TOGETHER = Provider(
    name="together",
    source=_DOCS,
    hosts=("api.together.xyz", "api.together.ai"),
    endpoints=endpoints(
        "/v1",
        "chat/completions",
        "completions",
        "embeddings",
        "rerank",
        "images/generations",
        "audio/speech",
        "audio/transcriptions",
        "audio/translations",
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source="capture together-200-2025 shows no charge of its own call; a mirror learns what is charged",
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
