"""Azure OpenAI and AI Foundry, and GitHub Models, which runs on the same stack.

Quota documents: MicrosoftDocs/azure-ai-docs articles/ai-services/openai/how-to/quota.md (ms.date 2025-01-09).
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import COMMON_ERRORS, INSUFFICIENT_QUOTA
from tidegate.providers._schema import Charging, Endpoint, ErrorRow, HeaderRow, Provider
from tidegate.providers.openai import GENERATING

_QUOTA = "azure-ai-docs how-to/quota.md (2025-01-09), read 2026-11-21 (provider-facts.md section 2)"
_429 = frozenset({429})


def _row(name: str, unit: Unit) -> HeaderRow:
    """Return a quota row of both stacks: continuous if the renewal period is stated (the reset then fits the use)."""
    return HeaderRow(
        name=name,
        unit=unit,
        source="captures azure-200-reset-in-ms (2026-03-31), azure-200-renewal-10s",
        limit=(f"x-ratelimit-limit-{name}",),
        remaining=(f"x-ratelimit-remaining-{name}",),
        reset=(f"x-ratelimit-reset-{name}",),
        period=(f"x-ratelimit-renewalperiod-{name}",),
        refill="fixed",
        period_refill="continuous",
    )


HEADERS = (
    _row("requests", "requests"),
    _row("tokens", "tokens"),
    HeaderRow(
        name="tokens-wait",
        label="tokens",
        unit="tokens",
        source="capture azure-429-x-rate-limit-reset-tokens (openai-python issue 937; two hyphens, seconds)",
        reset=("x-rate-limit-reset-tokens",),
        refill="fixed",
        bare="seconds",
        reset_waits=True,
    ),
)

_HIGH_DEMAND = ErrorRow(
    name="high_demand",
    cause=Cause.OTHERS_CAPACITY,
    source="provider-facts.md section 2 (The system is currently experiencing high demand), read 2026-11-21",
    status=frozenset({429, 503}),
    text=("experiencing high demand",),
)

ERRORS = (
    INSUFFICIENT_QUOTA,
    _HIGH_DEMAND,
)

_DEPLOYMENT = tuple(f"/openai/deployments/{{model}}/{path}" for path in GENERATING)
_ROUTES = (
    *(f"/openai/v1/{path}" for path in GENERATING),
    *(f"/openai/{path}" for path in ("responses", "responses/compact")),
    *(f"/models/{path}" for path in ("chat/completions", "embeddings", "images/embeddings")),
    "/anthropic/v1/messages",
)
_SERVERLESS = ("/chat/completions", "/v1/chat/completions", "/embeddings", "/v1/embeddings")

_CHARGING = Charging(
    tokens="input+max",
    input_tokens="input",
    output_tokens="mean",
    produced="nothing",
    source=f"{_QUOTA}: prompt by characters + max_tokens + best_of, at admission",
)

AZURE = Provider(
    name="azure",
    source=f"{_QUOTA}; openai-python 3.52 lib/azure.py; anthropic 2.11 lib/foundry.py",
    hosts=("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com", "*.models.ai.azure.com"),
    endpoints=tuple(Endpoint(path) for path in (*_DEPLOYMENT, *_ROUTES, *_SERVERLESS)),
    credential=(),  # quota of the deployment, for any credential; Entra tokens change by the hour (section 19)
    charging=_CHARGING,
    headers=HEADERS,
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
    code_headers=("x-ms-error-code",),
)
"""Table of Azure OpenAI and AI Foundry, whose quota is that of a deployment."""

AZURE_COMPATIBLE = replace(
    AZURE,
    name="azure-compatible",
    source=f"{_QUOTA}; any gateway in front of it, which may keep a quota for each credential",
    hosts=(),
    endpoints=tuple(Endpoint(f"**{path}") for path in (*_DEPLOYMENT, *_ROUTES, *_SERVERLESS)),
    credential=("api-key", "authorization", "ocp-apim-subscription-key"),
    closed=("batches", "files", "fine_tuning", "threads", "organization"),
)
"""Table of any gateway in front of Azure, found by its paths."""

GITHUB_MODELS = Provider(
    name="github-models",
    source="captures github-models-200-ms, github-models-429-minute; provider-facts.md section 2, read 2026-11-21",
    hosts=("models.github.ai", "models.inference.ai.azure.com"),
    endpoints=tuple(
        Endpoint(f"{prefix}/{path}")
        for prefix in ("/inference", "/orgs/{}/inference", "")
        for path in ("chat/completions", "embeddings")
    ),
    credential=("authorization",),
    charging=_CHARGING,
    headers=HEADERS[:2],
    errors=(
        ErrorRow(
            name="concurrency",
            cause=Cause.CONCURRENCY,
            source="capture github-models-429-concurrency (2026-07-26)",
            status=_429,
            text=("userconcurrentrequests",),
        ),
        ErrorRow(
            name="by_day",
            cause=Cause.DAY,
            source="provider-facts.md section 2 (UserByModelByDay, retry about 11,000 s; i 52768449247)",
            status=_429,
            text=("userbymodelbyday", "userbyday"),
        ),
        _HIGH_DEMAND,
    ),
    common_errors=COMMON_ERRORS,
    waits=("x-ratelimit-timeremaining",),
    code_headers=("x-ms-error-code",),
)
"""Table of GitHub Models."""
