"""Helpers for tables."""

from __future__ import annotations

from typing import Any, Literal

from tidegate.core.values import Refill, Unit
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import Bare, Charging, HeaderRow

_DRAFT = "draft-ietf-httpapi-ratelimit-headers-03..10, read 2026-11-20 (provider-facts.md section 0)"

MINUTE, HOUR, DAY, MONTH = 60.0, 3600.0, 86400.0, 2592000.0
"""Windows in seconds; a month is 30 days."""

Part = Literal["limit", "remaining", "reset"]
PARTS: tuple[Part, ...] = ("limit", "remaining", "reset")


def quota(
    suffix: str,
    unit: Unit,
    source: str,
    *,
    window: float | None = None,
    refill: Refill = "continuous",
    bare: Bare = "fit",
    parts: tuple[Part, ...] = PARTS,
    spellings: tuple[str, ...] = (),
) -> HeaderRow:
    """Return the quota in the headers `x-ratelimit-{limit,remaining,reset}-<suffix>`, or in some of them (`parts`).

    `spellings` are further suffixes of the same quota.
    """
    suffixes = (suffix, *spellings)
    limit, remaining, reset = (tuple(f"x-ratelimit-{part}-{s}" for s in suffixes if part in parts) for part in PARTS)
    return HeaderRow(
        name=suffix,
        unit=unit,
        source=source,
        limit=limit,
        remaining=remaining,
        reset=reset,
        window=window,
        refill=refill,
        bare=bare,
        label=unit if window is not None else "",
    )


def endpoints(base: str, *paths: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(f"{base}/{path}") for path in paths)


def at_admission(source: str) -> Charging:
    """Return the rule that a call is charged its input, and the mean output where output has a limit."""
    return Charging("input", "input", "mean", "nothing", source)


def up_to_the_bound(source: str, cache_reads_free: bool = False, **more: Any) -> Charging:
    """Return the rule that a call is charged its input and its own bound on output when it is admitted."""
    return Charging("input+max", "input", "mean", "nothing", source, cache_reads_free, **more)


def as_produced(source: str, cache_reads_free: bool = False) -> Charging:
    """Return the rule that output is charged as it is written."""
    return Charging("input", "input", "nothing", "mean", source, cache_reads_free)


IETF_ROW = HeaderRow(
    name="ratelimit",
    unit="requests",
    source=_DRAFT,
    dialect="ietf",
    refill="fixed",
    bare="seconds",
    limit=("ratelimit-limit",),
    remaining=("ratelimit-remaining",),
    reset=("ratelimit-reset",),
    combined=("ratelimit",),
    policy=("ratelimit-policy",),
)
"""Quota in the headers of the IETF draft, `RateLimit` and `RateLimit-Policy`, old and new."""
