"""A figure of the odds by which refusals are explained, in one run: chance, slots, or a rate. Needs matplotlib.

    python -m bench.causes

The run is of a provider that first refuses one call in twenty as overloaded, and later a rate beside. The figure goes
to docs/images/causes.svg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

from bench.families import SILENT
from bench.plots import BINS, ORACLE, OURS, PACE, REFUSED, STYLE
from bench.scenarios import Row
from bench.trace import LONGEST, SAMPLES, per_second
from bench.virtual import Laboratory
from tidegate.core.chance_odds import BELIEVED_LOG_ODDS
from tidegate.core.events import Event, RateLimitHit
from tidegate.testing import Distribution, Fault, Limit, Scenario

matplotlib.use("svg")
from matplotlib import pyplot  # after the backend is chosen

PATH = Path(__file__).parent.parent / "docs" / "images" / "causes.svg"

SHOWN_LOG_ODDS = 30.0
"""Odds of about 10^13, beyond which the figure shows no difference."""

ROW = Row(
    name="chance, then a rate",
    family=SILENT,
    scenario=Scenario(
        dialect="none",
        latency=Distribution("lognormal", 0.3, 0.3),
        # Ten callers ask about 30 times a second, so the bucket refuses from its change on.
        limiters=(Limit(limit=60.0, window=1.0, burst=10, shares=((0.0, 1.0), (12.0, 0.2))),),
        faults=(Fault(kind="status", probability=0.05, status=503),),
    ),
    count=500,
    callers=10,
)


@dataclass(slots=True)
class Odds:
    """Logarithms of odds at the instants of `times`, in seconds; NaN where no refusal is to be explained.

    `refused` holds the instants of refusals by their status.
    """

    times: list[float] = field(default_factory=list)
    bucket: list[float] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)
    pace: list[float] = field(default_factory=list)
    refused: dict[int, list[float]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Keep when an answer refused, by its status."""
        if isinstance(event, RateLimitHit) and event.status is not None:
            self.refused.setdefault(event.status, []).append(event.at)

    def sample(self, laboratory: Laboratory) -> None:
        """Add an instant."""
        if not laboratory.sends:
            return
        now, state = laboratory.now, laboratory.sends[-1].permit.state
        self.times.append(now)
        self.bucket.append(math.nan if state.cause is None else _shown(state.cause.log_odds(now)))
        self.chance.append(math.nan if state.cause is None else _shown(state.cause.chance_odds(now)))
        self.pace.append(state.pacer.rate if state.pacer.active else math.nan)


def _shown(odds: float) -> float:
    return max(-SHOWN_LOG_ODDS, min(SHOWN_LOG_ODDS, odds))


def main() -> None:
    """Play the run and write its figure."""
    laboratory, odds, oracle = Laboratory(ROW, 0), Odds(), ROW.ideal(0)
    step = 1.2 * oracle.makespan / SAMPLES

    def look() -> None:
        odds.sample(laboratory)
        if laboratory.unfinished and laboratory.now < LONGEST * oracle.makespan:
            laboratory.after(step, look)

    laboratory.registry.subscribe(odds.hear)
    laboratory.after(step / 2, look)
    laboratory.run()
    end = odds.times[-1]
    edges = [end / BINS * place for place in range(BINS + 1)]
    with matplotlib.rc_context(STYLE):
        figure, (rates, causes) = pyplot.subplots(2, 1, figsize=(7.2, 4.1), sharex=True)
        figure.set_layout_engine("constrained")
        rates.stairs(per_second(oracle.admitted_at, edges), edges, color=ORACLE, label="oracle", linewidth=1.0)
        admitted = laboratory.accounts.truth().admitted_at
        rates.stairs(per_second(admitted, edges), edges, color=OURS, label="admitted")
        rates.plot(odds.times, odds.pace, color=PACE, linewidth=1.0, label="pace")
        for status, color in ((503, "#e08e0b"), (429, REFUSED)):
            instants = odds.refused.get(status, [])
            rates.plot(
                instants, [0.0] * len(instants), "|", color=color, markersize=7, label=f"{status}", clip_on=False
            )
        rates.set_ylabel("calls a second")
        rates.set_ylim(bottom=0.0)
        causes.plot(odds.times, odds.chance, color=REFUSED, label="chance, against a rate")
        causes.plot(odds.times, odds.bucket, color=OURS, label="a rate, against slots")
        causes.axhline(BELIEVED_LOG_ODDS, color=REFUSED, linewidth=0.8, linestyle=(0, (2, 2)), label="chance believed")
        causes.axhline(0.0, color=ORACLE, linewidth=0.8)
        causes.set_ylabel("log odds")
        causes.set_xlabel("seconds")
        for axis in (rates, causes):
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
        rates.set_xlim(0.0, end)
        PATH.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(PATH, metadata={"Date": None})
    print(f"{PATH.name}: {laboratory.makespan / oracle.makespan:.3f} of the oracle's time")


if __name__ == "__main__":
    main()
