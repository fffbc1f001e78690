"""Comparison of two experiments: their rows matched by id, their scores with confidence intervals.

Theory of operation. The unit is the row: repetitions of a row depend on each other, so each row counts once, with the
mean of its scores. A mean, and the difference of two means, are over the rows that have a score in both experiments.
A result that failed or was parked is counted, and is no score. The intervals are Student's. Measured (`bench.compare`):
those of 95 % hold the truth in 94 to 96 of 100 trials.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidegate.core.token_totals import TokenTotals, added, token_facts
from tidegate.errors import ConfigurationError, ExperimentError
from tidegate.experiments.storage import ExperimentRow, ResultStatus, Score, Store
from tidegate.experiments.storage.records import score_title
from tidegate.experiments.storage.reports import score_pages

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    Floats: TypeAlias = numpy.typing.NDArray[numpy.float64]

MAX_DIFFERENT_ROWS = 100
"""Rows with the largest differences that are kept for an output."""

ROUNDING_SHARE = 1e-12
"""Part of a score below which a difference is rounding: means of equal scores of a row differ by 1e-16 of them. Chosen:
far above any rounding, far below any score that a person reads."""

OutputName: TypeAlias = tuple[str, str]
"""Evaluator and output."""


class Interval(NamedTuple):
    """Confidence interval: both bounds belong to it."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Mean scores of one row in both experiments, and its ordinals there."""

    id: str
    a: float
    b: float
    a_ordinal: int
    b_ordinal: int


@dataclass(frozen=True, slots=True)
class OutputSide:
    """One output in one of the experiments; `failed` counts the results of matched rows that are not ok."""

    mean: float | None
    interval: Interval | None
    failed: int
    labels: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One output of one evaluator in both experiments, over the `rows` that have a score in both.

    `difference` is the mean of B less that of A. `wins` are the rows where B scored higher, `losses` those where it
    scored lower. The interval of a single row is None. `same_labels` and `other_labels` count the rows that have one
    label in both experiments.
    """

    evaluator: str
    output: str
    rows: int
    a: OutputSide
    b: OutputSide
    difference: float | None
    interval: Interval | None
    wins: int
    losses: int
    ties: int
    same_labels: int
    other_labels: int
    different: Sequence[RowDifference]

    @property
    def title(self) -> str:
        return score_title(self.evaluator, self.output)


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two experiments: the task results of the matched rows by status.

    `rows_complete` is false while its dataset is not read to its end. `untried` counts the results that are missing.
    `seconds` is the mean duration of a task, in seconds, and None where no task has one, as in a batch. `spend` is that
    of the whole experiment, with its judges.
    """

    id: int
    name: str
    status: str
    rows: int
    rows_complete: bool
    runs: Mapping[ResultStatus, int]
    untried: int
    seconds: float | None
    spend: TokenTotals


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two experiments side by side. `matched` rows are in both, `changed` ones of these have another content.

    `only_a` and `only_b` name the outputs that one experiment alone has.
    """

    a: ComparedSide
    b: ComparedSide
    matched: int
    changed: int
    confidence: float
    outputs: tuple[OutputComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    def facts(self, rows: int) -> dict[str, Any]:
        """Return the comparison as plain values, with at most `rows` of the most different rows of each output."""
        told = asdict(self)
        for letter, side in (("a", self.a), ("b", self.b)):
            told[letter]["spend"] = token_facts(side.spend)
        for output in told["outputs"]:
            output["different"] = output["different"][:rows]
        return told


class _Columns:
    """Values of one experiment, an element for each row of experiment A that both experiments have."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ordinals = array("q", bytes(8 * size))
        self.scores: dict[OutputName, Floats] = {}
        self.labels: dict[OutputName, dict[int, str]] = {}
        self.failed: dict[OutputName, int] = {}
        self.runs: dict[ResultStatus, int] = {}
        self.seconds = 0.0

    def column(self, output: OutputName) -> Floats:
        """Return the mean scores of an output, NaN for rows without one."""
        import numpy

        if output not in self.scores:
            self.scores[output] = numpy.full(self.size, math.nan)
        return self.scores[output]


async def compare(
    store_a: Store, a: ExperimentRow, store_b: Store, b: ExperimentRow, confidence: float = 0.95
) -> Comparison:
    """Return the comparison of two experiments, which may be in two databases.

    `confidence` is the probability with which an interval holds the true value. Raise `ConfigurationError` where it is
    not between 0 and 1, and `ExperimentError` where scipy is not installed, or no row is in both.
    """
    if find_spec("scipy") is None:
        text = "comparison not made: scipy is not installed; run: pip install 'tidegate[compare]'"
        raise ExperimentError(text, experiment=a.name)
    if not 0.0 < confidence < 1.0:
        raise ConfigurationError("confidence", confidence, "a number between 0 and 1")
    names: list[str] = []
    digests: list[bytes | None] = []
    async for page in score_pages(store_a.database, a.id):
        names += [row.name for row in page.rows]
        digests += [row.digest for row in page.rows]
    places = {name: place for place, name in enumerate(names)}
    matched = bytearray(len(names))
    changed = 0
    async for page in score_pages(store_b.database, b.id):
        for row in page.rows:
            place = places.get(row.name)
            if place is not None:
                matched[place] = 1
                changed += row.digest != digests[place]
    if not any(matched):
        raise ExperimentError(
            f"comparison of {a.name} with {b.name} not made: no row id is in both; both need rows with the same ids",
            experiment=b.name,
        )
    side_a = await _columns(store_a, a.id, places, matched)
    side_b = await _columns(store_b, b.id, places, matched)
    labels_a = {(each.evaluator, each.output): each for each in await store_a.reports.scores(a.id)}
    labels_b = {(each.evaluator, each.output): each for each in await store_b.reports.scores(b.id)}
    both = [each for each in labels_a if each in labels_b]
    total = sum(matched)
    return Comparison(
        a=_side(a, side_a, total, added((await store_a.usages.spend(a.id)).values())),
        b=_side(b, side_b, total, added((await store_b.usages.spend(b.id)).values())),
        matched=total,
        changed=changed,
        confidence=confidence,
        outputs=tuple(_output(each, names, side_a, side_b, labels_a, labels_b, confidence) for each in both),
        only_a=tuple(score_title(*each) for each in labels_a if each not in labels_b),
        only_b=tuple(score_title(*each) for each in labels_b if each not in labels_a),
    )


async def _columns(store: Store, experiment_id: int, known: Mapping[str, int], matched: bytearray) -> _Columns:
    found = _Columns(len(known))
    async for page in score_pages(store.database, experiment_id):
        places = {row.ordinal: place for row in page.rows if (place := known.get(row.name)) is not None}
        places = {ordinal: place for ordinal, place in places.items() if matched[place]}
        for ordinal, place in places.items():
            found.ordinals[place] = ordinal
        for run in page.runs:
            if run.ordinal in places:
                found.runs[run.status] = found.runs.get(run.status, 0) + run.results
                found.seconds += run.seconds
        for each in page.scores:
            place = places.get(each.ordinal)
            if place is None:
                continue
            output = (each.evaluator, each.output)
            if each.mean is not None:
                found.column(output)[place] = each.mean
            if each.label is not None:
                found.labels.setdefault(output, {})[place] = each.label
            if each.failed:
                found.failed[output] = found.failed.get(output, 0) + each.failed
    return found


def _side(row: ExperimentRow, columns: _Columns, matched: int, tokens: TokenTotals) -> ComparedSide:
    done = sum(columns.runs.values())
    return ComparedSide(
        id=row.id,
        name=row.name,
        status=row.status.value,
        rows=row.rows,
        rows_complete=row.complete,
        runs={status: columns.runs.get(status, 0) for status in ResultStatus},
        untried=max(0, matched * row.repetitions - done),
        # Items of a batch have no time of their own.
        seconds=columns.seconds / done if columns.seconds else None,
        spend=tokens,
    )


def _failed(columns: _Columns, output: OutputName, known: Collection[OutputName]) -> int:
    whole = (output[0], output[0])
    return columns.failed.get(output, 0) + (0 if whole in known else columns.failed.get(whole, 0))


def _output(
    output: OutputName,
    names: list[str],
    a: _Columns,
    b: _Columns,
    scores_a: Mapping[OutputName, Score],
    scores_b: Mapping[OutputName, Score],
    confidence: float,
) -> OutputComparison:
    import numpy

    both = numpy.flatnonzero(~(numpy.isnan(a.column(output)) | numpy.isnan(b.column(output))))
    in_a, in_b = a.column(output)[both], b.column(output)[both]
    difference = in_b - in_a
    difference[numpy.abs(difference) <= ROUNDING_SHARE * numpy.maximum(numpy.abs(in_a), numpy.abs(in_b))] = 0.0
    rows = len(both)
    samples = numpy.stack([in_a, in_b, difference])
    means = [float(each.mean()) for each in samples] if rows else [None] * 3
    intervals = intervals_of_means(samples, confidence) if rows > 1 else [None] * 3
    order = numpy.argsort(-numpy.abs(difference), kind="stable")[:MAX_DIFFERENT_ROWS]
    labels = [
        (label, other)
        for place, label in a.labels.get(output, {}).items()
        if (other := b.labels.get(output, {}).get(place)) is not None
    ]
    return OutputComparison(
        *output,
        rows,
        OutputSide(means[0], intervals[0], _failed(a, output, scores_a), scores_a[output].labels),
        OutputSide(means[1], intervals[1], _failed(b, output, scores_b), scores_b[output].labels),
        means[2],
        intervals[2],
        wins=int((difference > 0.0).sum()),
        losses=int((difference < 0.0).sum()),
        ties=int((difference == 0.0).sum()),
        same_labels=sum(label == other for label, other in labels),
        other_labels=sum(label != other for label, other in labels),
        different=[
            RowDifference(names[row], float(in_a[place]), float(in_b[place]), a.ordinals[row], b.ordinals[row])
            for place in order
            if difference[place] != 0.0
            for row in (both[place],)
        ],
    )


def intervals_of_means(samples: Floats, confidence: float) -> list[Interval]:
    """Return Student's interval of the mean of each sample, which has two values or more."""
    import numpy
    from scipy.special import stdtrit

    count = samples.shape[1]
    reach = stdtrit(count - 1, (1.0 + confidence) / 2.0) / math.sqrt(count) * numpy.std(samples, axis=1, ddof=1)
    means = samples.mean(axis=1)
    return [Interval(float(low), float(high)) for low, high in zip(means - reach, means + reach, strict=True)]
