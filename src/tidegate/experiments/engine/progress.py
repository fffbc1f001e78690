"""Progress of a running experiment, as a frozen snapshot made on request, and the summary of a run.

Theory of operation. The limits of its keys forecast the time of a run's rest. An opening burst is much faster than the
rate that follows, so a recent speed foretells far too little. Each key forecasts when it will have admitted a number of
calls, from its quotas, its pace and its slots. The calls of an item are counted while the run continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals, added
from tidegate.core.values import AnsweredBy, Cost, Key
from tidegate.core.wait_text import estimate_eta
from tidegate.experiments.engine.item import TASK, TASK_STAGE
from tidegate.experiments.engine.replica import state_text
from tidegate.experiments.engine.stats import RunStats, added_up
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
        asked = self.experiment.spec.get("evaluators")
        return sum(
            count
            for evaluator, statuses in self.counts.annotations.items()
            for status, count in statuses.items()
            if status is not ResultStatus.OK and (not isinstance(asked, dict) or evaluator in asked)
        )

    @property
    def unjudged_parked(self) -> int:
        """Return the number of parked evaluator outputs; a resume tries them again."""
        asked = self.experiment.spec.get("evaluators")
        return sum(
            statuses.get(ResultStatus.PARKED, 0)
            for evaluator, statuses in self.counts.annotations.items()
            if not isinstance(asked, dict) or evaluator in asked
        )

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
    (None: they foretell nothing). `tokens` are those of all claims so far, with their cost, and `budget` is what they
    may reach, in words (empty: no budget).
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
        self._choices: Counter[tuple[int, tuple[AnsweredBy, ...]]] = Counter()

    @property
    def choices(self) -> list[ChoiceCount]:
        """Return the number of answered items by stage and the choices of their fallbacks."""
        return [
            ChoiceCount(None if stage == TASK else self._names[stage], answered_by, count)
            for (stage, answered_by), count in self._choices.items()
        ]

    @property
    def unjudged(self) -> list[int]:
        """Return for each evaluator the number of answers that it has not judged."""
        task, *evaluators = self.done
        return [max(0, task.get(ResultStatus.OK, 0) - sum(done.values())) for done in evaluators]

    def load(self, counts: ResultCounts, choices: Iterable[ChoiceCount], retry_failed: bool) -> None:
        """Add the stored results of the stages. Those to be tried again count as not done."""
        names = self._names
        for each in choices:
            stage = TASK if each.evaluator is None else names.index(each.evaluator) if each.evaluator in names else -1
            if stage >= 0:
                self._choices[stage, each.answered_by] += each.count
        for index, name in enumerate(names):
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
        """Count one more result."""
        status = result.status if isinstance(result, RunResult) else result.annotations[0].status
        done = self.done[stage]
        done[status] = done.get(status, 0) + 1
        self.added[status] = self.added.get(status, 0) + 1
        if result.answered_by:
            self._choices[stage, result.answered_by] += 1


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
