"""What a run of a scenario came to, in virtual time or over HTTP, and how that stands to what is accepted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.common import Check
from bench.scenarios import Row
from tidegate.testing import Schedule, Truth

MOST_DISPLACED = 2.0
"""Places, on average, by which first admissions may come out of order."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Durations are in seconds.

    refused    calls that were refused, without those that met an outage (`hits`)
    displaced  places, on average, by which calls left the queue for the first time out of their order
    overtaken  the same as the provider saw it: with what happens on the way, on connections of different age
    behind     how much later than the oracle's the median call was let in: the latency that was added, without the
               waiting that the oracle could not spare it either
    held       the median time from admission to answer, over the median that an unloaded provider takes
    cpu        seconds of this process for each call
    bare       the makespan of the plain SDK, where the row is measured against that
    delay      the summed time from each call's arrival to its answer, and the oracle's, where calls have arrivals
    """

    row: str
    seed: int
    calls: int
    ideal: float
    makespan: float
    lost: int
    refused: int
    hits: int
    displaced: float
    overtaken: float
    peak: int
    behind: float
    held: float
    cpu: float
    bare: float | None = None
    delay: tuple[float, float] | None = None
    losses: Mapping[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Makespan, or where calls have arrivals the summed delay, over what it is compared with."""
        return (self.makespan if self.delay is None else self.delay[0]) / self.compared

    @property
    def compared(self) -> float:
        """Seconds of the oracle, or of the plain SDK; where calls have arrivals, those of the oracle's summed delay."""
        return self.bare or self.ideal if self.delay is None else self.delay[1]

    @property
    def refused_share(self) -> float:
        """Refusals per call."""
        return self.refused / self.calls


def measured(
    row: Row,
    seed: int,
    truth: Truth,
    sent: Iterable[int],
    *,
    makespan: float,
    cpu: float,
    losses: Mapping[str, int],
    bare: float | None = None,
    ended_at: Mapping[int, float] | None = None,
) -> Run:
    """The run that left this truth behind; `sent` are the calls in the order in which they left the queue.

    It began with the first admission, and so does the oracle: what an SDK takes to make its first requests is its own.
    `makespan` and `ended_at`, the instant of each call's end, are in seconds of the provider's clock.
    """
    start = truth.admitted_at[0] if truth.admitted_at else 0.0
    oracle = row.ideal(seed, start)
    hits = truth.total.refused.get("outage", 0)
    return Run(
        row=row.name,
        seed=seed,
        calls=row.count,
        ideal=oracle.makespan - start,
        makespan=makespan - start,
        lost=sum(losses.values()),
        refused=truth.total.refusals - hits,
        hits=hits,
        displaced=displacement(sent),
        overtaken=displacement(map(int, truth.order)),
        peak=truth.total.peak_in_flight,
        behind=behind(truth, oracle),
        held=statistics.median(truth.held) / unloaded(row, seed) if truth.held else math.nan,
        cpu=cpu / row.count,
        bare=bare,
        delay=delays(row, oracle, ended_at) if row.arrivals and ended_at is not None else None,
        losses=dict(losses),
    )


def delays(row: Row, oracle: Schedule, ended_at: Mapping[int, float]) -> tuple[float, float]:
    """Return the summed time from each call's arrival to its end, and the oracle's; a call without an end has none."""
    arrived = [(number, row.arrivals[number]) for number in ended_at]
    return (
        sum(ended_at[number] - at for number, at in arrived),
        sum(oracle.ended_at[number] - at for number, at in arrived),
    )


def displacement(numbers: Iterable[int]) -> float:
    """By how many places, on average, the first of each of these numbers is out of order."""
    order = list(dict.fromkeys(numbers))
    places = {number: place for place, number in enumerate(sorted(order))}
    return statistics.fmean(abs(place - places[number]) for place, number in enumerate(order)) if order else math.nan


def behind(truth: Truth, oracle: Schedule) -> float:
    """By how many seconds the median call was let in later than the oracle's."""
    pairs = zip(map(int, truth.order), truth.admitted_at, strict=False)
    late = [at - oracle.admitted_at[number] for number, at in pairs]
    return statistics.median(late) if late else math.nan


def unloaded(row: Row, seed: int) -> float:
    """Median seconds that an answer takes where the oracle asks."""
    scenario = row.seeded(seed)
    return statistics.median(scenario.duration(scenario.with_output(call)) for call in row.calls(seed))


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the table: its name, what it is of a run, and how it is written."""

    name: str
    of: Callable[[Run], float]
    form: str


COLUMNS = (
    Column("ideal s", lambda run: run.bare or run.ideal, ".2f"),
    Column("makespan s", lambda run: run.makespan, ".2f"),
    Column("ratio", lambda run: run.ratio, ".3f"),
    Column("429s/call", lambda run: run.refused_share, ".4f"),
    Column("hits", lambda run: run.hits, ".0f"),
    Column("lost", lambda run: run.lost, ".0f"),
    Column("displaced", lambda run: run.displaced, ".2f"),
    Column("overtaken", lambda run: run.overtaken, ".2f"),
    Column("peak", lambda run: run.peak, ".0f"),
    Column("behind s", lambda run: run.behind, ".3f"),
    Column("held", lambda run: run.held, ".2f"),
    Column("CPU us/call", lambda run: run.cpu * 1e6, ".0f"),
)


def medians(runs: Sequence[Run]) -> dict[str, float]:
    """Each column's median over the seeds."""
    return {column.name: statistics.median(column.of(run) for run in runs) for column in COLUMNS}


def checks(row: Row, runs: Sequence[Run]) -> list[Check]:
    """What is asked of a row, over its seeds; a lost call is one too many whichever seed lost it."""
    middle, family = medians(runs), row.family
    asked = [
        Check(f"{row.name}: ratio", middle["ratio"], family.ratio),
        Check(f"{row.name}: 429s per call", middle["429s/call"], family.refused),
        Check(f"{row.name}: calls lost", max(run.lost for run in runs), family.lost),
        Check(f"{row.name}: displaced", middle["displaced"], MOST_DISPLACED),
    ]
    if family.hits is not None:
        asked.append(Check(f"{row.name}: hits in the outage", middle["hits"], family.hits))
    if family.stretched is not None:
        asked.append(Check(f"{row.name}: latency over the unloaded", middle["held"], family.stretched))
    return asked


def figures(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """The runs by row, for the results file."""
    return {
        name: {"medians": medians(of_row), "runs": [{column.name: column.of(run) for column in COLUMNS}
                                                     | {"seed": run.seed, "losses": dict(run.losses)}
                                                     for run in of_row]}
        for name, of_row in runs.items()
    }  # fmt: skip
