"""Ollama: a self-hosted server, whose only limit is its concurrency, and the cloud with the same dialect.

Source: ollama/ollama server/sched.go and captures ollama-* (provider-facts.md section 10, read 2026-11-21).
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.providers._common import COMMON_ERRORS
from tidegate.providers._schema import Charging, Endpoint, Provider

_FACTS = "provider-facts.md section 10, read 2026-11-21"

ERRORS = ()

_NATIVE = (
    Endpoint("/api/chat", streams=True, plain=True),
    Endpoint("/api/generate", streams=True, plain=True),
    Endpoint("/api/embed", plain=True),
    Endpoint("/api/embeddings", plain=True),
)
_ROUTES = ("chat/completions", "completions", "responses", "embeddings")

OLLAMA = Provider(
    name="ollama",
    source=f"{_FACTS}; captures ollama-cloud-429, ollama-404",
    hosts=("ollama.com",),
    endpoints=(*_NATIVE, *(Endpoint(f"/v1/{path}") for path in _ROUTES)),
    credential=("authorization",),
    charging=Charging(
        tokens="nothing",
        input_tokens="nothing",
        output_tokens="nothing",
        produced="nothing",
        source=f"{_FACTS}: a plan's windows are not counted in tokens, and nothing announces what is left",
    ),
    headers=(),
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
    scope="account",
)
"""Table of Ollama's cloud."""

OLLAMA_LOCAL = replace(
    OLLAMA,
    name="ollama-local",
    source=f"{_FACTS} and section 19 (self-hosted: the host's concurrency only); capture ollama-local-503",
    hosts=(),
    endpoints=tuple(replace(endpoint, path=f"**{endpoint.path}") for endpoint in _NATIVE),
    credential=(),
)
"""Table of an Ollama server on any host."""
