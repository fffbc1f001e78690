"""One figure a scenario: rate, concurrency, levels, refusals and the gate that binds, over time. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

from bench.trace import Trace, per_second

matplotlib.use("svg")
from matplotlib import pyplot  # after the backend is chosen

BINS = 60
"""Bars of the rate's histogram."""

GATES_HEIGHT = 0.12
"""Height of the strip of gates, beside a panel's."""

OURS, ORACLE, REFUSED, LIMIT, PACE = "#1b6ca8", "#9aa5b1", "#c8102e", "#e08e0b", "#2a9d6f"
QUOTAS = ("#1b6ca8", "#2a9d6f", "#8a5a9e", "#b5651d")
GATES = {
    "quota": "#1b6ca8",
    "pace": "#2a9d6f",
    "concurrency": "#e08e0b",
    "pause": "#8a5a9e",
    "breaker": "#c8102e",
}

STYLE = {
    "svg.hashsalt": "tidegate",
    "svg.fonttype": "none",
    "font.size": 8.5,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7785",
    "axes.labelcolor": "#3a444f",
    "xtick.color": "#6b7785",
    "ytick.color": "#6b7785",
    "axes.grid": True,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.2,
}


def draw(trace: Trace, path: Path) -> None:
    """Writes the figure; its format is that of the path's ending."""
    panels: list[Callable[[Any, Trace], None]] = [_rate, _concurrency, _gates]
    if trace.true or trace.mirrored:
        panels.insert(2, _levels)
    heights = [GATES_HEIGHT if panel is _gates else 1.0 for panel in panels]
    with matplotlib.rc_context(STYLE):
        size = (7.2, 1.1 + 1.5 * sum(heights))
        figure, axes = pyplot.subplots(len(panels), 1, figsize=size, sharex=True, height_ratios=heights)
        figure.set_layout_engine("constrained")
        for panel, axis in zip(panels, axes, strict=True):
            panel(axis, trace)
            axis.axvline(trace.oracle.makespan, color=ORACLE, linewidth=0.9, linestyle=(0, (1, 2)))
        axes[0].set_xlim(0.0, trace.end)
        axes[-1].set_xlabel("seconds (the dotted line: where the oracle is done)")
        figure.suptitle(trace.title, x=0.01, ha="left", fontsize=9.5, color="#1f2933")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _rate(axis: Any, trace: Trace) -> None:
    edges = [trace.end / BINS * place for place in range(BINS + 1)]
    axis.stairs(per_second(trace.oracle.admitted_at, edges), edges, color=ORACLE, label="oracle", linewidth=1.0)
    axis.stairs(per_second(trace.admitted, edges), edges, color=OURS, label="admitted")
    if not all(map(math.isnan, trace.pace)):
        axis.plot(trace.times, trace.pace, color=PACE, linewidth=1.0, label="pace")
    for instants, label, color in ((trace.refused, "429", REFUSED), (trace.met_outage, "met the outage", "#7a0c1e")):
        if instants:
            axis.plot(instants, [0.0] * len(instants), "|", color=color, markersize=7, label=label, clip_on=False)
    axis.set_ylabel("calls a second")
    axis.set_ylim(bottom=0.0)
    _legend(axis)


def _concurrency(axis: Any, trace: Trace) -> None:
    axis.step(trace.times, trace.in_flight, where="post", color=OURS, label="in flight")
    axis.step(trace.times, trace.limit, where="post", color=LIMIT, label="limit")
    axis.set_ylabel("calls")
    # A limit far above what is in flight binds nothing, and would flatten the rest.
    axis.set_ylim(0.0, 1.4 * max([*trace.in_flight, 1.0]))
    _legend(axis)


def _levels(axis: Any, trace: Trace) -> None:
    lowest = [min(line, default=0.0) for line in trace.mirrored.values()]
    drawn = 0
    for name, line in trace.true.items():
        if not all(math.isnan(share) for share in line):
            color = QUOTAS[drawn % len(QUOTAS)]
            axis.plot(trace.times, _filled(line, trace), color=color, linewidth=2.4, alpha=0.3, label=f"{name}, true")
            drawn += 1
    for place, (name, line) in enumerate(trace.mirrored.items()):
        color = QUOTAS[place % len(QUOTAS)]
        axis.plot(trace.times, _filled(line, trace), color=color, linewidth=1.0, label=f"{name}, mirrored")
    axis.set_ylabel("left of a limit")
    axis.set_ylim(max(-0.5, min([0.0, *lowest])) - 0.03, 1.1)
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
    _legend(axis)


def _filled(line: list[float], trace: Trace) -> list[float]:
    return line + [math.nan] * (len(trace.times) - len(line))


def _gates(axis: Any, trace: Trace) -> None:
    bound = trace.bound()
    for gate, start, end in bound:
        axis.axvspan(start, end, color=GATES.get(gate, "#55606d"), alpha=0.75, linewidth=0)
    axis.set_yticks([])
    axis.grid(False)
    axis.set_ylabel("gate", rotation=0, ha="right", va="center")
    names = list(dict.fromkeys(gate for gate, _, _ in bound))
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=GATES.get(gate, "#55606d"), alpha=0.75) for gate in names]
    if handles:
        axis.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.6), borderaxespad=0.2)


def _legend(axis: Any) -> None:
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
