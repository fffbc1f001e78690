"""Lepton: one subdomain a model (or a workspace), nothing of its own known beyond OpenAI's protocol."""

from __future__ import annotations

from dataclasses import replace

from tidegate.providers._common import endpoints
from tidegate.providers.compatible import COMPATIBLE
from tidegate.providers.openai import GENERATING

LEPTON = replace(
    COMPATIBLE,
    name="lepton",
    source="PROVIDERS.md section 14 (no answer of it was found; 10 RPM on the free tier [unv]), read 2026-11-21",
    hosts=("*.lepton.run",),
    endpoints=endpoints("/api/v1", *GENERATING),
    credential=("authorization",),
    closed=(),
)
