"""Statistics of a run: the counts and times of one claim, and their sum over all claims of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tidegate.core.token_totals import TokenTotals, tokens_text

STEP = 1.05
"""Ratio of two neighbouring classes of latencies. Raising it makes percentiles coarser and the stored classes fewer.
Chosen: a percentile is right within 2.5 per cent, from a microsecond to a day in 520 classes."""

CLASSES = 1.0 / math.log(STEP)
"""Classes for each factor of e. Derived from `STEP`."""


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of one claim, or of several added up. Durations are in seconds.

    `submitted` items (tasks and judgements) were dispatched; `answered`, `failed` and `parked` ones have such a result.
    `calls` counts attempts, of which `capacity_retries` were refused for lack of capacity. `transient_retries` counts
    items that were queued again after a failure. At most `max_concurrent` functions were in flight.

    Items waited `throttle_seconds` in all: after a refusal, or inside a call. For `throttled_for`, at least one did so;
    for `executing_for`, at least one function was in flight. The longest single wait lasted `peak_wait`. `latencies`
    counts answered attempts by class: class `n` is about `STEP ** n` seconds. Tokens and costs are those of
    `TokenTotals`.
    """

    submitted: int = 0
    answered: int = 0
    failed: int = 0
    parked: int = 0
    calls: int = 0
    capacity_retries: int = 0
    transient_retries: int = 0
    max_concurrent: int = 0
    throttle_seconds: float = 0.0
    peak_wait: float = 0.0
    throttled_for: float = 0.0
    executing_for: float = 0.0
    wall_seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    metered: int = 0
    priced: int = 0
    nanodollars: int = 0
    latencies: Mapping[str, int] = field(default_factory=dict)

    @property
    def latency_p50(self) -> float | None:
        """Return the median latency of the answered attempts, within 2.5 per cent; None without any."""
        return self._latency(0.5)

    @property
    def latency_p99(self) -> float | None:
        """Return the 99th percentile of the latencies of the answered attempts; None without any."""
        return self._latency(0.99)

    @property
    def tokens(self) -> TokenTotals:
        """Return the tokens of the metered answers, and what they cost."""
        return TokenTotals(*(getattr(self, name) for name in TokenTotals._fields))

    def _latency(self, share: float) -> float | None:
        rest = int((sum(self.latencies.values()) - 1) * share)
        for number in sorted(map(int, self.latencies)):
            rest -= self.latencies[str(number)]
            if rest < 0:
                return float(STEP**number)
        return None

    def __add__(self, other: RunStats) -> RunStats:
        """Return the statistics of both claims: sums, and the greater `max_concurrent` and `peak_wait`."""
        summed = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)[:-1]}
        classes = dict(self.latencies)
        for number, count in other.latencies.items():
            classes[number] = classes.get(number, 0) + count
        for name in ("max_concurrent", "peak_wait"):
            summed[name] = max(getattr(self, name), getattr(other, name))
        return RunStats(**summed, latencies=classes)

    def stored(self) -> dict[str, Any]:
        """Return the statistics as the store keeps them."""
        return asdict(self)

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON, with percentiles instead of the classes of latencies."""
        told = self.stored()
        del told["latencies"], told["nanodollars"]
        return {**told, "cost": self.tokens.cost, "latency_p50": self.latency_p50, "latency_p99": self.latency_p99}

    def __str__(self) -> str:
        """Return the statistics in one line."""
        parts = [f"{self.calls} function {'call' if self.calls == 1 else 'calls'} in {self.wall_seconds:.1f} s"]
        parts += [f"{self.capacity_retries} refused"] if self.capacity_retries else []
        parts += [f"{self.transient_retries} retried"] if self.transient_retries else []
        parts += [f"throttled for {self.throttled_for:.1f} s"] if self.throttled_for >= 0.05 else []
        if text := tokens_text(self.tokens):
            parts.append(text)
        if self.latency_p50 is not None and self.latency_p99 is not None:
            parts.append(f"latency {self.latency_p50:.2f} s, p99 {self.latency_p99:.2f} s")
        return ", ".join(parts)


def added_up(claims: Iterable[Mapping[str, Any]]) -> RunStats:
    """Return the sum of stored statistics; those that this version does not know are left out."""
    known = {each.name for each in fields(RunStats)}
    total = RunStats()
    for stored in claims:
        total += RunStats(**{name: value for name, value in stored.items() if name in known})
    return total


class BusyTime:
    """Time in which at least one of several things goes on, their sum, and the longest of them; in seconds.

    `active` are those that go on, with their begins.
    """

    def __init__(self) -> None:
        self.some = self.total = self.longest = 0.0
        self.active: dict[object, float] = {}
        self._busy_since = 0.0

    def begin(self, one: object, now: float) -> None:
        """Note that one of them begins."""
        if not self.active:
            self._busy_since = now
        self.active.setdefault(one, now)

    def end(self, one: object, now: float) -> None:
        """Note that one of them ends; repeating it does nothing."""
        since = self.active.pop(one, None)
        if since is not None:
            self.total += now - since
            self.longest = max(self.longest, now - since)
            if not self.active:
                self.some += now - self._busy_since

    def end_all(self, now: float) -> None:
        """Note that all of them end."""
        for one in list(self.active):
            self.end(one, now)
