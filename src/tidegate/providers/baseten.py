"""Baseten: https://docs.baseten.co/inference/model-apis/rate-limits-and-budgets, Model APIs and dedicated models.

A dedicated model has a separate host, and so a separate key.
"""

from __future__ import annotations

from tidegate.providers._common import COMMON_ERRORS, endpoints
from tidegate.providers._schema import Charging, Endpoint, Provider

_DOCS = "https://docs.baseten.co/inference/model-apis/rate-limits-and-budgets (provider-facts.md section 17)"
_PATHS = ("chat/completions", "completions", "embeddings", "messages")

BASETEN = Provider(
    name="baseten",
    source=_DOCS,
    hosts=("inference.baseten.co", "model-*.api.baseten.co"),
    endpoints=(
        *endpoints("/v1", *_PATHS),
        *endpoints("**/sync/v1", *_PATHS),
        Endpoint("**/predict"),
    ),
    credential=("authorization",),
    charging=Charging(
        tokens="input",
        input_tokens="input",
        output_tokens="nothing",
        produced="mean",
        source=f"{_DOCS}: input and output together, what is cached at its full weight",
    ),
    headers=(),
    common_errors=COMMON_ERRORS,
    scope="account",
)
