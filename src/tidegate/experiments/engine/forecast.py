"""Time that the rest of a run takes by the limits of its keys, not by its speed so far.

Theory of operation. An opening burst is much faster than the rate that follows, so a recent speed foretells far too
little. Each key forecasts when it will have admitted a number of calls, from its quotas, its pace and its slots. The
calls of an item are counted while the run continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.snapshot import estimate_eta
from tidegate.core.values import Cost, Key


class StageRest(NamedTuple):
    """Stage behind `key`: its finished items, and its `rest`, which are not started. A call costs `cost`."""

    key: Key | None
    cost: Cost | None
    finished: int
    rest: int


class RestForecast:
    """Forecast for one run; it counts the answered calls of each key for each finished item from its first use on."""

    def __init__(self, registry: RateLimitRegistry) -> None:
        self._registry = registry
        self._first: dict[Key, tuple[int, int]] = {}

    def seconds(self, stages: Iterable[StageRest]) -> float | None:
        """Return the seconds until the last item is done; None where a key is unknown, or foretells nothing."""
        finished: dict[Key, int] = {}
        rest: dict[Key, int] = {}
        costs: dict[Key, Cost] = {}
        for stage in stages:
            if stage.key is None:
                if stage.rest:
                    return None
                continue
            finished[stage.key] = finished.get(stage.key, 0) + stage.finished
            rest[stage.key] = rest.get(stage.key, 0) + stage.rest
            if stage.cost is not None:
                costs[stage.key] = stage.cost
        latest = 0.0
        for key, items in rest.items():
            seconds = self._of_key(key, costs.get(key), finished[key], items)
            if seconds is None:
                return None
            latest = max(latest, seconds)
        return latest

    def _of_key(self, key: Key, cost: Cost | None, finished: int, items: int) -> float | None:
        found = self._registry.forecast(key, cost)
        if found is None:
            return None
        outlook, answered = found
        answered_first, finished_first = self._first.setdefault(key, (answered, finished))
        ended = finished - finished_first
        calls = max(1.0, (answered - answered_first) / ended) if ended else 1.0
        seconds = estimate_eta(outlook._replace(waiting=outlook.waiting + ceil(items * calls))).seconds
        return None if seconds is None else seconds + (outlook.latency or 0.0)
