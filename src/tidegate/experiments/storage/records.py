"""Frozen values that go into the store and are read from it, without SQL.

A row is identified by its `ordinal`, its place in the dataset counted from 0; repetitions are counted from 1. A task
item is (experiment, ordinal, repetition); an eval item adds an evaluator. Results and log lines carry the `epoch` of
the claim under which they were made. The store accepts them only while that claim is the newest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import AnsweredBy

JSON: TypeAlias = "Mapping[str, JSON] | list[JSON] | tuple[JSON, ...] | str | int | float | bool | None"

TaskCursor: TypeAlias = tuple[int, int]
"""(ordinal, repetition) of the last item of a page."""

AttemptCursor: TypeAlias = tuple[int, int, str, int, int]
"""(ordinal, repetition, stage, run_epoch, call_index) of the last attempt of a page."""


class Status(StrEnum):
    """State of an experiment. Only a RUNNING one is claimed."""

    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    ERROR = "ERROR"
    BLOCKED = "BLOCKED"


class ResultStatus(StrEnum):
    """Result of an item. A resume may repeat ERROR and PARKED; INVALID means that the row itself is unusable."""

    OK = "ok"
    ERROR = "error"
    PARKED = "parked"
    INVALID = "invalid"


class Category(StrEnum):
    """Subject of a log line."""

    TASK = "TASK"
    EVAL = "EVAL"
    EXPERIMENT = "EXPERIMENT"


class LogLevel(StrEnum):
    """Level of a log line."""

    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"


class Toggle(Enum):
    """Result of a user's stop or resume: done, already so, too soon after the last one, or no such experiment."""

    DONE = "done"
    ALREADY = "already"
    COOLING = "cooling"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class NewRow:
    """Row to be stored: its content, or why it has none. `line` is its line in the source, counted from 1."""

    ordinal: int
    name: str
    body: JSON = None
    invalid: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """Current state of one experiment in the store.

    `complete` states that all `rows` of its dataset are stored. `quiet` is the number of seconds since the owner last
    renewed the claim, by the database's clock; None where it has no owner. A user's next stop or resume is possible in
    `cooling` seconds.
    """

    id: int
    name: str
    dataset_id: int
    source: str
    rows: int
    complete: bool
    repetitions: int
    spec: Mapping[str, JSON]
    created_on: datetime
    status: Status
    claimed_by: str | None
    quiet: float | None
    epoch: int
    last_error: str | None
    cooling: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """Right of one replica to run one experiment, until a later claim has a greater epoch."""

    experiment_id: int
    replica: str
    epoch: int


class BatchState(StrEnum):
    """State of a batch: to be submitted, at the provider, ended there, or all its results are durable."""

    INTENT = "intent"
    SUBMITTED = "submitted"
    ENDED = "ended"
    FETCHED = "fetched"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Batch of an experiment at a provider's Batch API.

    `number` counts an experiment's batches from 1. `tag` is random and identifies it at the provider. `items` are
    its rows as (repetition, first ordinal, end ordinal), `count` is their number. `epoch` is that of the claim
    which has written it last. `file_id` and `provider_id` are the provider's names of its input file and of itself;
    the first is stored directly before the request that creates it. `detail` is the reason of an end without all
    answers, or of an error. `created_at` is by the database's clock.
    """

    number: int
    provider: str
    state: BatchState
    tag: str
    items: tuple[tuple[int, int, int], ...]
    count: int
    file_id: str | None = None
    provider_id: str | None = None
    detail: str | None = None
    epoch: int = 0
    created_at: datetime | None = None

    def facts(self) -> dict[str, JSON]:
        """Return what people are told of it, as plain values."""
        return {
            "batch": self.number,
            "provider": self.provider,
            "id": self.provider_id,
            "state": self.state.value,
            "rows": self.count,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows of an experiment from the ordinal `first` to below `end`, which one replica claims at a time.

    `epoch` is the number of its claims.
    """

    first: int
    end: int
    epoch: int
    claimed_by: str | None
    done: bool


@dataclass(frozen=True, slots=True)
class PendingTask:
    """Task item to run. `row` is its content; `invalid` is the reason where it has none.

    `size` is the stored size of the content, in characters on SQLite and in bytes on PostgreSQL.
    """

    ordinal: int
    repetition: int
    row: JSON
    invalid: str | None = None
    line: int | None = None
    size: int = field(default=0, compare=False, repr=False)

    @property
    def cursor(self) -> TaskCursor:
        return self.ordinal, self.repetition


@dataclass(frozen=True, slots=True)
class PendingEval:
    """Eval item to run: the row, and the task's answer; `size` is the stored size of both."""

    ordinal: int
    repetition: int
    row: JSON
    output: JSON
    size: int = field(default=0, compare=False, repr=False)

    @property
    def cursor(self) -> TaskCursor:
        return self.ordinal, self.repetition


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt at an item in `stage`, the `index`th from 0 under this claim; `key` has no secret.

    It began at `began_at`, in seconds of `time.monotonic`, after `waited` seconds, and lasted `latency`. The store
    turns that instant into the database's time. `status` is `success`, `failure` or `capacity_retry`.
    """

    stage: str
    index: int
    began_at: float
    latency: float
    waited: float
    status: str
    kind: str
    cause: str
    key: str = ""
    http_status: int | None = None
    retry_after: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ItemUsage(NamedTuple):
    """Tokens and cost of all governed calls of an item, and facts of its last answer.

    `waited` is the time in seconds that it waited for capacity, in a queue or before its dispatch. `batch` is the
    number of the provider's batch that the answer comes from, 0 for calls. An answer that is read again counts once.
    """

    tokens: TokenTotals = TokenTotals()
    model: str | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    waited: float = 0.0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a task item. `output` is JSON text (`encoded`); `seconds` is the time of its attempts together.

    `answered_by` has the choices of the fallbacks that its answer comes from. `contributor` is the replica that holds
    only chunks of the experiment; its claim on the chunk counts instead of the epoch.
    """

    experiment_id: int
    epoch: int
    ordinal: int
    repetition: int
    status: ResultStatus
    output: str | None = None
    error_kind: str | None = None
    error: str | None = None
    attempts: int = 0
    seconds: float = 0.0
    audit: tuple[AttemptRecord, ...] = field(default=(), compare=False, repr=False)
    answered_by: tuple[AnsweredBy, ...] = ()
    contributor: str | None = None
    usage: ItemUsage | None = None


@dataclass(frozen=True, slots=True)
class Annotation:
    """One output of an evaluator: a finite score, a label, or any value as JSON text (`encoded`). An error has none.

    A stored one also has the choices of the fallbacks that it comes from.
    """

    output: str
    status: ResultStatus = ResultStatus.OK
    score: float | None = None
    label: str | None = None
    value: str | None = None
    error_kind: str | None = None
    error: str | None = None
    answered_by: tuple[AnsweredBy, ...] = ()

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(
                f"annotation {self.output!r} invalid: its score is {self.score}; a score is a finite number"
            )
        if self.status is not ResultStatus.OK and self.score is not None:
            raise ValueError(
                f"annotation {self.output!r} invalid: it has status {self.status} and a score; a failed one has none"
            )


@dataclass(frozen=True, slots=True)
class AnnotationResult:
    """Result of an eval item: all outputs of one evaluator for one run, at least one. They are written together."""

    experiment_id: int
    epoch: int
    ordinal: int
    repetition: int
    evaluator: str
    annotations: tuple[Annotation, ...]
    attempts: int = 0
    seconds: float = 0.0
    audit: tuple[AttemptRecord, ...] = field(default=(), compare=False, repr=False)
    answered_by: tuple[AnsweredBy, ...] = ()
    usage: ItemUsage | None = None

    def __post_init__(self) -> None:
        if not self.annotations:
            raise ValueError(
                f"result of {self.evaluator!r} invalid: it has no outputs; nothing would show that it is done"
            )


@dataclass(frozen=True, slots=True)
class ItemAttempts:
    """Attempts at an item that has no result yet; those at one with a result are its `audit`.

    `usage` is what they have cost so far, in `stage`.
    """

    experiment_id: int
    epoch: int
    ordinal: int
    repetition: int
    audit: tuple[AttemptRecord, ...]
    contributor: str | None = None
    stage: str = "task"
    usage: ItemUsage | None = None


@dataclass(frozen=True, slots=True)
class ClaimStats:
    """Statistics of one claim so far, as JSON; `ended` states that they are those of its end."""

    experiment_id: int
    epoch: int
    stats: Mapping[str, JSON]
    ended: bool = True


@dataclass(frozen=True, slots=True)
class LogLine:
    """Line for an experiment's log; `detail` is JSON."""

    experiment_id: int
    epoch: int
    level: LogLevel
    category: Category
    detail: Mapping[str, JSON]
    contributor: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """Stored line of an experiment's log, with the time by the database's clock."""

    at: datetime
    level: LogLevel
    category: Category
    detail: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class ResultCounts:
    """Counts of an experiment: rows stored, runs by status, and eval items by evaluator and status."""

    rows: int
    runs: Mapping[ResultStatus, int] = field(default_factory=dict)
    annotations: Mapping[str, Mapping[ResultStatus, int]] = field(default_factory=dict)


def score_title(evaluator: str, output: str) -> str:
    """Return the display name of an output: the evaluator's name, and the output's where it differs."""
    return evaluator if output == evaluator else f"{evaluator}.{output}"


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one output of one evaluator: its `ok` and `failed` results, and the mean of `scored` scores.

    `labels` counts the results by label; it is empty where there are more than `tally.MAX_LABELS`. `labelled`
    results have a label, `valued` ones a value, and `chosen` ones the choice of a fallback.
    """

    evaluator: str
    output: str
    ok: int
    failed: int
    scored: int
    mean: float | None
    labels: Mapping[str, int]
    labelled: int = 0
    valued: int = 0
    chosen: int = 0

    @property
    def title(self) -> str:
        """Return the display name: the evaluator's name, and the output's where it differs."""
        return score_title(self.evaluator, self.output)


def with_failures(scores: Iterable[Score]) -> list[Score]:
    """Return the scores with the failures of an evaluator as a whole counted at each of its outputs.

    An evaluator that declares no outputs fails under its own name. Where its answers have other names, that is no
    output of it.
    """
    found = list(scores)
    named = {each.evaluator for each in found if each.ok and each.output != each.evaluator}
    whole = {
        each.evaluator: each.failed
        for each in found
        if each.evaluator in named and each.output == each.evaluator and not each.ok
    }
    return [
        replace(each, failed=each.failed + whole.get(each.evaluator, 0))
        for each in found
        if each.evaluator not in whole or each.output != each.evaluator
    ]


@dataclass(frozen=True, slots=True)
class ChoiceCount:
    """Number of answered items of a stage (`evaluator` is None: of the task) that the same choices have answered."""

    evaluator: str | None
    answered_by: tuple[AnsweredBy, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Tasks (`evaluator` is None) or eval items with one kind of result that is not ok; `example` is an error text."""

    evaluator: str | None
    status: ResultStatus
    kind: str
    count: int
    example: str | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run with its row and its annotations, for an export. `annotations` are (evaluator, annotation).

    `size` is the stored size of its row and answer, in characters on SQLite and in bytes on PostgreSQL. `usages` has
    the tokens and costs of its governed calls by stage: `task`, or an evaluator.
    """

    ordinal: int
    repetition: int
    name: str
    row: JSON
    status: ResultStatus
    output: JSON
    error_kind: str | None
    error: str | None
    attempts: int
    seconds: float
    finished_on: datetime
    annotations: tuple[tuple[str, Annotation], ...]
    size: int = field(default=0, compare=False, repr=False)
    answered_by: tuple[AnsweredBy, ...] = ()
    usages: Mapping[str, ItemUsage] = field(default_factory=dict)

    @property
    def cursor(self) -> TaskCursor:
        return self.ordinal, self.repetition
