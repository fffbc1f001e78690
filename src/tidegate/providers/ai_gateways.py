"""Vercel, Cloudflare, Portkey and Helicone: gateways to the providers behind them.

Each passes the answers of an upstream on, with its headers, so the quotas are mostly the upstream's. The key therefore
contains whatever names the upstream: the model (Vercel), the path (Cloudflare) or the request's headers (Portkey,
Helicone). These headers are listed as `credential`: they are digested with the keys and shown nowhere.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import IETF_ROW
from tidegate.providers._schema import Endpoint, ErrorRow, HeaderRow
from tidegate.providers.compatible import COMPATIBLE, EVERY_DIALECT, HEADERS, hosted
from tidegate.providers.openai import GENERATING

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
