"""Tables of hosts of open models, and of servers that users run: Groq, Cerebras, Fireworks, Together, Ollama, ..."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import (
    DAY,
    MINUTE,
    Part,
    as_produced,
    at_admission,
    endpoints,
    quota,
    up_to_the_bound,
)
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import Charging, ErrorRow, HeaderRow, Provider
from tidegate.providers.compatible import EVERY_DIALECT, hosted

# Groq: https://console.groq.com/docs/rate-limits, and captured answers of 2024 to 2026.
#
# The `requests` headers always count a day and the `tokens` headers a minute. The limits of requests per minute and of
# tokens per day are in no header; only the message of a refusal names them.

_GROQ_DOCS = "https://console.groq.com/docs/rate-limits read 2026-11-20 (provider-facts.md section 7)"

GROQ = Provider(
    name="groq",
    source=_GROQ_DOCS,
    hosts=("api.groq.com",),
    endpoints=endpoints(
        "/openai/v1",
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "audio/transcriptions",
        "audio/translations",
        "audio/speech",
    ),
    charging=up_to_the_bound(
        "provider-facts.md section 7: prompt and max_completion_tokens at admission [inf]; cached free",
        cache_reads_free=True,
    ),
    headers=(
        quota(
            "requests", "requests", f"{_GROQ_DOCS}: RPD; capture groq-200-1h23m31s (58 used, 86.4 s each)", window=DAY
        ),
        quota("tokens", "tokens", f"{_GROQ_DOCS}: TPM; capture groq-200-17.399999999s", window=MINUTE),
    ),
    errors=(
        ErrorRow(
            name="flex_capacity",
            cause=Cause.OTHERS_CAPACITY,
            source="provider-facts.md section 7 (498 capacity_exceeded, flex [unv])",
            status=frozenset({498}),
        ),
    ),
)


# Cerebras: https://inference-docs.cerebras.ai/support/rate-limits, and captured answers of 2024 to 2026.
#
# The names of its headers describe themselves. Windows end at boundaries of the wall clock. A refusal has none of the
# headers, only a flat body and a `retry-after` of about a minute. The refusal of a full queue says
# `x-should-retry: false`, although a retry within seconds would be right.

_CEREBRAS_DOCS = "https://inference-docs.cerebras.ai/support/rate-limits read 2026-11-20 (provider-facts.md section 15)"


CEREBRAS = Provider(
    name="cerebras",
    source=_CEREBRAS_DOCS,
    hosts=("api.cerebras.ai",),
    endpoints=endpoints("/v1", "chat/completions", "completions"),
    charging=up_to_the_bound(
        f"{_CEREBRAS_DOCS}: input and max_completion_tokens at admission (without it the longest sequence)"
    ),
    errors=(
        ErrorRow(
            name="queue",
            cause=Cause.OTHERS_CAPACITY,
            source="capture cerebras-429-queue (2026-07-26)",
            codes=frozenset({"queue_exceeded"}),
        ),
        ErrorRow(
            name="quota",
            cause=Cause.RATE,
            source="capture cerebras-429-tokens (continue issue 9800); provider-facts.md section 15",
            codes=frozenset({"request_quota_exceeded", "token_quota_exceeded"}),
        ),
    ),
)


# Fireworks: https://docs.fireworks.ai/serverless/rate-limits, and answers measured on 2026-08-05.
#
# Limits adapt: a burst reduced a limit to a sixth (capture fireworks-429). `x-ratelimit-over-limit` says "no" even
# then, so it is not read.

_FIREWORKS_DOCS = "https://docs.fireworks.ai/serverless/rate-limits read 2026-11-20 (provider-facts.md section 11)"
_NO_RESET: tuple[Part, ...] = ("limit", "remaining")


def _fireworks_row(suffix: str, unit: Unit) -> HeaderRow:
    source = f"{_FIREWORKS_DOCS} (called tokens a second, measured a minute: captures fireworks-200, fireworks-429)"
    return quota(suffix, unit, source, window=MINUTE, parts=_NO_RESET)


FIREWORKS = Provider(
    name="fireworks",
    source=_FIREWORKS_DOCS,
    hosts=("api.fireworks.ai",),
    endpoints=endpoints(
        "/inference/v1", "chat/completions", "completions", "responses", "embeddings", "rerank", "messages"
    ),
    credential=("authorization", "x-api-key"),
    charging=as_produced(
        f"{_FIREWORKS_DOCS}: prompt, uncached prompt and generated tokens apart; generated as written [inf]"
    ),
    headers=(
        _fireworks_row("tokens-prompt", "input_tokens"),
        _fireworks_row("tokens-cache-adjusted-prompt", "uncached_input_tokens"),
        _fireworks_row("tokens-generated", "output_tokens"),
        quota(
            "requests",
            "requests",
            "provider-facts.md section 11 (older; RPM of the account)",
            window=MINUTE,
            parts=_NO_RESET,
        ),
    ),
    errors=(
        ErrorRow(
            name="suspended",
            cause=Cause.MONEY,
            source="provider-facts.md section 11 (412: the account is suspended [unv])",
            status=frozenset({412}),
        ),
        ErrorRow("load_shed", Cause.OVERLOAD, f"{_FIREWORKS_DOCS}: 503, load is shed", status=frozenset({503})),
    ),
)


# Together: https://docs.together.ai/docs/rate-limits, and a captured answer of 2025.
#
# The rate is dynamic: about twice the last hour's successes, and never below 60 a minute. A refusal above that rate is
# a 429; one below it is a 503 of the platform itself. `retry-after` is on good answers too.

_TOGETHER_DOCS = "https://docs.together.ai/docs/rate-limits read 2026-11-20 (provider-facts.md section 13)"
_TOGETHER_CAPTURE = "capture together-200-2025 (2025-12-18: reset 2 read as a window of 2 s [inf]; 19 left of 10)"

_TOGETHER_WINDOW = 2.0
"""Seconds of a window. Source: capture together-200-2025, where a reset of 2 was read as the window."""

TOGETHER = Provider(
    name="together",
    source=_TOGETHER_DOCS,
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
    charging=at_admission("capture together-200-2025 shows no charge of its own call; a mirror learns what is charged"),
    headers=(
        HeaderRow(
            name="requests",
            unit="requests",
            source=f"{_TOGETHER_CAPTURE}; {_TOGETHER_DOCS}: measured by the second",
            limit=("x-ratelimit-limit",),
            remaining=("x-ratelimit-remaining",),
            reset=("x-ratelimit-reset",),
            window=_TOGETHER_WINDOW,
            refill="fixed",
            bare="seconds",
            overfull=True,
        ),
        HeaderRow(
            name="tokens",
            unit="tokens",
            source=f"{_TOGETHER_CAPTURE}; {_TOGETHER_DOCS}: x-tokenlimit",
            limit=("x-ratelimit-limit-tokens", "x-tokenlimit-limit"),
            remaining=("x-ratelimit-remaining-tokens", "x-tokenlimit-remaining"),
            window=_TOGETHER_WINDOW,
            refill="fixed",
            overfull=True,
        ),
    ),
    errors=(
        ErrorRow(
            name="dynamic",
            cause=Cause.RATE,
            source=f"{_TOGETHER_DOCS}; capture together-429-dynamic",
            codes=frozenset({"dynamic_request_limited", "dynamic_token_limited"}),
        ),
        ErrorRow(
            name="below_the_rate",
            cause=Cause.OTHERS_CAPACITY,
            source=f"{_TOGETHER_DOCS}: 503 at or below the dynamic rate; capture together-503-capacity",
            status=frozenset({503}),
        ),
    ),
)


# SambaNova: https://docs.sambanova.ai/docs/en/models/rate-limits. Its plain `requests` headers count a minute.

_SAMBANOVA_DOCS = (
    "https://docs.sambanova.ai/docs/en/models/rate-limits read 2026-11-20 (provider-facts.md section 18, SambaNova)"
)
_SAMBANOVA_ROWS = f"{_SAMBANOVA_DOCS}; capture sambanova-headers (names; how a reset is written is not known)"

SAMBANOVA = Provider(
    name="sambanova",
    source=_SAMBANOVA_DOCS,
    hosts=("api.sambanova.ai",),
    endpoints=endpoints(
        "/v1",
        "chat/completions",
        "completions",
        "responses",
        "embeddings",
        "audio/transcriptions",
        "audio/translations",
    ),
    charging=at_admission(f"{_SAMBANOVA_DOCS}: tokens are limited by the day only, and no header tells of them"),
    headers=(
        quota("requests", "requests", _SAMBANOVA_ROWS, window=MINUTE, refill="fixed"),
        quota("requests-day", "requests", _SAMBANOVA_ROWS, window=DAY, refill="fixed"),
    ),
)


# NVIDIA NIM, the hosted catalogue: about 40 requests a minute per account, in no header.

_NVIDIA_FACTS = "provider-facts.md section 18 (NVIDIA NIM), read 2026-11-21"

NVIDIA = Provider(
    name="nvidia",
    source=f"{_NVIDIA_FACTS}: no headers, clears within a minute (62 s measured 2026-07-26)",
    hosts=("integrate.api.nvidia.com",),
    endpoints=endpoints("/v1", "chat/completions", "completions", "responses", "embeddings"),
    charging=at_admission(f"{_NVIDIA_FACTS}: requests are limited, tokens are not known to be"),
    scope="account",
)


# Baseten: https://docs.baseten.co/inference/model-apis/rate-limits-and-budgets, Model APIs and dedicated models.
#
# A dedicated model has a separate host, and so a separate key.

_BASETEN_DOCS = "https://docs.baseten.co/inference/model-apis/rate-limits-and-budgets (provider-facts.md section 17)"
_BASETEN_PATHS = ("chat/completions", "completions", "embeddings", "messages")

BASETEN = Provider(
    name="baseten",
    source=_BASETEN_DOCS,
    hosts=("inference.baseten.co", "model-*.api.baseten.co"),
    endpoints=(
        *endpoints("/v1", *_BASETEN_PATHS),
        *endpoints("**/sync/v1", *_BASETEN_PATHS),
        Endpoint("**/predict"),
    ),
    charging=as_produced(f"{_BASETEN_DOCS}: input and output together, what is cached at its full weight"),
    scope="account",
)


# Replicate: predictions by model, deployment or version; 600 may be created a minute, over all models.
#
# Source: captures replicate-200-get, replicate-429-burst (provider-facts.md section 16, read 2026-11-21).

_REPLICATE_FACTS = "provider-facts.md section 16, read 2026-11-21"

REPLICATE = Provider(
    name="replicate",
    source=f"{_REPLICATE_FACTS} and section 19 (account-wide)",
    hosts=("api.replicate.com",),
    endpoints=(
        Endpoint("/v1/predictions"),
        Endpoint("/v1/models/{+model}/predictions"),
        Endpoint("/v1/deployments/{+model}/predictions"),
    ),
    charging=Charging(
        "nothing", "nothing", "nothing", "nothing", source=f"{_REPLICATE_FACTS}: requests are all that is counted"
    ),
    headers=(
        HeaderRow(
            name="requests-minute",
            label="requests",
            unit="requests",
            source="capture replicate-200-get: 1 of 3,000 used is back in 1 s, so it refills; no limit is told",
            remaining=("ratelimit-remaining",),
            reset=("ratelimit-reset",),
            window=60.0,
            bare="seconds",
            # 600 or 3,000 a minute are documented; capture replicate-59999 is of a larger one.
            ceiling=3000.0,
        ),
    ),
    scope="account",
)
"""Table of Replicate's API."""


# Ollama: a self-hosted server, whose only limit is its concurrency, and the cloud with the same dialect.
#
# Source: ollama/ollama server/sched.go and captures ollama-* (provider-facts.md section 10, read 2026-11-21).

_OLLAMA_FACTS = "provider-facts.md section 10, read 2026-11-21"

_OLLAMA_NATIVE = (
    Endpoint("/api/chat", streams=True, plain=True),
    Endpoint("/api/generate", streams=True, plain=True),
    Endpoint("/api/embed", plain=True),
    Endpoint("/api/embeddings", plain=True),
)
_OLLAMA_ROUTES = ("chat/completions", "completions", "responses", "embeddings")

OLLAMA = Provider(
    name="ollama",
    source=f"{_OLLAMA_FACTS}; captures ollama-cloud-429, ollama-404",
    hosts=("ollama.com",),
    endpoints=(*_OLLAMA_NATIVE, *(Endpoint(f"/v1/{path}") for path in _OLLAMA_ROUTES)),
    charging=Charging(
        tokens="nothing",
        input_tokens="nothing",
        output_tokens="nothing",
        produced="nothing",
        source=f"{_OLLAMA_FACTS}: a plan's windows are not counted in tokens, and nothing announces what is left",
    ),
    scope="account",
)

OLLAMA_LOCAL = replace(
    OLLAMA,
    name="ollama-local",
    source=f"{_OLLAMA_FACTS} and section 19 (self-hosted: the host's concurrency only); capture ollama-local-503",
    hosts=(),
    endpoints=tuple(replace(endpoint, path=f"**{endpoint.path}") for endpoint in _OLLAMA_NATIVE),
    credential=(),
)


# SiliconFlow, DeepInfra, Novita, Nebius, Hyperbolic, Featherless, Chutes and Lambda: hosts of open models.
#
# They speak OpenAI's protocol. Nebius announces its limits, which follow the use of the last quarter of an hour. The
# others announce nothing, so their limits are learned from refusals. DeepInfra and Featherless limit only concurrency.

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
    errors=(ErrorRow("concurrency", Cause.CONCURRENCY, _DEEPINFRA, status=_429, text=("rate limited",)),),
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

KNOWN = (
    GROQ, CEREBRAS, FIREWORKS, TOGETHER, SAMBANOVA, NVIDIA, BASETEN, REPLICATE, OLLAMA,
    SILICONFLOW, DEEPINFRA, NOVITA, NEBIUS, HYPERBOLIC, FEATHERLESS, CHUTES, LAMBDA,
)  # fmt: skip
