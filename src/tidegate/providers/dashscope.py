"""Qwen on Alibaba's Model Studio (DashScope), in its OpenAI-compatible and native modes; and ModelScope.

Limits: https://www.alibabacloud.com/help/en/model-studio/rate-limit. They apply to the main account, by model. They are
also enforced per second, include a guard against steep growth, and are in no header. `insufficient_quota` and "exceeded
your current quota" mean tokens per minute here, not money. A refusal may be the first event of a 200.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, Endpoint, ErrorRow, Provider

_DOCS = "https://www.alibabacloud.com/help/en/model-studio/rate-limit (2026-04-17; provider-facts.md section 9)"
_429 = frozenset({429})

ERRORS = (
    ErrorRow(
        name="slope_code",
        cause=Cause.SLOPE,
        source=f"{_DOCS}; capture modelscope-200-error",
        codes=frozenset({"throttling.burstrate", "limit_burst_rate"}),
    ),
    ErrorRow(
        name="slope",
        cause=Cause.SLOPE,
        source=f"{_DOCS}; capture openrouter-alibaba-burst (the words)",
        status=_429,
        text=("request rate increased too quickly",),
    ),
    ErrorRow(
        name="rate_code",
        cause=Cause.RATE,
        source=f"{_DOCS}; capture dashscope-429-rate; provider-facts.md section 9 (insufficient_quota: tokens)",
        codes=frozenset({"throttling.ratequota", "throttling.allocationquota", "limit_requests", "insufficient_quota"}),
    ),
)

DASHSCOPE = Provider(
    name="dashscope",
    source=_DOCS,
    hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com"),
    endpoints=(
        *endpoints("/compatible-mode/v1", "chat/completions", "completions", "responses", "embeddings"),
        Endpoint("/api/v1/services/{}/{}/{}"),
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="nothing",
        produced="mean",
        source=f"{_DOCS}: TPM of input and output; no answer says when they are charged",
    ),
    headers=(),
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
)

MODELSCOPE = replace(
    DASHSCOPE,
    name="modelscope",
    source="capture modelscope-200-error (errors come as a 200); provider-facts.md section 9",
    hosts=("api-inference.modelscope.cn",),
    endpoints=endpoints("/v1", "chat/completions", "embeddings", "images/generations"),
)
