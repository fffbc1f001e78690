"""Tables of clouds that host the models of others: Azure, GitHub Models, Bedrock, Databricks, watsonx, Copilot."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import endpoints, quota, up_to_the_bound
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, HeaderRow, Provider
from tidegate.providers.compatible import hosted
from tidegate.providers.openai import GENERATING

# Azure OpenAI and AI Foundry, and GitHub Models, which runs on the same stack.
#
# Quota documents: MicrosoftDocs/azure-ai-docs articles/ai-services/openai/how-to/quota.md (ms.date 2025-01-09).

_AZURE_QUOTA = "azure-ai-docs how-to/quota.md (2025-01-09), read 2026-11-21 (provider-facts.md section 2)"
_429 = frozenset({429})


def _azure_row(name: str, unit: Unit) -> HeaderRow:
    """Return a quota row of both stacks: continuous if the renewal period is stated (the reset then fits the use)."""
    row = quota(name, unit, "captures azure-200-reset-in-ms (2026-03-31), azure-200-renewal-10s", refill="fixed")
    return replace(row, period=(f"x-ratelimit-renewalperiod-{name}",), period_refill="continuous")


AZURE_HEADERS = (
    _azure_row("requests", "requests"),
    _azure_row("tokens", "tokens"),
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

_AZURE_DEPLOYMENT = tuple(f"/openai/deployments/{{model}}/{path}" for path in GENERATING)
_AZURE_ROUTES = (
    *(f"/openai/v1/{path}" for path in GENERATING),
    *(f"/openai/{path}" for path in ("responses", "responses/compact")),
    *(f"/models/{path}" for path in ("chat/completions", "embeddings", "images/embeddings")),
    "/anthropic/v1/messages",
)
_AZURE_SERVERLESS = ("/chat/completions", "/v1/chat/completions", "/embeddings", "/v1/embeddings")

_AZURE_CHARGING = up_to_the_bound(f"{_AZURE_QUOTA}: prompt by characters + max_tokens + best_of, at admission")

AZURE = Provider(
    name="azure",
    source=f"{_AZURE_QUOTA}; openai-python 3.52 lib/azure.py; anthropic 2.11 lib/foundry.py",
    hosts=("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com", "*.models.ai.azure.com"),
    endpoints=tuple(Endpoint(path) for path in (*_AZURE_DEPLOYMENT, *_AZURE_ROUTES, *_AZURE_SERVERLESS)),
    credential=(),  # quota of the deployment, for any credential; Entra tokens change by the hour (section 19)
    charging=_AZURE_CHARGING,
    headers=AZURE_HEADERS,
    errors=(_HIGH_DEMAND,),
    code_headers=("x-ms-error-code",),
)
"""Table of Azure OpenAI and AI Foundry, whose quota is that of a deployment."""

AZURE_COMPATIBLE = replace(
    AZURE,
    name="azure-compatible",
    source=f"{_AZURE_QUOTA}; any gateway in front of it, which may keep a quota for each credential",
    hosts=(),
    endpoints=tuple(Endpoint(f"**{path}") for path in (*_AZURE_DEPLOYMENT, *_AZURE_ROUTES, *_AZURE_SERVERLESS)),
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
    charging=_AZURE_CHARGING,
    headers=AZURE_HEADERS[:2],
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
    waits=("x-ratelimit-timeremaining",),
    code_headers=("x-ms-error-code",),
)
"""Table of GitHub Models."""


# AWS Bedrock: no header reports a limit, and the error's type is in `x-amzn-errortype`.
#
# Errors: the service model of botocore@0e6e2404b (bedrock-runtime service-2.json), provider-facts.md section 3.

_BEDROCK_MODEL = "botocore@0e6e2404b bedrock-runtime service-2.json, read 2026-11-21 (provider-facts.md section 3)"
_BEDROCK_TOKENS = "https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html read 2026-11-21"


_BEDROCK_ROUTES = ("chat/completions", "completions", "responses", "embeddings")

BEDROCK = Provider(
    name="bedrock",
    source=f"{_BEDROCK_MODEL}; captures bedrock-200-no-headers and four refusals; section 19 for the key",
    hosts=("bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com", "bedrock-mantle.*.api.aws"),
    endpoints=(
        Endpoint("**/model/{+model}/invoke"),
        Endpoint("**/model/{+model}/invoke-with-response-stream", streams=True),
        Endpoint("**/model/{+model}/converse"),
        Endpoint("**/model/{+model}/converse-stream", streams=True),
        *(Endpoint(f"{prefix}/v1/{path}") for prefix in ("/openai", "") for path in _BEDROCK_ROUTES),
        Endpoint("/anthropic/v1/messages"),
    ),
    credential_part=("Credential=", "/"),  # SigV4: the access key's id; the region is in the host
    charging=up_to_the_bound(
        f"{_BEDROCK_TOKENS}: input + max_tokens at the start, settled to input + cache writes + output x its rate",
        cache_reads_free=True,
        gives_back=True,
        # Claude 3.7 and later count an output token five times; older models are listed by name.
        burndown=(
            ("claude-3-7", 5.0),
            ("claude-3-", 1.0),
            ("claude-v", 1.0),
            ("claude-instant", 1.0),
            ("claude-", 5.0),
        ),
    ),
    errors=(
        ErrorRow(
            name="per_day",
            cause=Cause.DAY,
            source="capture bedrock-429-via-claude-code; provider-facts.md section 3 (the class of a minute's refusal)",
            status=_429 | {400},
            text=("tokens per day", "requests per day"),
        ),
        ErrorRow(
            name="service_quota",
            cause=Cause.RATE,
            source=f"{_BEDROCK_MODEL}: status 400; provider-facts.md rule 7 (refusals of a rate that are no 429)",
            codes=frozenset({"servicequotaexceededexception"}),
        ),
        ErrorRow(
            "model_timeout", Cause.OUTAGE, f"{_BEDROCK_MODEL}: status 408", codes=frozenset({"modeltimeoutexception"})
        ),
        ErrorRow(
            name="model_error",
            cause=Cause.OUTAGE,
            source=f"{_BEDROCK_MODEL}: status 424, the model failed; in a stream as modelStreamErrorException",
            codes=frozenset({"modelerrorexception", "modelstreamerrorexception"}),
        ),
        ErrorRow(
            name="internal",
            cause=Cause.OUTAGE,
            source=f"{_BEDROCK_MODEL}: status 500; in a stream as internalServerException",
            codes=frozenset({"internalserverexception"}),
        ),
        ErrorRow(
            name="validation",
            cause=Cause.INVALID,
            source=f"{_BEDROCK_MODEL}: status 400; in a stream as validationException",
            codes=frozenset({"validationexception", "resourcenotfoundexception"}),
        ),
    ),
    image_chars=6400,  # most pictures go to Claude: 1,600 tokens, as in the table of Anthropic
    code_headers=("x-amzn-errortype",),
)
"""Table of AWS Bedrock's runtime."""


# Databricks, watsonx and GitHub Copilot: models inside a larger platform, each with separate paths and refusals.
#
# Databricks has a quota for each model of a workspace, which its host names, for any credential. watsonx counts
# requests by second for an instance and announces them. Copilot announces nothing; its tokens change by the half hour,
# so the identifier in them is the account.

_READ = "read 2026-11-23"

_DATABRICKS = f"https://docs.databricks.com/aws/en/machine-learning/foundation-model-apis/limits {_READ}"
_GATEWAY_ROUTES = ("mlflow/v1/chat/completions", "mlflow/v1/embeddings", "openai/v1/responses", "anthropic/v1/messages")

DATABRICKS = hosted(
    "databricks",
    f"{_DATABRICKS}: input and output tokens a minute, queries an hour, of the workspace by model; in no header",
    "*.cloud.databricks.com",
    "*.gcp.databricks.com",
    "*.azuredatabricks.net",
    endpoints=(
        Endpoint("/serving-endpoints/{model}/invocations"),
        *endpoints("/serving-endpoints", "chat/completions", "completions", "embeddings", "responses"),
        *endpoints("/serving-endpoints/anthropic/v1", "messages"),
        *endpoints("", *_GATEWAY_ROUTES),
        *endpoints("/ai-gateway", *_GATEWAY_ROUTES),
    ),
    credential=(),  # the workspace has the quota, and its OAuth tokens change by the hour
    headers=(),
)

_WATSONX = f"https://ibm.github.io/watsonx-ai-python-sdk/rate_limit.html {_READ}"
_WATSONX_CODES = "https://cloud.ibm.com/apidocs/watsonx-ai; the bodies as its users received them in 2026"
_TASKS = ("generation", "generation_stream", "chat", "chat_stream", "embeddings", "rerank")

WATSONX = hosted(
    "watsonx",
    f"{_WATSONX}: requests a second of the instance, over all models",
    "*.ml.cloud.ibm.com",
    endpoints=(
        *(Endpoint(f"/ml/v1/text/{task}", streams=task.endswith("_stream")) for task in _TASKS),
        *(Endpoint(f"/ml/v1/deployments/{{}}/text/{task}", streams=task.endswith("_stream")) for task in _TASKS),
        *endpoints("/ml/gateway/v1", "chat/completions", "completions", "embeddings"),
    ),
    headers=(
        HeaderRow(
            name="requests-second",
            unit="requests",
            source=f"{_WATSONX}; names in ibm-watsonx-ai _wrappers/httpx/rate_limited_retry",
            limit=("x-requests-limit-rate",),
            remaining=("x-requests-limit-remaining",),
            window=1.0,
            label="requests",
        ),
    ),
    errors=(
        ErrorRow(
            name="concurrency",
            cause=Cause.CONCURRENCY,
            source=_WATSONX_CODES,
            codes=frozenset({"consumption_limit_reached"}),
            text=("concurrent requests",),
        ),
        ErrorRow(
            "plan", Cause.MONEY, _WATSONX_CODES, codes=frozenset({"consumption_limit_reached", "token_quota_reached"})
        ),
    ),
    scope="account",
)

_COPILOT = f"https://github.com/microsoft/vscode-copilot-chat src/extension/prompt/node/chatMLFetcher.ts {_READ}"

GITHUB_COPILOT = hosted(
    "github-copilot",
    f"{_COPILOT}; of limits nothing published: https://github.com/microsoft/vscode-copilot-release/issues/2627 {_READ}",
    "api.githubcopilot.com",
    "api.*.githubcopilot.com",
    endpoints=(
        *endpoints("", *GENERATING),
        *endpoints("/v1", *GENERATING, "messages"),
    ),
    credential=("authorization",),
    credential_part=("tid=", ";"),
    headers=(),
    errors=(
        ErrorRow(
            name="quota",
            cause=Cause.MONEY,
            source=_COPILOT,
            codes=frozenset(
                {"quota_exceeded", "free_quota_exceeded", "overage_limit_reached", "billing_not_configured"}
            ),
        ),
        ErrorRow("overloaded", Cause.OTHERS_CAPACITY, _COPILOT, codes=frozenset({"model_overloaded"})),
        ErrorRow(
            name="upstream",
            cause=Cause.OTHERS_CAPACITY,
            source=f"{_COPILOT} (503: the upstream provider's limit)",
            status=frozenset({503}),
        ),
    ),
)

KNOWN = (AZURE, GITHUB_MODELS, BEDROCK, DATABRICKS, WATSONX, GITHUB_COPILOT)
