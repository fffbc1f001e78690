"""Replicate: predictions by model, deployment or version; 600 may be created a minute, over all models.

Source: captures replicate-200-get, replicate-429-burst (provider-facts.md section 16, read 2026-11-21).
"""

from __future__ import annotations

from tidegate.providers._common import COMMON_ERRORS
from tidegate.providers._schema import Charging, Endpoint, HeaderRow, Provider

_FACTS = "provider-facts.md section 16, read 2026-11-21"

REPLICATE = Provider(
    name="replicate",
    source=f"{_FACTS} and section 19 (account-wide)",
    hosts=("api.replicate.com",),
    endpoints=(
        Endpoint("/v1/predictions"),
        Endpoint("/v1/models/{+model}/predictions"),
        Endpoint("/v1/deployments/{+model}/predictions"),
    ),
    credential=("authorization",),
    charging=Charging("nothing", "nothing", "nothing", "nothing", source=f"{_FACTS}: requests are all that is counted"),
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
    common_errors=COMMON_ERRORS,
    scope="account",
)
"""Table of Replicate's API."""
