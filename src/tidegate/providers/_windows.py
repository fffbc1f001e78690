"""Names of windows, and what an outcome's readings come to by window."""

from __future__ import annotations

from tidegate.core.values import Outcome, Reading
from tidegate.core.window_inference import snap, window_interval
from tidegate.providers._schema import Provider

_NAMES = {1.0: "s", 60.0: "minute", 3600.0: "hour", 86400.0: "day", 604800.0: "week", 2592000.0: "month"}


def window_name(seconds: float) -> str:
    """The window's name in a dimension: `s`, `10s`, `minute`, `hour`, `day`, `week`, `month` (30 days)."""
    return _NAMES.get(seconds) or f"{seconds:g}s"


def dimensions(outcome: Outcome, provider: Provider) -> dict[str, dict[str, float]]:
    """`limits`, `remaining` and `reset_after_s` by `<what>_per_<window>`, the window inferred where none was declared.

    For display, `tidegate explain` and tests: stateless, so a bucket that is nearly full is taken for the provider's
    default. A quota of unknown window and no table row keeps its bare name.
    """
    found: dict[str, dict[str, float]] = {"limits": {}, "remaining": {}, "reset_after_s": {}}
    for reading in outcome.readings:
        name = _dimension(reading, provider)
        values = (reading.limit, reading.remaining, reading.reset_after)
        for group, value in zip(found.values(), values, strict=True):
            if value is not None:
                group[name] = value
    return found


def window_of(reading: Reading, provider: Provider) -> float | None:
    """The reading's window in seconds: as declared, else inferred from its numbers, else the provider's default."""
    if reading.window is not None:
        return reading.window
    if reading.name not in provider.labels:
        return None
    default = provider.default_window
    if reading.limit is None or reading.remaining is None or reading.reset_after is None:
        return default
    interval = window_interval(
        reading.limit, reading.remaining, reading.reset_after, reading.resolution, reading.quantum
    )
    return default if interval is None else snap(*interval, prefer=default) or default


def _dimension(reading: Reading, provider: Provider) -> str:
    window = window_of(reading, provider)
    if window is None:
        return reading.name.replace("-", "_")
    return f"{provider.labels.get(reading.name, reading.unit)}_per_{window_name(window)}"
