"""SiliconFlow, DeepInfra, Novita, Nebius, Hyperbolic, Featherless, Chutes and Lambda: hosts of open models.

They speak OpenAI's protocol. Nebius announces its limits, which follow the use of the last quarter of an hour. The
others announce nothing, so their limits are learned from refusals. DeepInfra and Featherless limit only concurrency.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import MINUTE, quota
from tidegate.providers._schema import Endpoint, ErrorRow
from tidegate.providers.compatible import EVERY_DIALECT, hosted

_READ = "read 2026-11-23"
_429 = frozenset({429})

_SILICONFLOW = f"https://docs.siliconflow.com/en/userguide/rate-limits/rate-limit-and-upgradation {_READ}"

SILICONFLOW = hosted(
    "siliconflow",
    f"{_SILICONFLOW}: RPM, RPH, RPD, TPM, TPD, IPM, IPD of the account (not the key) by model, in no header",
    "api.siliconflow.cn",
    "api.siliconflow.com",
    headers=(),
)

_DEEPINFRA = f"https://deepinfra.com/docs/advanced/rate-limits {_READ}"

DEEPINFRA = hosted(
    "deepinfra",
    f"{_DEEPINFRA}: 200 requests at a time of the account by model, in no header",
    "api.deepinfra.com",
    endpoints=(*EVERY_DIALECT, Endpoint("/v1/inference/{+model}")),
    headers=(),
    errors=(
        ErrorRow(
            name="busy",
            cause=Cause.OTHERS_CAPACITY,
            source=f"https://github.com/truefoundry/models/pull/862 {_READ}; {_DEEPINFRA}: the model is too busy",
            status=_429,
            text=("model busy",),
        ),
        ErrorRow("concurrency", Cause.CONCURRENCY, _DEEPINFRA, status=_429, text=("rate limited",)),
    ),
)

NOVITA = hosted(
    "novita",
    f"https://novita.ai/docs/guides/llm-rate-limits {_READ}: RPM and TPM of the account by model, in no header",
    "api.novita.ai",
    headers=(),
)

_NEBIUS = f"https://docs.tokenfactory.nebius.com/ai-models-inference/rate-limits.md {_READ}"

NEBIUS = hosted(
    "nebius",
    f"{_NEBIUS}: limits follow the use of 15 minutes; x-ratelimit-over-limit and -dynamic-* are not read",
    "api.tokenfactory.nebius.com",
    "api.tokenfactory.*.nebius.com",
    "api.studio.nebius.com",
    "api.studio.nebius.ai",
    headers=(
        quota("requests", "requests", _NEBIUS, window=MINUTE, bare="seconds"),
        quota("tokens", "tokens", _NEBIUS, window=MINUTE, bare="seconds"),
    ),
)

HYPERBOLIC = hosted(
    "hyperbolic",
    f"https://docs.hyperbolic.ai/inference/performance-limits {_READ}: requests of the account by minute, in no header",
    "api.hyperbolic.xyz",
    headers=(),
    scope="account",
)

_FEATHERLESS = f"https://featherless.ai/docs/concurrency {_READ}"

FEATHERLESS = hosted(
    "featherless",
    f"{_FEATHERLESS}: concurrency of the account, of which a large model takes up to 4; in no header",
    "api.featherless.ai",
    headers=(),
    errors=(ErrorRow("concurrency", Cause.CONCURRENCY, f"{_FEATHERLESS} (nothing else is limited)", status=_429),),
    scope="account",
)

CHUTES = hosted(
    "chutes",
    f"https://github.com/chutesai/chutes/issues/15 {_READ}: requests of the account, by minute and day; in no header",
    "*.chutes.ai",
    headers=(),
    scope="account",
)

LAMBDA = hosted(
    "lambda",
    f"https://docs.lambda.ai/public-cloud/lambda-inference-api: nothing published; {_READ}; ended on 25 September 2025",
    "api.lambda.ai",
    "api.lambdalabs.com",
)
