"""What a controller does in the course of a run in virtual time, sampled at even instants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bench.scenarios import Row
from bench.virtual import Laboratory
from tidegate.core.snapshot import KeySnapshot
from tidegate.settings import Settings
from tidegate.testing import Schedule

SAMPLES = 400
"""Instants of a figure: one for each of its points."""

LONGEST = 4.0
"""Ideals after which nothing is drawn any more."""


@dataclass(slots=True)
class Trace:
    """One run in the course of time.

    Each list has a figure for every instant of `times` (seconds). `pace` is the pacer's, in calls a second, NaN where
    it is idle. `mirrored` is the level of each quota as the controller believes it, `true` the level of each limiter
    as the provider counts it, both as shares of their limit (NaN where there is none). `admitted`, `refused` and
    `met_outage` are instants at the provider.
    """

    row: Row
    oracle: Schedule
    times: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    in_flight: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)
    gates: list[str] = field(default_factory=list)
    mirrored: dict[str, list[float]] = field(default_factory=dict)
    true: dict[str, list[float]] = field(default_factory=dict)
    admitted: tuple[float, ...] = ()
    refused: tuple[float, ...] = ()
    met_outage: tuple[float, ...] = ()
    makespan: float = 0.0

    @property
    def end(self) -> float:
        """The last second that a figure shows."""
        return 1.03 * max(self.oracle.makespan, self.times[-1] if self.times else self.makespan)

    @property
    def title(self) -> str:
        """What came of it, in a line."""
        ratio, share = self.makespan / self.oracle.makespan, len(self.refused) / self.row.count
        return f"{self.row.name}: {ratio:.3f} of the oracle's time, {share:.3f} refusals a call"

    def bound(self) -> list[tuple[str, float, float]]:
        """Which gate held the line back from when to when, in seconds; not which of its quotas."""
        step = self.times[1] - self.times[0] if len(self.times) > 1 else 0.0
        found = []
        for gate, samples in groupby(zip(self.times, self.gates, strict=True), lambda pair: pair[1].partition(" ")[0]):
            instants = [at for at, _ in samples]
            if gate:
                found.append((gate, instants[0], instants[-1] + step))
        return found

    def sample(self, laboratory: Laboratory) -> None:
        """Adds an instant."""
        now = laboratory.now
        for key in laboratory.registry.snapshot().keys.values():
            self._controller(key, len(self.times))
            self.pace.append(_pace(laboratory))
            self.times.append(now)
        if self.times:
            account = next(iter(laboratory.accounts.truth().keys), "")  # the first one used, where there are several
            for level in laboratory.accounts.levels(account):
                share = level.remaining / level.limit if level.limit < math.inf else math.nan
                _put(self.true, level.name, share, len(self.times) - 1)

    def _controller(self, key: KeySnapshot, before: int) -> None:
        self.limit.append(key.limit)
        self.in_flight.append(key.in_flight)
        self.waiting.append(key.waiting)
        self.gates.append(key.gate if key.waiting else "")
        for quota in key.quotas:
            _put(self.mirrored, quota.name, quota.level / quota.limit if quota.limit else math.nan, before)


def per_second(instants: Iterable[float], edges: Sequence[float]) -> list[float]:
    """How many a second there were between each two of the edges, which are evenly apart and begin with 0."""
    width = edges[1] - edges[0]
    counts = [0] * (len(edges) - 1)
    for at in instants:
        place = int(at / width)
        if place < len(counts):
            counts[place] += 1
    return [count / width for count in counts]


def _pace(laboratory: Laboratory) -> float:
    pacer = laboratory.sends[-1].permit.state.pacer
    return pacer.rate if pacer.active else math.nan


def _put(series: dict[str, list[float]], name: str, value: float, before: int) -> None:
    """Appends to the series called `name`, which begins with as many gaps as there were instants before it."""
    line = series.setdefault(name, [])
    line.extend([math.nan] * (before - len(line)))
    line.append(value)


def record(row: Row, seed: int, settings: Settings | None = None) -> Trace:
    """One row at one seed, watched; watching changes nothing of it."""
    laboratory = Laboratory(row, seed, settings)
    trace = Trace(row, row.ideal(seed))
    step = 1.2 * trace.oracle.makespan / SAMPLES
    last = LONGEST * trace.oracle.makespan

    def look() -> None:
        trace.sample(laboratory)
        if laboratory.unfinished and laboratory.now < last:
            laboratory.after(step, look)

    laboratory.after(step / 2, look)
    laboratory.run()
    trace.admitted = laboratory.accounts.truth().admitted_at
    trace.refused = tuple(laboratory.refused_at)
    trace.met_outage = tuple(laboratory.met_outage_at)
    trace.makespan = laboratory.makespan
    return trace
