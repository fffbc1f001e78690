"""Google's Gemini API and Vertex AI: no headers; all facts are in the error's details.

Source: https://ai.google.dev/gemini-api/docs/rate-limits and captures of 2025 and 2026 (provider-facts.md section 4).
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause
from tidegate.providers._common import at_admission
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, Provider

_LIMITS = "https://ai.google.dev/gemini-api/docs/rate-limits (provider-facts.md section 4, read 2026-11-21)"
_429 = frozenset({429})

_SHARED = ErrorRow(
    name="shared_capacity",
    cause=Cause.OTHERS_CAPACITY,
    source="capture gemini-429-shared-capacity; provider-facts.md section 4 (no details, a link to error-code-429)",
    status=_429,
    text=("error-code-429",),
)

ERRORS = (_SHARED,)

_METHODS = ("generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "predict")
_PARTNER_METHODS = ("rawPredict", "streamRawPredict")
_OPENAI_ROUTES = ("chat/completions", "embeddings", "images/generations")
_VERSIONS = ("v1", "v1beta", "v1alpha", "v1beta1")


def _method(model: str, method: str) -> Endpoint:
    return Endpoint(f"{model}:{method}", streams=method.startswith("stream"))


_CHARGING = at_admission(
    f"{_LIMITS}: the tokens of a minute are input tokens, as quotaId says in gemini-429-paid-per-minute"
)

GEMINI = Provider(
    name="gemini",
    source=f"{_LIMITS}; captures gemini-200-no-headers and five refusals",
    hosts=("generativelanguage.googleapis.com",),
    endpoints=(
        *(
            _method(f"/{version}/{kind}/{{model}}", method)
            for version in _VERSIONS[:3]
            for kind in ("models", "tunedModels")
            for method in _METHODS
        ),
        *(Endpoint(f"/v1beta/openai/{path}") for path in _OPENAI_ROUTES),
        # google-genai 3.4.0 `_gaos/interactions.py`; the model is in the body.
        *(Endpoint(f"/{version}/interactions", plain=True) for version in _VERSIONS[:3]),
    ),
    credential=("x-goog-api-key", "authorization"),
    query_credential=(("key", "x-goog-api-key"),),
    charging=_CHARGING,
    errors=ERRORS,
    image_chars=1032,  # 258 tokens: ai.google.dev/gemini-api/docs/tokens [unv], at 4 characters
)
"""Table of the Gemini API."""

_PROJECT = "/projects/{scope}/locations/{scope}"

VERTEX = Provider(
    name="vertex",
    source="provider-facts.md sections 4 and 19; captures vertex-200-no-headers, vertex-429-partner-model",
    hosts=("aiplatform.googleapis.com", "*-aiplatform.googleapis.com"),
    endpoints=(
        *(
            _method(f"/{version}{project}/publishers/{{}}/models/{{model}}", method)
            for version in _VERSIONS
            for project in (_PROJECT, "")
            for method in (*_METHODS, *_PARTNER_METHODS)
        ),
        *(
            Endpoint(f"/{version}{_PROJECT}/endpoints/openapi/{path}")
            for version in _VERSIONS
            for path in _OPENAI_ROUTES
        ),
    ),
    # Without a project in the path (express mode) the key identifies the payer. OAuth tokens change by the hour, so
    # they do not.
    credential=("x-goog-api-key",),
    query_credential=(("key", "x-goog-api-key"),),
    charging=_CHARGING,
    errors=(
        *ERRORS[:-1],
        ErrorRow(
            name="dynamic_shared_quota",
            cause=Cause.OTHERS_CAPACITY,
            source="provider-facts.md section 4 (Gemini 2 and later: no limit of one's own on Vertex), read 2026-11-21",
            status=_429,
            text=("resource exhausted",),
        ),
        ERRORS[-1],
    ),
    image_chars=1032,  # as above
)
"""Table of Vertex AI."""


def _anywhere(provider: Provider, name: str) -> Provider:
    """Return the same dialect for any base URL, without OpenAI's routes, which the compatible tables cover."""
    return replace(
        provider,
        name=name,
        source=f"{provider.source}; any base URL: google-genai 3.4.0 `_base_url.py`",
        hosts=(),
        endpoints=tuple(
            replace(endpoint, path=f"**{endpoint.path}")
            for endpoint in provider.endpoints
            if not endpoint.path.endswith(_OPENAI_ROUTES)
        ),
    )


GEMINI_COMPATIBLE = _anywhere(GEMINI, "gemini-compatible")
"""Table of any gateway that speaks the Gemini API."""
VERTEX_COMPATIBLE = _anywhere(VERTEX, "vertex-compatible")
"""Table of any gateway that speaks the API of Vertex AI."""
