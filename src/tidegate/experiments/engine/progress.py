"""Progress of a running experiment, as a frozen snapshot made on request, and the summary of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import log
from typing import Any

from tidegate.core.token_totals import TokenTotals, added, tokens_text
from tidegate.experiments.engine.queues import TASK, TASK_STAGE
from tidegate.experiments.engine.replica import state_text
from tidegate.experiments.storage import (
    AnnotationResult,
    BatchRecord,
    ChoiceCount,
    ExperimentRow,
    ResultCounts,
    ResultStatus,
    RunResult,
    Score,
    Status,
    Store,
)

LATENCY_CLASS_RATIO = 1.05
"""Ratio of two neighbouring classes of latencies. Chosen: a percentile is right within 2.5 per cent, from a microsecond
to a day in 520 classes."""

CLASSES_PER_E = 1.0 / log(LATENCY_CLASS_RATIO)
"""Classes for each factor of e. Derived from `LATENCY_CLASS_RATIO`."""


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics of one claim, or of several added up. Durations are in seconds.

    `submitted` items (tasks and judgements) were dispatched; `answered`, `failed` and `parked` ones have such a result.
    `calls` counts attempts, of which `capacity_retries` were refused for lack of capacity. `transient_retries` counts
    items that were queued again after a failure. At most `max_concurrent` functions were in flight.

    Items waited `throttle_seconds` in all: after a refusal, or inside a call. For `throttled_for`, at least one did so;
    for `executing_for`, at least one function was in flight. The longest single wait lasted `peak_wait`. `latencies`
    counts answered attempts by class: class `n` is about `LATENCY_CLASS_RATIO ** n` seconds. Tokens and costs are those
    of `TokenTotals`.
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
                return float(LATENCY_CLASS_RATIO**number)
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


WORDS = {ResultStatus.ERROR: "failed", ResultStatus.PARKED: "parked", ResultStatus.INVALID: "invalid"}
"""Words of the headline for results without an answer."""


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Experiment as the store has it, usually at a run's end, with its counts and its evaluators' scores.

    `stats` are those of its claims that have ended, added up. `attempts` counts the kept attempts by status, `choices`
    the answered items by the choices of fallbacks that answered them. `spend` has the tokens and costs of all claims by
    stage, `batches` those at a provider's Batch API. Its text is the headline, the mean of every output, and the
    warnings; a notebook shows it.
    """

    experiment: ExperimentRow
    counts: ResultCounts
    scores: tuple[Score, ...]
    stats: RunStats = field(default_factory=RunStats)
    attempts: Mapping[str, int] = field(default_factory=dict)
    choices: tuple[ChoiceCount, ...] = ()
    spend: Mapping[str, TokenTotals] = field(default_factory=dict)
    batches: tuple[BatchRecord, ...] = ()

    @classmethod
    async def read(cls, store: Store, row: ExperimentRow) -> Summary:
        """Return the present summary of an experiment."""
        counts, scores = await store.reports.counts(row.id), tuple(await store.reports.scores(row.id))
        stats = added_up(await store.reports.claim_stats(row.id))
        attempts, choices = await store.reports.attempt_counts(row.id), tuple(await store.reports.choices(row.id))
        spend, batches = await store.usages.spend(row.id), tuple(await store.batches.of(row.id))
        return cls(row, counts, scores, stats, attempts, choices, spend, batches)

    @property
    def tokens(self) -> TokenTotals:
        """Return the tokens of all stages and claims, and their cost."""
        return added(self.spend.values())

    @property
    def status(self) -> Status:
        """Return the experiment's status."""
        return self.experiment.status

    @property
    def last_error(self) -> str | None:
        """Return the reason of its stop; None if there is none."""
        return self.experiment.last_error

    @property
    def answered(self) -> int:
        """Return the number of runs with an answer."""
        return self.counts.runs.get(ResultStatus.OK, 0)

    @property
    def unanswered(self) -> int:
        """Return the number of runs without an answer: failed, parked, invalid, or never tried.

        Runs of repetitions that are no longer requested do not offset failed runs, but they offset untried ones.
        """
        failed = sum(self.counts.runs.values()) - self.answered
        return max(failed, self.counts.rows * self.experiment.repetitions - self.answered)

    @property
    def unjudged(self) -> int:
        """Return the number of evaluator outputs without a judgement because they failed or were parked."""
        return sum(count for status, count in self._judgements.items() if status is not ResultStatus.OK)

    @property
    def unjudged_parked(self) -> int:
        """Return the number of parked evaluator outputs; a resume tries them again."""
        return self._judgements[ResultStatus.PARKED]

    @property
    def _judgements(self) -> Counter[ResultStatus]:
        """Return the number of outputs by status, of the evaluators that the experiment has."""
        asked = self.experiment.spec.get("evaluators")
        found: Counter[ResultStatus] = Counter()
        for evaluator, statuses in self.counts.annotations.items():
            if not isinstance(asked, dict) or evaluator in asked:
                found.update(statuses)
        return found

    @property
    def untried(self) -> int:
        """Return the number of runs that were never tried."""
        return max(0, self.unanswered - sum(self.counts.runs.get(status, 0) for status in WORDS))

    @property
    def to_judge(self) -> int:
        """Return the number of evaluations of answered rows that were never tried."""
        asked = self.experiment.spec.get("evaluators")
        names = asked if isinstance(asked, Mapping) else {}
        judged = self.counts.annotations
        return sum(max(0, self.answered - sum(judged.get(name, {}).values())) for name in names)

    @property
    def answered_by(self) -> dict[str, dict[str, int]]:
        """Return the number of answered items of each stage by choice; stages without a fallback are left out."""
        return by_choice(self.choices)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a text for each stage whose answers come from more than one model."""
        return tuple(model_warnings(self.choices))

    @property
    def headline(self) -> str:
        """Return the state in one line."""
        row, runs = self.experiment, self.counts.runs
        times = f" × {row.repetitions}" if row.repetitions > 1 else ""
        parts = [f"{row.rows} {'row' if row.rows == 1 else 'rows'}{times}", f"{self.answered} answered"]
        parts += [f"{runs[status]} {word}" for status, word in WORDS.items() if runs.get(status)]
        parts += [f"{self.untried} not tried"] if self.untried else []
        if self.unjudged_parked:
            parked = self.unjudged_parked
            parts.append(f"{parked} {'judgement' if parked == 1 else 'judgements'} parked")
        if self.to_judge:
            parts.append(f"{self.to_judge} {'judgement' if self.to_judge == 1 else 'judgements'} to come")
        why = f" ({row.last_error})" if row.last_error else ""
        return f"{row.name}: {state_text(row)}{why}: {', '.join(parts)}"

    def __str__(self) -> str:
        means = [f"\n{each.title}: {each.mean:.3f} of {each.scored}" for each in self.scores if each.mean is not None]
        return self.headline + "".join(means) + "".join(f"\n{each}" for each in self.warnings)

    __repr__ = __str__

    @property
    def complete(self) -> bool:
        """Return whether every row was answered and every answer judged."""
        return self.status is Status.COMPLETED and not self.unanswered and not self.unjudged


def by_choice(choices: Iterable[ChoiceCount]) -> dict[str, dict[str, int]]:
    """Return the number of answered items of each stage by the name of the choice, the most frequent first."""
    found: dict[str, Counter[str]] = {}
    for each in choices:
        counter = found.setdefault(each.evaluator or TASK_STAGE, Counter())
        counter.update(dict.fromkeys(dict.fromkeys(by.choice for by in each.answered_by), each.count))
    return {stage: dict(counter.most_common()) for stage, counter in found.items()}


def choice_lines(choices: Iterable[ChoiceCount]) -> Iterator[str]:
    """Yield the counts of each stage with a fallback, by choice, in words."""
    for stage, counted in by_choice(choices).items():
        yield f"{stage} answered by " + ", ".join(f"{choice} {count}" for choice, count in counted.items())


def model_warnings(choices: Iterable[ChoiceCount]) -> Iterator[str]:
    """Yield a text for each stage of which different items were answered by different models."""
    found: dict[str, Counter[str]] = {}
    for each in choices:
        models = sorted({by.model for by in each.answered_by})
        counter = found.setdefault(each.evaluator or TASK_STAGE, Counter())
        counter[" and ".join(model or "one model" for model in models)] += each.count
    for stage, counter in found.items():
        if len(counter) > 1:
            told = ", ".join(f"{models} {count}" for models, count in counter.most_common())
            scores = "scores of all evaluators" if stage == TASK_STAGE else f"scores of {stage}"
            yield (
                f"{scores} not comparable: {len(counter)} models answered ({stage}: {told}); the export has the choice "
                "of each row"
            )


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a stage makes no progress, and for how long.

    `reason` names the limiter that holds it back (`pause`, `pace`, `quota …`, `breaker`, …). `key` is the limiter's
    key, without any credential. Without a key, the runner holds it back: `concurrency` (a `max_concurrency`), `own
    work` (functions are busy outside of calls), `memory`, `descriptors`, or `functions` (the bound of all of them).
    `seconds` is None if a job in flight must end first.
    """

    reason: str
    key: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of one stage: durable results by status, items in flight, ready items in memory, and its wait.

    `total` is the expected number of results as far as known: for an evaluator, one for every answered task. `closed`
    is why its items are parked instead of being tried: its failure guard or its key's outage; else empty.
    """

    name: str
    total: int
    done: Mapping[ResultStatus, int]
    under_way: int
    ready: int
    wait: Wait | None
    closed: str = ""

    @property
    def finished(self) -> int:
        """Return the number of items with a durable result."""
        return sum(self.done.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an experiment that runs here; `stages` begins with the task.

    `rows` counts the rows so far, and `all_rows` says whether these are all. `unwritten` counts results that are not
    durable yet; it grows while the database is unavailable. By the limits of the keys, all is done in `rest` seconds
    (None: they foretell nothing); `bound_by` is the limit that decides, in words. `tokens` are those of all claims so
    far, with their cost, and `budget` is what they may reach, in words (empty: no budget).
    """

    name: str
    phase: str
    rows: int
    all_rows: bool
    unwritten: int
    stages: tuple[StageProgress, ...]
    rest: float | None = None
    tokens: TokenTotals = field(default_factory=TokenTotals)
    budget: str = ""
    bound_by: str = ""


class ResultTally:
    """Counts of durable results by stage and status, including those of earlier runs; `added` are those of this one.

    `names` are those of the stages, from the task on.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.rows = 0
        self.all_rows = False
        self.done: list[dict[ResultStatus, int]] = [{} for _ in names]
        self.added: dict[ResultStatus, int] = {}
        self._names: Sequence[str] = names

    @property
    def unjudged(self) -> list[int]:
        task, *evaluators = self.done
        return [max(0, task.get(ResultStatus.OK, 0) - sum(done.values())) for done in evaluators]

    def load(self, counts: ResultCounts, retry_failed: bool) -> None:
        """Add the stored results of the stages. Those to be tried again count as not done."""
        for index, name in enumerate(self._names):
            found = counts.runs if index == TASK else counts.annotations.get(name, {})
            for status, count in found.items():
                if not (retry_failed and status in (ResultStatus.ERROR, ResultStatus.PARKED)):
                    self.done[index][status] = count

    def count_tasks(self, counts: ResultCounts, retry_failed: bool) -> None:
        """Take the stored results of the task, those of other replicas included, in place of the ones counted here.

        An own result that became durable at this moment may count twice until the next call: `done_of` allows for it.
        With `retry_failed`, the stored failures that are not tried again yet cannot be told apart. So of failures only
        the own ones count.
        """
        for status, count in counts.runs.items():
            if not (retry_failed and status in (ResultStatus.ERROR, ResultStatus.PARKED)):
                self.done[TASK][status] = count

    def done_of(self, stage: int, total: int) -> dict[ResultStatus, int]:
        """Return the results of a stage by status, of which there are `total` at most once all rows are known."""
        done = dict(self.done[stage])
        over = sum(done.values()) - total
        if stage == TASK and self.all_rows and over > 0 and ResultStatus.OK in done:
            done[ResultStatus.OK] = max(0, done[ResultStatus.OK] - over)
        return done

    def add(self, stage: int, result: RunResult | AnnotationResult) -> None:
        status = result.status if isinstance(result, RunResult) else result.annotations[0].status
        done = self.done[stage]
        done[status] = done.get(status, 0) + 1
        self.added[status] = self.added.get(status, 0) + 1
