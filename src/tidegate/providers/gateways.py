"""Tables of OpenRouter, Hugging Face, Vercel, Cloudflare, Portkey and Helicone: gateways to other providers."""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import DAY, HOUR, IETF_ROW, MINUTE, at_admission, endpoints
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, HeaderRow, Provider
from tidegate.providers.compatible import COMPATIBLE, EVERY_DIALECT, HEADERS, hosted
from tidegate.providers.openai import GENERATING

# OpenRouter: https://openrouter.ai/docs/api-reference/limits, and the refusals that its users report.
#
# Good answers carry no limits. A refusal quotes headers in its body. Refusals of an upstream provider are passed on;
# they do not concern the caller's quota. All models whose name ends in `:free` share the account's quota of free
# requests.

_OPENROUTER = "provider-facts.md section 18 (OpenRouter), read 2026-11-21"
_429 = frozenset({429})

OPENROUTER = Provider(
    name="openrouter",
    source=_OPENROUTER,
    hosts=("openrouter.ai",),
    endpoints=endpoints("/api/v1", "chat/completions", "completions", "responses", "embeddings", "messages"),
    credential=("authorization", "x-api-key"),
    charging=at_admission(
        f"{_OPENROUTER}: requests and credits are limited, tokens are not, so nothing is paced by this"
    ),
    headers=(
        HeaderRow(
            name="requests",
            unit="requests",
            source=f"capture openrouter-429-free-day; {_OPENROUTER}: the reset in milliseconds since 1970",
            limit=("x-ratelimit-limit",),
            remaining=("x-ratelimit-remaining",),
            reset=("x-ratelimit-reset",),
            refill="fixed",
        ),
    ),
    errors=(
        ErrorRow(
            name="slope",
            cause=Cause.SLOPE,
            source="capture openrouter-alibaba-burst (paperclip issue 2885)",
            text=("request rate increased too quickly",),
        ),
        ErrorRow(
            "credits",
            Cause.MONEY,
            f"{_OPENROUTER}: limit_source openrouter_credits",
            codes=frozenset({"openrouter_credits"}),
        ),
        ErrorRow(
            name="free_per_day",
            cause=Cause.DAY,
            source="capture openrouter-429-free-day (openclaude issue 936)",
            status=_429,
            text=("free-models-per-day",),
            window=DAY,
        ),
        ErrorRow(
            name="free_per_minute",
            cause=Cause.RATE,
            source=f"{_OPENROUTER}: 20 a minute; the words as in capture openrouter-429-free-day [inf]",
            status=_429,
            text=("free-models-per-min",),
            window=MINUTE,
        ),
        ErrorRow(
            name="upstream_code",
            cause=Cause.OTHERS_CAPACITY,
            source=f"{_OPENROUTER}: limit_source upstream_provider_shared_pool",
            codes=frozenset({"upstream_provider_shared_pool"}),
        ),
        ErrorRow(
            name="upstream",
            cause=Cause.OTHERS_CAPACITY,
            source=f"{_OPENROUTER}: an upstream's 429 by name; capture openrouter-alibaba-burst (Upstream error)",
            status=_429,
            text=("provider returned error", "upstream error", "rate-limited upstream"),
        ),
    ),
    pooled=(":free",),
    body_headers=True,
)


# Hugging Face's inference router, which passes on the answers of the chosen provider.
#
# https://huggingface.co/docs/inference-providers; the Hub's own limits, in the IETF's fields, are documented in
# huggingface/hub-docs docs/hub/rate-limits.md (2025-09).

_HUGGING_FACE = "provider-facts.md section 18 (Hugging Face), read 2026-11-21"

_PATHS = ("chat/completions", "completions", "responses", "embeddings", "images/generations")

HUGGING_FACE = Provider(
    name="huggingface",
    source=f"{_HUGGING_FACE}; captures hf-router-cerebras-int64, hf-router-together-200-retry-after",
    hosts=("router.huggingface.co", "api-inference.huggingface.co"),
    endpoints=(
        *endpoints("/v1", *_PATHS),
        *endpoints("/{family}/v1", *_PATHS),
        *endpoints("/{family}/models/{}/{model}/v1", *_PATHS),
        *endpoints("/{family}/{}/{}", *_PATHS),  # the upstream's own base path: `/groq/openai/v1` [unv]
        Endpoint("/{family}/models/{}/{model}"),
    ),
    charging=COMPATIBLE.charging,
    headers=COMPATIBLE.headers,
    errors=(
        ErrorRow(
            name="free_per_hour",
            cause=Cause.RATE,
            source="capture hf-legacy-hourly (reset hourly)",
            status=frozenset({429}),
            text=("free usage limit",),
            window=HOUR,
        ),
        *COMPATIBLE.errors,
    ),
)


# Vercel, Cloudflare, Portkey and Helicone: gateways to the providers behind them.
#
# Each passes the answers of an upstream on, with its headers, so the quotas are mostly the upstream's. The key
# therefore contains whatever names the upstream: the model (Vercel), the path (Cloudflare) or the request's headers
# (Portkey, Helicone). These headers are listed as `credential`: they are digested with the keys and shown nowhere.

_READ = "read 2026-11-23"

_GOOGLE = tuple(
    Endpoint(f"**/{version}/models/{{model}}:{method}", streams=method.startswith("stream"))
    for version in ("v1", "v1beta")
    for method in ("generateContent", "streamGenerateContent", "embedContent")
)

VERCEL = hosted(
    "vercel",
    f"https://vercel.com/docs/ai-gateway/rate-limits {_READ}: the free tier by model, else the limits of the upstream",
    "ai-gateway.vercel.sh",
)

_CLOUDFLARE = f"https://developers.cloudflare.com/ai-gateway/features/rate-limiting/ {_READ}"
_UPSTREAM = "/v1/{scope}/{scope}/{scope}"
_OF_GOOGLE = ("generateContent", "streamGenerateContent", "embedContent")

CLOUDFLARE = hosted(
    "cloudflare",
    f"{_CLOUDFLARE}; paths: https://developers.cloudflare.com/ai-gateway/get-started/connecting-applications/ {_READ}",
    "gateway.ai.cloudflare.com",
    endpoints=(
        *(Endpoint(f"{_UPSTREAM}{base}/{path}") for base in ("", "/v1") for path in (*GENERATING, "messages")),
        *(Endpoint(f"{_UPSTREAM}/{path}") for path in ("v1/chat", "v2/chat", "v1/rerank", "v2/rerank")),
        *(
            Endpoint(f"{_UPSTREAM}/{version}/models/{{model}}:{method}", streams=method.startswith("stream"))
            for version in ("v1", "v1beta")
            for method in _OF_GOOGLE
        ),
        *(
            Endpoint(f"/v1/{{scope}}/{{scope}}/azure-openai/{{scope}}/{{model}}/{path}")
            for path in ("chat/completions", "completions", "embeddings", "responses")
        ),
        Endpoint("/v1/{scope}/{scope}/workers-ai/@cf/{+model}"),
        Endpoint("/v1/{scope}/{scope}"),  # the universal endpoint, whose body lists upstreams; the first one's model
    ),
    credential=("authorization", "x-api-key", "api-key", "x-goog-api-key", "cf-aig-authorization"),
)

_PORTKEY = f"https://portkey.ai/docs/api-reference/inference-api/headers {_READ}"

PORTKEY = hosted(
    "portkey",
    f"{_PORTKEY}: headers choose the upstream",
    "api.portkey.ai",
    endpoints=(*EVERY_DIALECT, *_GOOGLE),
    credential=(
        *COMPATIBLE.credential,
        "x-portkey-api-key",
        "x-portkey-provider",
        "x-portkey-virtual-key",
        "x-portkey-config",
        "x-portkey-custom-host",
    ),
    errors=(
        ErrorRow(
            name="budget",
            cause=Cause.MONEY,
            source=f"https://portkey.ai/docs/api-reference/inference-api/error-codes {_READ}",
            status=frozenset({412}),
        ),
    ),
)

_HELICONE = f"https://docs.helicone.ai/features/advanced-usage/custom-rate-limits {_READ}"

HELICONE = hosted(
    "helicone",
    f"https://docs.helicone.ai/helicone-headers {_READ}: the host or a header chooses the upstream",
    "*.helicone.ai",
    "*.hconeai.com",
    endpoints=(*EVERY_DIALECT, *_GOOGLE),
    credential=(*COMPATIBLE.credential, "helicone-auth", "helicone-target-url", "helicone-openai-api-base"),
    headers=(
        *HEADERS,
        HeaderRow(
            name="helicone",
            unit="requests",
            source=f"{_HELICONE}: the IETF's fields under names of its own; a quota of money (u=cents) is not read",
            dialect="ietf",
            refill=IETF_ROW.refill,
            limit=("helicone-ratelimit-limit",),
            remaining=("helicone-ratelimit-remaining",),
            policy=("helicone-ratelimit-policy",),
        ),
    ),
)

KNOWN = (OPENROUTER, HUGGING_FACE, VERCEL, CLOUDFLARE, PORTKEY, HELICONE)
