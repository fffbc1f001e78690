"""Any server with OpenAI's protocol or a plain generation path: gateways, vLLM, SGLang, TGI; and hosts like it.

The headers of such servers are undocumented, so all observed dialects are read. These are OpenAI's and Anthropic's
headers as passed on, windows in the name, the IETF's fields, and the messages of the known servers.

A self-hosted server has no quota, only a concurrency that it can handle. SGLang and TGI refuse when their queue is
full, SGLang also as the first event of a 200. vLLM queues without bound, so only latency shows its load
(provider-facts.md section 18).

`hosted` makes the table of a host that speaks this protocol and has little of its own. Lepton has one subdomain per
model (or workspace); nothing is known of it beyond OpenAI's protocol.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tidegate.core.values import Cause
from tidegate.providers._common import (
    IETF_ROW,
    at_admission,
    endpoints,
)
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, HeaderRow, PlanWindow, Provider
from tidegate.providers.anthropic import HEADERS as ANTHROPIC_HEADERS
from tidegate.providers.anthropic import PLAN as ANTHROPIC_PLAN
from tidegate.providers.openai import GENERATING
from tidegate.providers.openai import HEADERS as OPENAI_HEADERS


def _with_period(row: HeaderRow) -> HeaderRow:
    """Return the row with Azure's renewal period, as sent or as LiteLLM passes it on."""
    period = f"x-ratelimit-renewalperiod-{row.name}"
    return replace(row, period=(period, f"llm_provider-{period}"))


def _without_other_route(row: HeaderRow) -> HeaderRow:
    """Return the row with Anthropic's own header names only; those of its compatible route are almost OpenAI's."""
    groups = {name: getattr(row, name)[:1] for name in ("limit", "remaining", "reset")}
    return replace(row, name=f"anthropic-{row.name}", label=row.name.replace("-", "_"), **groups)


HEADERS = (
    *(_with_period(row) if row.name in ("requests", "tokens") else row for row in OPENAI_HEADERS),
    *(_without_other_route(row) for row in ANTHROPIC_HEADERS),
    HeaderRow(
        name="gateway",
        unit="requests",
        source="https://developer.whoop.com/docs/developing/rate-limiting read 2026-11-23",
        dialect="ietf",
        refill="fixed",
        bare="seconds",
        limit=("x-ratelimit-limit",),
        remaining=("x-ratelimit-remaining",),
        reset=("x-ratelimit-reset",),
        policy=("x-ratelimit-policy",),
    ),
    IETF_ROW,
)

_CODEX = "https://github.com/icebear0828/codex-proxy/issues/65 read 2026-11-23 (plans of 5 hours and a week)"

PLANS = (
    ANTHROPIC_PLAN,
    *(
        PlanWindow(
            spent=f"x-codex-{window}-used-percent",
            full="100",
            reset=f"x-codex-{window}-reset-after-seconds",
            source=_CODEX,
        )
        for window in ("primary", "secondary")
    ),
)

_429 = frozenset({429})
_429_503 = frozenset({429, 503})

ERRORS = (
    ErrorRow(
        name="concurrency",
        cause=Cause.CONCURRENCY,
        source="capture dashscope-429-concurrency; provider-facts.md section 2 (UserConcurrentRequests)",
        status=_429,
        text=("concurrent requests", "userconcurrentrequests", "concurrency limit"),
    ),
    ErrorRow(
        name="queue_code",
        cause=Cause.OTHERS_CAPACITY,
        source="capture cerebras-429-queue; provider-facts.md section 12 (3505)",
        status=_429_503,
        codes=frozenset({"queue_exceeded", "3505"}),
    ),
    ErrorRow(
        name="others_capacity",
        cause=Cause.OTHERS_CAPACITY,
        source="capture sglang-503-queue; provider-facts.md sections 1, 2 and 12",
        status=_429,
        text=(
            "queue is full",
            "maximum pending requests exceeded",
            "high traffic",
            "high demand",
            "overloaded",
            "service tier capacity exceeded",
            "resource unavailable",
            "temporarily rate-limited upstream",
        ),
    ),
    ErrorRow(
        name="overloaded",
        cause=Cause.OVERLOAD,
        source="captures sglang-503-queue, ollama-local-503; provider-facts.md section 18 (priority)",
        status=frozenset({503}),
        text=("queue is full", "maximum pending requests exceeded", "aborted by a higher priority request"),
    ),
)

_PLAIN = ("generate", "generate_stream", "rerank", "v1/rerank", "v2/rerank", "embed")

COMPATIBLE = Provider(
    name="compatible",
    source="provider-facts.md sections 10 and 18 (vLLM, SGLang, TGI, Ollama, LiteLLM), read 2026-11-21",
    hosts=(),
    endpoints=(
        *(Endpoint(f"**/{path}") for path in GENERATING),
        *(Endpoint(f"**/{path}", plain=True) for path in _PLAIN),
    ),
    credential=("authorization", "api-key", "x-api-key", "x-goog-api-key"),
    charging=at_admission(
        "what they imitate: capture openai-200-max_tokens-not-reserved; a mirror learns what else they charge"
    ),
    headers=HEADERS,
    errors=ERRORS,
    waits=("x-ratelimit-timeremaining",),
    plans=PLANS,
    code_headers=("x-amzn-errortype",),
    closed=("threads", "batches", "files", "fine_tuning", "organization", "uploads"),
)
"""Table of any server that speaks OpenAI's API."""

EVERY_DIALECT = (*COMPATIBLE.endpoints, Endpoint("**/v1/messages"))
"""Inference paths of a host that only serves inference, in OpenAI's and Anthropic's dialects below any base path."""


def hosted(
    name: str,
    source: str,
    *hosts: str,
    endpoints: tuple[Endpoint, ...] = EVERY_DIALECT,
    credential: tuple[str, ...] = ("authorization", "x-api-key"),
    credential_part: tuple[str, str] | None = None,
    headers: tuple[HeaderRow, ...] = HEADERS,
    errors: tuple[ErrorRow, ...] = (),
    scope: Literal["model", "account"] = "model",
) -> Provider:
    """Return the table of `hosts`, a compatible server but for the given fields; its `errors` are compared first."""
    return replace(
        COMPATIBLE,
        name=name,
        source=source,
        hosts=hosts,
        endpoints=endpoints,
        credential=credential,
        credential_part=credential_part,
        headers=headers,
        errors=(*errors, *ERRORS),
        scope=scope,
    )


LEPTON = replace(
    COMPATIBLE,
    name="lepton",
    source="provider-facts.md section 14 (no answer of it was found; 10 RPM on the free tier [unv]), read 2026-11-21",
    hosts=("*.lepton.run",),
    endpoints=endpoints("/api/v1", *GENERATING),
    credential=("authorization",),
    closed=(),
)
