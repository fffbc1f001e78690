"""Experiment definition, and the evaluators that judge its answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tidegate.errors import ConfigurationError, require
from tidegate.experiments.engine.batch import BatchTask
from tidegate.experiments.engine.budget import Budget
from tidegate.experiments.engine.fingerprint import fingerprint
from tidegate.experiments.engine.queues import TASK_STAGE

if TYPE_CHECKING:
    from tidegate.experiments.engine.progress import Summary
from collections.abc import Iterator

from tidegate.experiments.storage import ExperimentRow

Dataset: TypeAlias = (
    "str | Path | Iterable[Any] | AsyncIterable[Any] | Callable[[], Iterable[Any] | AsyncIterable[Any]]"
)
"""JSONL or CSV file, rows, or a function that returns the rows again on each call."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of the names of environment variables."""

MAX_NAME_CHARACTERS = 200
"""Maximum characters of a name. Chosen: in any script, this fits an index of both databases."""

WEIGHTS = (0.01, 100.0)
"""Least and greatest weight of an experiment. Chosen: the turn of the heaviest one has 10,000 dispatches at most."""


class Evaluator:
    """Judge of answers: `function(row, output)` returns a score, a label, or a dict of named outputs.

    A number is a score, a bool is the score 1 or 0, a text is a label. With several `outputs` declared, it must return
    a dict of exactly these names. With one declared, a bare result is that output. The evaluation is done when all
    declared outputs are there. `timeout` is in seconds; the default is the runner's `eval_timeout`. An invalid argument
    raises `ConfigurationError`.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        *,
        name: str | None = None,
        outputs: Sequence[str] = (),
        timeout: float | None = None,
    ) -> None:
        require(callable(function), "evaluator", function, "a function of a row and an output")
        self.function = function
        self.name = _name("evaluator", name if name is not None else name_of(function))
        require(self.name != TASK_STAGE, "evaluator", self.name, "another name: the stage of tasks has this one")
        _takes(f"evaluator {self.name}", function, "row", "output")
        require(not isinstance(outputs, str), "outputs", outputs, "a list of names")
        self.outputs = tuple(outputs)
        require(len(set(self.outputs)) == len(self.outputs), "outputs", self.outputs, "names, each of them once")
        self.timeout = _seconds("timeout", timeout)


class Experiment:
    """Dataset, a task that answers its rows, and evaluators that judge the answers.

    Each row is run `repetitions` times. `task(row)` is a coroutine function, a synchronous function (it runs in a
    thread) or a generator of either kind. Values that a generator yields are streamed to subscribers. `max_concurrency`
    limits this experiment's share of the runner's slots. Where several experiments compete for slots or for a key, each
    gets a share in proportion to its `weight`, from 0.01 to 100. `task_timeout` is in seconds. `credentials` names the
    environment variables without which the experiment cannot run. A replica that recovers it and lacks one reports that
    instead of trying. With `spread`, several replicas run its rows at once; this needs PostgreSQL. A row starts only
    while its expected cost fits the `budget`. With `batch`, a provider's Batch API answers the rows of a `BatchTask`.
    `source` is the place of the experiment's code, `file.py:attribute` or
    `module:attribute`; `load` sets it. `declared` is the declaration of a YAML experiment. An invalid argument raises
    `ConfigurationError`.
    """

    # `experiment_runner` sets it: that module imports this one, and is loaded with every public name.
    _execute: ClassVar[Callable[[Experiment, str, int | None], Coroutine[Any, Any, Summary]]]

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        task: Callable[[Any], Any],
        evaluators: Iterable[Evaluator | Callable[[Any, Any], Any]] = (),
        *,
        repetitions: int = 1,
        max_concurrency: int | None = None,
        weight: float = 1.0,
        task_timeout: float | None = None,
        credentials: Iterable[str] = (),
        source: str | None = None,
        declared: Mapping[str, Any] | None = None,
        spread: bool = False,
        budget: Budget | None = None,
        batch: bool = False,
    ) -> None:
        require(callable(task), "task", task, "a function of a row")
        _takes("task", task, "row")
        require(_is_dataset(dataset), "dataset", dataset, "a file's path, an iterable, or a function that returns one")
        for field, value in (("evaluators", evaluators), ("credentials", credentials)):
            require(isinstance(value, Iterable) and not isinstance(value, str), field, value, "a list")
        credentials = tuple(credentials)
        named = all(isinstance(each, str) and VARIABLE.fullmatch(each) for each in credentials)
        require(named, "credentials", "…", "names of environment variables: the credentials themselves are not stored")
        require(_whole(repetitions), "repetitions", repetitions, "1 or more")
        least = max_concurrency is None or _whole(max_concurrency)
        require(least, "max_concurrency", max_concurrency, "1 or more")
        self.name = _name("name", name)
        self.dataset = dataset
        self.task = task
        self.evaluators = tuple(each if isinstance(each, Evaluator) else Evaluator(each) for each in evaluators)
        names = [each.name for each in self.evaluators]
        require(len(set(names)) == len(names), "evaluators", names, "names, each of them once")
        self.repetitions = repetitions
        self.max_concurrency = max_concurrency
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        low, high = WEIGHTS
        require(number and low <= weight <= high, "weight", weight, f"a number from {low:g} to {high:g}")
        self.weight = float(weight)
        self.task_timeout = _seconds("task_timeout", task_timeout)
        self.credentials = credentials
        require(isinstance(spread, bool), "spread", spread, "True or False")
        self.spread = spread
        require(budget is None or isinstance(budget, Budget), "budget", budget, "a tidegate.experiments.Budget")
        self.budget = budget
        require(isinstance(batch, bool), "batch", batch, "True or False")
        if batch:
            require(isinstance(task, BatchTask), "batch", batch, "a task that is a tidegate.experiments.BatchTask")
            require(not spread, "batch", batch, "an experiment without spread: one replica follows its batches")
            require(budget is None, "batch", batch, "an experiment without a budget: a whole file is paid for at once")
        self.batch = batch
        self.source = source
        self.declared = declared
        self.original: str | None = None
        self._code: dict[str, str | None] | None = None

    def __repr__(self) -> str:
        names = [each.name for each in self.evaluators]
        return f"Experiment({self.name!r}, {self.described}, evaluators={names}, repetitions={self.repetitions})"

    @property
    def outputs(self) -> dict[str, tuple[str, ...]]:
        """Return the declared outputs of each evaluator; an empty tuple means that any output completes it."""
        return {each.name: each.outputs for each in self.evaluators}

    @property
    def described(self) -> str:
        """Return a short description of the row source, for people."""
        if isinstance(self.dataset, str | Path):
            return str(self.dataset)
        return f"{type(self.dataset).__name__} of {name_of(self.task)}"

    @property
    def code(self) -> dict[str, str | None]:
        """Return the fingerprint of each stage's function, None where it is unknown; empty for a declared experiment.

        They are computed at the first use, when the module of the functions is loaded.
        """
        if self._code is None:
            self._code = {}
            if self.declared is None:
                task = self.task
                self._code = {TASK_STAGE: task.fingerprint if isinstance(task, BatchTask) else fingerprint(task)}
                self._code |= {each.name: fingerprint(each.function) for each in self.evaluators}
        return self._code

    def spec(self) -> dict[str, Any]:
        """Return the stored description: the source and the settings, never a credential."""
        kept: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "task": name_of(self.task),
            "evaluators": {name: list(outputs) for name, outputs in self.outputs.items()},
            "credentials": list(self.credentials),
            "max_concurrency": self.max_concurrency,
            "weight": self.weight,
            "task_timeout": self.task_timeout,
        }
        kept |= {"spread": True} if self.spread else {}
        kept |= {"batch": True} if self.batch else {}
        kept |= {} if self.budget is None else {"budget": self.budget.stored()}
        kept |= {} if self.original is None else {"original": self.original}
        return {**kept, "code": self.code} if self.declared is None else {**kept, "declared": dict(self.declared)}

    def renamed(self, name: str) -> Experiment:
        """Return the experiment under another name; `original` is the name that its code gives it."""
        made = copy(self)
        made.name = _name("name", name)
        original = self.original or self.name
        made.original = original if original != made.name else None
        return made

    def without_evaluators(self) -> Experiment:
        """Return the experiment as a replica runs it that only answers rows: the owner judges them."""
        made = copy(self)
        made.evaluators = ()
        made.spread = True
        return made

    async def aclose(self) -> None:
        """Release its resources, such as connections, after a run in this loop; it can be run again."""

    def run(self, db: str = "tidegate.db", *, limit: int | None = None) -> Summary:
        """Run the experiment to its end in a new event loop, and return its summary. Earlier results are kept.

        With a `limit` only the first rows are tried. `db` is a SQLite file or a database URL. Raise the errors of
        `ExperimentRunner.run`, and `RuntimeError` inside a running event loop.
        """
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun(db, limit=limit))
        raise RuntimeError(
            f"experiment {self.name} not started: an event loop runs here already, as in a notebook; "
            "use `await experiment.arun()`"
        )

    async def arun(self, db: str = "tidegate.db", *, limit: int | None = None) -> Summary:
        """Run the experiment as `run` does, in the running event loop."""
        return await self._execute(db, limit)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a callable: its own name, or its class's."""
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "function"


def _takes(field: str, function: Callable[..., Any], *names: str) -> None:
    """Raise `ConfigurationError` if a function cannot be called with `len(names)` arguments: every row would fail."""
    try:
        # The function's own signature counts; a function that it wraps may take more arguments.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise ConfigurationError(field, name_of(function), f"it is called with ({', '.join(names)}): {error}") from None


def _is_dataset(dataset: object) -> bool:
    if isinstance(dataset, str | Path | AsyncIterable) or callable(dataset):
        return True
    return isinstance(dataset, Iterable) and not isinstance(dataset, Mapping | bytes)


def _name(field: str, name: object) -> str:
    fits = (
        isinstance(name, str) and name.strip() == name and 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()
    )
    require(fits, field, name, f"a printable name of 1 to {MAX_NAME_CHARACTERS} characters")
    return str(name)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _seconds(field: str, value: float | None) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = value is None or (number and 0 < value <= 86_400)
    require(fits, field, value, "seconds, more than 0 and at most a day")
    return value


UNCOMPARED_FIELDS = frozenset({"timeout", "api_key_env"})
"""Fields of a question that change no answer."""


def changed_parts(row: ExperimentRow, experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(_changed(row, experiment)))


def advice(parts: Sequence[str]) -> str:
    """Return in words which kept results differ from new ones, and how to get them all again."""
    others = " and another ".join(parts)
    if all(part.startswith("evaluator ") for part in parts):
        return f"the kept judgements were made with another {others}; under a new name it judges every answer again"
    return f"the kept answers were made with another {others}; --fresh, or a new name, asks all again"


def _changed(row: ExperimentRow, experiment: Experiment) -> Iterator[str]:
    if row.spec.get("source") not in (None, experiment.source):
        yield "experiment file"
    if row.source != experiment.described:
        yield "dataset"
    before, now = _asked(row.spec.get("declared")), _asked(experiment.declared)
    for part, question in now.items():
        if part in before and before[part] != question:
            yield part
    digests = row.spec.get("code")
    if isinstance(digests, Mapping):
        for stage, digest in experiment.code.items():
            if digest and digests.get(stage) and digest != digests[stage]:
                yield stage if stage == TASK_STAGE else f"evaluator {stage}"


def _asked(declared: Any) -> dict[str, Any]:
    """Return the questions of a declaration by name, without the fields that change no answer."""
    if not isinstance(declared, Mapping):
        return {}
    judges = {f"evaluator {judge['name']}": judge for judge in declared.get("evaluators", ())}
    return {
        part: {name: value for name, value in question.items() if name not in UNCOMPARED_FIELDS}
        for part, question in {"task": declared.get("task", {}), **judges}.items()
    }
