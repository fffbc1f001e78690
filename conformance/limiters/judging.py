"""The bars of a row, and which of them a run with tidegate misses."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

REPORT = "LIMITERS "
"""First word of the line in which the calling program reports."""


class Bars(NamedTuple):
    """Bounds of a row: the time as a multiple of the ideal, and refusals a call. No row may lose a call."""

    ratio: float
    refusals: float


ANNOUNCED = Bars(1.05, 0.03)
"""The limiter announces its quota in headers of every answer: a client may know when to wait."""

SILENT = Bars(1.10, 0.15)
"""The limiter says nothing before it refuses: a client has to find the limit by refusals."""

BLOCKING = Bars(1.6, 0.15)
"""A refusal costs a block of twice the window, so finding the limit costs blocks."""

SHORT = Bars(float("inf"), 1.0)
"""The short form asks for every answer; seconds are noise there, and refusals only say that nothing runs wild."""


class Outcome(NamedTuple):
    """One run: what its program reports, and the refusals that the limiter logged. A stopped run has no exit code."""

    answered: int
    calls: int
    seconds: float
    refusals: int
    exit_code: int | None
    errors: Mapping[str, int] = {}

    @property
    def lost(self) -> int:
        """Calls without an answer."""
        return self.calls - self.answered


def outcome_of(output: str, exit_code: int | None, calls: int, seconds: float, refusals: int) -> Outcome:
    """Return a run's outcome, from the output of its program; a program without a report answered nothing."""
    for line in output.splitlines():
        if line.startswith(REPORT):
            told = json.loads(line.removeprefix(REPORT))
            return Outcome(told["answered"], calls, told["seconds"], refusals, exit_code, told["errors"])
    return Outcome(0, calls, seconds, refusals, exit_code, {"no report": calls})


def refusals_in(log: str, pattern: str) -> int:
    """Count the requests of an access log that were not answered with 200; `pattern` finds the status of a request."""
    return sum(status != "200" for status in re.findall(pattern, log, re.MULTILINE))


def middle(outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome for several runs: the median of times and refusals, and the most lost calls."""
    worst = min(outcomes, key=lambda each: (each.exit_code == 0, each.answered))
    return worst._replace(
        seconds=statistics.median(each.seconds for each in outcomes),
        refusals=round(statistics.median(each.refusals for each in outcomes)),
    )


def missed(outcome: Outcome, ideal: float, bars: Bars) -> list[str]:
    """Return the bars that a run misses, in words; none if it is good."""
    return list(_missed(outcome, ideal, bars))


def _missed(outcome: Outcome, ideal: float, bars: Bars) -> Iterable[str]:
    if outcome.exit_code is None:
        yield "did not end"
    elif outcome.exit_code != 0:
        yield f"exit code {outcome.exit_code}"
    if outcome.lost:
        yield f"lost {outcome.lost}"
    if outcome.seconds > bars.ratio * ideal:
        yield f"time {outcome.seconds / ideal:.2f} > {bars.ratio:g}"
    if outcome.refusals > bars.refusals * outcome.calls:
        yield f"refusals {outcome.refusals / outcome.calls:.3f} > {bars.refusals:g}"
