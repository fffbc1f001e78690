"""Databricks, watsonx and GitHub Copilot: models inside a larger platform, each with separate paths and refusals.

Databricks has a quota for each model of a workspace, which its host names, for any credential. watsonx counts requests
by second for an instance and announces them. Copilot announces nothing; its tokens change by the half hour, so the
identifier in them is the account.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import endpoints
from tidegate.providers._schema import Endpoint, ErrorRow, HeaderRow
from tidegate.providers.compatible import hosted
from tidegate.providers.openai import GENERATING

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
