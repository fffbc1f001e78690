"""Mistral: https://help.mistral.ai (225174), and captured answers of three generations of headers, 2024 to 2026.

A minute follows the wall clock, and no header states its end. Streaming answers have no such headers, and a refusal
names no time.
"""

from __future__ import annotations

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import COMMON_ERRORS, MINUTE, MONTH, Part, endpoints, quota
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider

_DOCS = "https://help.mistral.ai 225174 read 2026-11-20 (provider-facts.md section 12)"
_PARTS: tuple[Part, ...] = ("limit", "remaining")


def _row(suffix: str, unit: Unit, window: float, captures: str) -> HeaderRow:
    source = f"{captures}; provider-facts.md section 12 (cleared at :00)"
    return quota(suffix, unit, source, window=window, refill="fixed", parts=_PARTS)


def _of_2024(name: str, window: float, *others: str) -> HeaderRow:
    return HeaderRow(
        name=f"size-{name}",
        label="tokens",
        unit="tokens",
        source="provider-facts.md section 12 (2024: ratelimitbysize, in tokens), read 2026-11-21",
        limit=(f"x-ratelimitbysize-limit-{name}", *(f"{other}-limit" for other in others)),
        remaining=(f"x-ratelimitbysize-remaining-{name}", *(f"{other}-remaining" for other in others)),
        reset=tuple(f"{other}-reset" for other in others),
        window=window,
        refill="fixed",
        bare="seconds",
    )


HEADERS = (
    _row("req-minute", "requests", MINUTE, "captures mistral-200-req-minute (2025-12-31), mistral-200-magistral-5rpm"),
    _row("req-10-second", "requests", 10.0, "capture mistral-200-10-second (2025-09-13)"),
    _row("tokens-minute", "tokens", MINUTE, "captures mistral-200-req-minute, mistral-200-magistral-5rpm"),
    _row("tokens-month", "tokens", MONTH, "capture mistral-200-req-minute (others share it)"),
    _row("audio-seconds-minute", "audio_seconds", MINUTE, "capture mistral-200-audio (2026-08-19)"),
    _row("ocr-pages-minute", "ocr_pages", MINUTE, "provider-facts.md section 12 (2026)"),
    _row("input-characters-minute", "input_characters", MINUTE, "capture mistral-200-tts (2026-08-19)"),
    _of_2024("minute", MINUTE, "ratelimitbysize"),
    _of_2024("month", MONTH),
)

ERRORS = (
    ErrorRow(
        name="capacity_code",
        cause=Cause.OTHERS_CAPACITY,
        source="provider-facts.md section 12 (3505), read 2026-11-21",
        codes=frozenset({"3505"}),
    ),
    ErrorRow(
        name="rate_limited",
        cause=Cause.RATE,
        source="provider-facts.md section 12 (1300), read 2026-11-21",
        codes=frozenset({"rate_limited", "1300"}),
    ),
)

MISTRAL = Provider(
    name="mistral",
    source=_DOCS,
    hosts=("api.mistral.ai", "codestral.mistral.ai"),
    endpoints=endpoints(
        "/v1",
        "chat/completions",
        "fim/completions",
        "agents/completions",
        "conversations",
        "conversations/{}",
        "embeddings",
        "ocr",
        "moderations",
        "chat/moderations",
        "classifications",
        "chat/classifications",
        "audio/transcriptions",
        "audio/speech",
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="nothing",
        produced="mean",
        source="capture mistral-200-magistral-5rpm: what was used without what was cached; max_tokens is not reserved",
        cache_reads_free=True,
    ),
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)
