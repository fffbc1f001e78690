"""The values that go into the store and come out of it: frozen, without a word of SQL.

A row is known by its `ordinal`, its place in the dataset counted from 0; repetitions are counted from 1. A task item is
(experiment, ordinal, repetition), an eval item is the same and an evaluator. Results and log lines carry the `epoch` of
the claim under which they were made: the store takes them only as long as that claim is the newest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import TypeAlias

JSON: TypeAlias = "Mapping[str, JSON] | list[JSON] | tuple[JSON, ...] | str | int | float | bool | None"

TaskCursor: TypeAlias = tuple[int, int]
"""(ordinal, repetition) of the last task item of a page."""

EvalCursor: TypeAlias = tuple[int, int, str]
"""(ordinal, repetition, evaluator) of the last eval item of a page."""


class Status(StrEnum):
    """Where an experiment stands. RUNNING is claimed by somebody, everything else is claimed by nobody."""

    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    ERROR = "ERROR"
    BLOCKED = "BLOCKED"


class ResultStatus(StrEnum):
    """The ending of an item. ERROR and PARKED are taken up again where a resume asks for it; INVALID is of the row."""

    OK = "ok"
    ERROR = "error"
    PARKED = "parked"
    INVALID = "invalid"


class Category(StrEnum):
    """The subject of a log line."""

    TASK = "TASK"
    EVAL = "EVAL"
    EXPERIMENT = "EXPERIMENT"


class LogLevel(StrEnum):
    """The level of a log line."""

    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"


class Toggle(Enum):
    """The result of a user's stop or resume: done, already so, too soon after the last one, or no such experiment."""

    DONE = "done"
    ALREADY = "already"
    COOLING = "cooling"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class NewRow:
    """One row to be stored: its content, or why it has none. `line` is where its source has it, counted from 1."""

    ordinal: int
    name: str
    body: JSON = None
    invalid: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment as the store has it now.

    `complete` says that all `rows` of its dataset are there. `quiet` is for how many seconds its owner has not renewed
    the claim, by the database's clock; None where nobody has claimed it.
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


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """One experiment and how many runs it has by their status."""

    experiment: ExperimentRow
    runs: Mapping[ResultStatus, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one replica to run one experiment, until a later claim has a greater epoch.

    Every row below `low_water` was wholly done when it was claimed, evaluations included; every row below `task_water`
    had all its runs.
    """

    experiment_id: int
    replica: str
    epoch: int
    low_water: int = 0
    task_water: int = 0


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task item without a result that counts. `row` is the content; `invalid` is why there is none.

    `size` is how many characters the content is stored with.
    """

    ordinal: int
    repetition: int
    row: JSON
    invalid: str | None = None
    line: int | None = None
    size: int = field(default=0, compare=False, repr=False)

    @property
    def cursor(self) -> TaskCursor:
        """Where the next page begins."""
        return self.ordinal, self.repetition


@dataclass(frozen=True, slots=True)
class PendingEval:
    """An eval item without a result that counts: the row, and what the task answered; `size` characters together."""

    ordinal: int
    repetition: int
    evaluator: str
    row: JSON
    output: JSON
    size: int = field(default=0, compare=False, repr=False)

    @property
    def cursor(self) -> EvalCursor:
        """Where the next page begins."""
        return self.ordinal, self.repetition, self.evaluator


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a task item. `output` is JSON text (`encoded`); `seconds` is what its attempts took together."""

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


@dataclass(frozen=True, slots=True)
class Annotation:
    """One output of an evaluator: a finite score, a label, or any value as JSON text (`encoded`). An error has none."""

    output: str
    status: ResultStatus = ResultStatus.OK
    score: float | None = None
    label: str | None = None
    value: str | None = None
    error_kind: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"the score {self.output!r} is {self.score}: a score is a finite number")
        if self.status is not ResultStatus.OK and self.score is not None:
            raise ValueError(f"{self.output!r} has the status {self.status} and a score: what failed has none")


@dataclass(frozen=True, slots=True)
class AnnotationResult:
    """The result of an eval item: all outputs of one evaluator for one run, at least one. They are written together."""

    experiment_id: int
    epoch: int
    ordinal: int
    repetition: int
    evaluator: str
    annotations: tuple[Annotation, ...]
    attempts: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.annotations:
            raise ValueError(f"the result of {self.evaluator!r} has no outputs: nothing would say that it is done")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of an experiment's log; `detail` is JSON."""

    experiment_id: int
    epoch: int
    level: LogLevel
    category: Category
    detail: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """One line of an experiment's log as it was written, with the time by the database's clock."""

    at: datetime
    level: LogLevel
    category: Category
    detail: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class ResultCounts:
    """The counts of an experiment: rows stored, runs by status, and by evaluator its eval items by status."""

    rows: int
    runs: Mapping[ResultStatus, int] = field(default_factory=dict)
    annotations: Mapping[str, Mapping[ResultStatus, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one output of one evaluator: how often it was `ok`, `failed`, and the mean of `scored` scores."""

    evaluator: str
    output: str
    ok: int
    failed: int
    scored: int
    mean: float | None
    labels: Mapping[str, int]

    @property
    def title(self) -> str:
        """Return what people call it: the evaluator's name, and the output's where it has one of its own."""
        return self.evaluator if self.output == self.evaluator else f"{self.evaluator}.{self.output}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The tasks (`evaluator` is None) or judgements that ended in one way that is not good; `example` is a text."""

    evaluator: str | None
    status: ResultStatus
    kind: str
    count: int
    example: str | None = None


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run with its row and its annotations, for an export. `annotations` are (evaluator, annotation).

    `size` is how many characters its row and its answer are stored with.
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

    @property
    def cursor(self) -> TaskCursor:
        """Where the next page begins."""
        return self.ordinal, self.repetition
