"""Voyage, Jina, AI21 and Writer: makers of embeddings, rankers and models of their own.

None announces a quota. Voyage and AI21 keep it by model. Jina keeps it by API and key, Writer for the account.
"""

from __future__ import annotations

from tidegate.providers._common import endpoints
from tidegate.providers._schema import Endpoint
from tidegate.providers.compatible import EVERY_DIALECT, hosted

_READ = "read 2026-11-23"

VOYAGE = hosted(
    "voyage",
    f"https://docs.voyageai.com/docs/rate-limits {_READ}: RPM and TPM of the organization by model, in no header; "
    "https://www.mongodb.com/docs/voyageai/management/rate-limits: lower ones of a project",
    "api.voyageai.com",
    "ai.mongodb.com",
    endpoints=endpoints("/v1", "embeddings", "multimodalembeddings", "contextualizedembeddings", "rerank"),
    headers=(),
)

_JINA = f"https://jina.ai/api-dashboard/pricing {_READ}"

JINA = hosted(
    "jina",
    f"{_JINA}: RPM, TPM and concurrency of the key, by API and not by model; in no header",
    "api.jina.ai",
    "deepsearch.jina.ai",
    endpoints=(
        *(Endpoint(f"/v1/{path}", family=path) for path in ("embeddings", "rerank", "classify")),
        Endpoint("/v1/chat/completions"),
    ),
    headers=(),
    scope="account",
)

AI21 = hosted(
    "ai21",
    f"https://docs.ai21.com/docs/rate-limits {_READ}: requests a second and a minute by model, in no header",
    "api.ai21.com",
    headers=(),
)

WRITER = hosted(
    "writer",
    f"https://dev.writer.com/api-reference/rate-limits {_READ}: RPM and TPM of the account, in no header",
    "api.writer.com",
    endpoints=(*EVERY_DIALECT, *endpoints("/v1", "chat", "completions"), Endpoint("/v1/applications/{}")),
    headers=(),
    scope="account",
)
