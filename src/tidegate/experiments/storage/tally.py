"""Tally of a stage: the counts of its results, so that no reader has to visit each of them.

Theory of operation. A result that replaces another one is subtracted and added. So every part of a tally can be undone:
sums are compensated doubles, and a score's bin depends on the score alone. Bins begin narrow. Where the scores do not
fit into `MAX_BINS` of them, pairs of neighbours are merged, which doubles the width. Only `low` and `high` keep a score
that was replaced; a new build of the tally corrects them.

A batch is summed by `math.fsum`, and added with the error of that rounding kept beside the sum (source: Neumaier 1974,
"Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen").
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from tidegate.experiments.storage.records import Score, with_failures


@dataclass(slots=True)
class CompensatedSum:
    """Sum of doubles, and the sum of what its roundings have lost."""

    high: float = 0.0
    low: float = 0.0

    @property
    def value(self) -> float:
        """Return the sum; an infinity or NaN where a part of it was no double."""
        return self.high + self.low

    def add(self, values: Iterable[float]) -> None:
        try:
            value = math.fsum(values)
        except (OverflowError, ValueError):
            value = math.nan
        total = self.high + value
        larger, smaller = (self.high, value) if abs(self.high) >= abs(value) else (value, self.high)
        self.low += (larger - total) + smaller
        self.high = total


MAX_BINS = 50
"""Most bins of a histogram. Chosen: a chart of 300 pixels shows them apart."""

BINS_PER_UNIT = 40
"""Bins between 0 and 1 at level 0, where scores on this scale end up: 41 with that of 1.0. The width doubles with each
level. Chosen: the edges are round numbers on the usual scales."""

FIRST_LEVEL = -20
"""Level of the first bins."""

MAX_LABELS = 100
"""Most labels that are counted of an output. Chosen: an output with more of them is free text."""

MAX_KINDS = 50
"""Most kinds of failures of a stage with a count of their own; the others are counted together. Chosen: more kinds than
a page shows."""

MAX_OUTPUTS = 500
"""Most outputs of an evaluator that are tallied. Chosen: far more than a table has columns; an evaluator that names its
outputs by the row would have no end of them."""

EXAMPLE_CHARACTERS = 300
"""Characters that are kept of an error's text. Chosen: the beginning tells the kind."""

LABEL_CHARACTERS = 200
"""Characters of a label that are kept. Chosen: longer labels are free text."""


SCALE_POWER = 64
"""Power of 2 by which scores are divided before they are summed. Derived from IEEE 754: the sum of 2^64 of the largest
doubles is one, and scores above 1e-304 keep all their bits."""


class ResultFacts(NamedTuple):
    """StorePart of a stored result that a tally counts; `output` is None for a task."""

    status: str
    output: str | None = None
    score: float | None = None
    label: str | None = None
    valued: bool = False
    chosen: bool = False
    kind: str = ""
    error: str = ""
    attempts: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Histogram:
    """Counts of scores by bin; the bin `n` has those from `n * width` to below `(n + 1) * width`."""

    level: int = FIRST_LEVEL
    bins: dict[int, int] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return math.ldexp(1 / BINS_PER_UNIT, self.level)

    def add(self, score: float, count: int) -> None:
        """Count a score; a negative `count` takes it away."""
        place = _place(score) >> (self.level - FIRST_LEVEL)
        known = self.bins.get(place)
        if known is not None:
            self.bins[place] = known + count
            if not self.bins[place]:
                del self.bins[place]
        elif count:
            self.bins[place] = count
            while max(self.bins) - min(self.bins) >= MAX_BINS:
                self._merge()

    def _merge(self) -> None:
        merged: dict[int, int] = {}
        for place, count in self.bins.items():
            merged[place >> 1] = merged.get(place >> 1, 0) + count
        self.bins = merged
        self.level += 1


@dataclass(slots=True)
class OutputTally:
    """Tally of one output of an evaluator.

    `total` is the sum of its scores over 2^`SCALE_POWER`, and `squares` that of their squared distances from `origin`,
    the first score: distances from 0 would leave no digits for a small spread of large scores.

    `labels` is None where there are more than `MAX_LABELS`. `fresh` has the scores that are not in the sums and the
    histogram yet: equal scores of a batch are added at once, by `settle`.
    """

    ok: int = 0
    failed: int = 0
    scored: int = 0
    labelled: int = 0
    valued: int = 0
    chosen: int = 0
    total: CompensatedSum = field(default_factory=CompensatedSum)
    squares: CompensatedSum = field(default_factory=CompensatedSum)
    origin: float | None = None
    low: float | None = None
    high: float | None = None
    labels: dict[str, int] | None = field(default_factory=dict)
    histogram: Histogram = field(default_factory=Histogram)
    fresh: dict[float, int] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        if not self.scored:
            return None
        most = math.ldexp(sys.float_info.max, -SCALE_POWER)
        # Rounding may lift the mean of the largest doubles above them.
        return math.ldexp(max(-most, min(self.total.value / self.scored, most)), SCALE_POWER)

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation of the scores; None with fewer than two, or where it is no double."""
        if self.scored < 2 or self.origin is None:
            return None
        total = (Fraction(self.total.high) + Fraction(self.total.low)) * 2**SCALE_POWER
        try:
            offset = float(total / self.scored - Fraction(self.origin))
        except OverflowError:
            return None
        variance = (self.squares.value - self.scored * offset * offset) / (self.scored - 1)
        return math.sqrt(max(0.0, variance)) if math.isfinite(variance) else None

    def add(self, one: ResultFacts, count: int) -> None:
        """Count a result; -1 takes it away."""
        if one.status == "ok":
            self.ok += count
        else:
            self.failed += count
        if one.score is not None:
            self.scored += count
            self.fresh[one.score] = self.fresh.get(one.score, 0) + count
        if one.label is not None:
            self.labelled += count
            self._label(one.label[:LABEL_CHARACTERS], count)
        self.valued += count if one.valued else 0
        self.chosen += count if one.chosen else 0

    def settle(self) -> None:
        """Add the fresh scores to the sums and to the histogram."""
        self.fresh = {score: count for score, count in self.fresh.items() if count}
        if self.origin is None:
            self.origin = next(iter(self.fresh), None)
        origin = self.origin or 0.0
        self.total.add(math.ldexp(score, -SCALE_POWER) * count for score, count in self.fresh.items())
        self.squares.add((score - origin) * (score - origin) * count for score, count in self.fresh.items())
        if not self.scored:
            self.total, self.squares, self.origin = CompensatedSum(), CompensatedSum(), None
        for score, count in self.fresh.items():
            self.histogram.add(score, count)
            if count > 0:
                self.low = score if self.low is None else min(self.low, score)
                self.high = score if self.high is None else max(self.high, score)
        self.fresh = {}

    def _label(self, label: str, count: int) -> None:
        if self.labels is None:
            return
        number = self.labels.get(label, 0) + count
        if number > 0:
            self.labels[label] = number
        else:
            self.labels.pop(label, None)
        if len(self.labels) > MAX_LABELS:
            self.labels = None


@dataclass(slots=True)
class KindTally:
    """Number of items that failed in one way, and the beginning of one error text."""

    count: int
    example: str


OTHER = "other"
"""Kind of the failures that have no separate count."""


@dataclass(slots=True)
class StageTally:
    """Tally of the items of a stage: `failed` counts those that are not ok, `kinds` by status and kind.

    `attempts` and `milliseconds` are those of all items together. `more_outputs` tells that some are not tallied.
    """

    items: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    kinds: dict[tuple[str, str], KindTally] = field(default_factory=dict)
    outputs: dict[str, OutputTally] = field(default_factory=dict)
    more_outputs: bool = False
    attempts: int = 0
    milliseconds: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of items by status, without zeros."""
        counts = {"ok": self.items - sum(self.failed.values()), **self.failed}
        return {status: count for status, count in counts.items() if count > 0}

    def change(self, before: Sequence[ResultFacts], after: Sequence[ResultFacts]) -> None:
        """Count the change of one item, whose results were `before` and are `after`; nothing is an empty sequence."""
        if before != after:
            self._count(before, -1)
            self._count(after, 1)

    def _count(self, results: Sequence[ResultFacts], count: int) -> None:
        if not results:
            return
        self.items += count
        self.attempts += count * max([one.attempts for one in results])
        self.milliseconds += count * max([int(one.seconds * 1000) for one in results])
        failed = {(one.status, one.kind): one for one in results if one.status != "ok"}
        for status in {status for status, _ in failed}:
            self.failed[status] = self.failed.get(status, 0) + count
        for kind, one in failed.items():
            self._kind(kind, one.error, count)
        for one in results:
            if one.output is not None:
                self._output(one.output, one, count)

    def _kind(self, kind: tuple[str, str], error: str, count: int) -> None:
        known = self.kinds.get(kind)
        if known is None:
            kind = kind if count > 0 and len(self.kinds) < MAX_KINDS else (kind[0], OTHER)
            known = self.kinds.setdefault(kind, KindTally(0, ""))
        known.count += count
        known.example = known.example or error[:EXAMPLE_CHARACTERS]
        if known.count <= 0:
            del self.kinds[kind]

    def _output(self, name: str, one: ResultFacts, count: int) -> None:
        output = self.outputs.get(name)
        if output is None:
            if len(self.outputs) >= MAX_OUTPUTS or count < 0:
                self.more_outputs = True
                return
            output = self.outputs[name] = OutputTally()
        output.add(one, count)
        if not (output.ok or output.failed):
            del self.outputs[name]

    def to_json(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "failed": {status: count for status, count in self.failed.items() if count},
            "kinds": [[*kind, each.count, each.example] for kind, each in self.kinds.items()],
            "outputs": {name: _output_json(each) for name, each in self.outputs.items()},
            "more_outputs": self.more_outputs,
            "attempts": self.attempts,
            "milliseconds": self.milliseconds,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StageTally:
        return cls(
            values["items"],
            dict(values["failed"]),
            {(status, kind): KindTally(count, example) for status, kind, count, example in values["kinds"]},
            {name: _output_tally(each) for name, each in values["outputs"].items()},
            values["more_outputs"],
            values["attempts"],
            values["milliseconds"],
        )


COUNTED = ("ok", "failed", "scored", "labelled", "valued", "chosen", "low", "high", "labels", "origin")


def _output_json(tally: OutputTally) -> dict[str, Any]:
    tally.settle()
    return {
        **{name: getattr(tally, name) for name in COUNTED},
        "total": [tally.total.high, tally.total.low],
        "squares": [tally.squares.high, tally.squares.low],
        "level": tally.histogram.level,
        "bins": [[place, count] for place, count in sorted(tally.histogram.bins.items())],
    }


def _output_tally(values: Mapping[str, Any]) -> OutputTally:
    return OutputTally(
        **{name: values[name] for name in COUNTED},
        total=CompensatedSum(*values["total"]),
        squares=CompensatedSum(*values["squares"]),
        histogram=Histogram(values["level"], dict(values["bins"])),
    )


def _place(score: float) -> int:
    if abs(score) > 1e280:
        # The product may be no double; such a score has no fraction.
        return int(score) * BINS_PER_UNIT << -FIRST_LEVEL
    return math.floor(math.ldexp(score * BINS_PER_UNIT, -FIRST_LEVEL))


def scores_of(stages: Mapping[str, StageTally]) -> list[Score]:
    return with_failures(
        Score(
            name,
            output,
            one.ok,
            one.failed,
            one.scored,
            one.mean,
            one.labels or {},
            one.labelled,
            one.valued,
            one.chosen,
        )
        for name, stage in sorted(stages.items())
        for output, one in sorted(stage.outputs.items())
    )
