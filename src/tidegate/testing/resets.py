"""Rounding of the resets that headers announce, where a provider deviates from its dialect."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal, get_args

Resets = Literal["own", "exact", "ms", "ms-up", "seconds", "seconds-up"]
RESETS: tuple[Resets, ...] = get_args(Resets)

_STEPS: dict[Resets, float] = {"own": 1.0, "exact": 1e-6, "ms": 1e-3, "ms-up": 1e-3, "seconds": 1.0, "seconds-up": 1.0}
_DIGITS: dict[Resets, int] = {"exact": 6, "ms": 3, "ms-up": 3}
_TOLERANCE = 1e-6
"""Share of a step that a float may miss a multiple by."""


def rounded(seconds: float, resets: Resets) -> float:
    """Return `seconds` as a multiple of the step: cut, or rounded up if the name ends so."""
    step = _STEPS[resets]
    if resets == "exact":
        return round(seconds / step) * step
    if resets.endswith("up"):
        return math.ceil(seconds / step - _TOLERANCE) * step
    return math.floor(seconds / step + _TOLERANCE) * step


def instant(wall: float, resets: Resets) -> str:
    """Return a rounded instant as RFC 3339, with the digits of its step; `own` is cut to whole seconds."""
    if resets == "own":
        wall = math.floor(wall)
    digits = _DIGITS.get(resets, 0)
    micros = round(rounded(wall, resets) * 1e6)
    text = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{micros % 1_000_000:06d}"[: digits + 1] if digits else ""
    return f"{text}{fraction}Z"
