"""An experiment, and the evaluators that judge its answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.errors import ConfigurationError, require

if TYPE_CHECKING:
    from tidegate.runner.progress import Summary

Dataset: TypeAlias = (
    "str | Path | Iterable[Any] | AsyncIterable[Any] | Callable[[], Iterable[Any] | AsyncIterable[Any]]"
)
"""A JSONL or CSV file, rows, or a function that gives them anew each time it is called."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names of environment variables."""

LONGEST_NAME = 200
"""Characters of a name: what fits an index of both databases whatever the script."""


class Evaluator:
    """One judge of answers: `function(row, output)` returns a score, a label, or a dict of named outputs.

    A number is a score, a bool is the score 1 or 0, a text is a label. With `outputs` declared, it must return a dict
    of just these names, and is done when all of them are there. `timeout` is in seconds; by default the runner's.
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
        _takes(f"evaluator {self.name}", function, "row", "output")
        require(not isinstance(outputs, str), "outputs", outputs, "a list of names")
        self.outputs = tuple(outputs)
        require(len(set(self.outputs)) == len(self.outputs), "outputs", self.outputs, "names, each of them once")
        self.timeout = _seconds("timeout", timeout)


class Experiment:
    """A dataset, a task that answers its rows, and evaluators that judge the answers; each row so many `repetitions`.

    `task(row)` is any callable: a coroutine function, a synchronous function, which runs in a thread, or a generator of
    either kind (what it yields is streamed to subscribers). `max_concurrency` caps this experiment's share of the
    runner's slots; timeouts are in seconds. `credentials` names the environment variables without which it cannot run:
    a replica that recovers it and lacks one says so instead of trying. `source` says where the experiment is to be
    found again, `file.py:attribute` or `module:attribute`; `load` sets it.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        task: Callable[[Any], Any],
        evaluators: Iterable[Evaluator | Callable[[Any, Any], Any]] = (),
        *,
        repetitions: int = 1,
        max_concurrency: int | None = None,
        task_timeout: float | None = None,
        credentials: Iterable[str] = (),
        source: str | None = None,
        declared: Mapping[str, Any] | None = None,
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
        self.task_timeout = _seconds("task_timeout", task_timeout)
        self.credentials = credentials
        self.source = source
        self.declared = declared

    def __repr__(self) -> str:
        names = [each.name for each in self.evaluators]
        return f"Experiment({self.name!r}, {self.described}, evaluators={names}, repetitions={self.repetitions})"

    @property
    def outputs(self) -> dict[str, tuple[str, ...]]:
        """The declared outputs of each evaluator; empty where any output says that it is done."""
        return {each.name: each.outputs for each in self.evaluators}

    @property
    def described(self) -> str:
        """Where the rows come from, in a word for people."""
        if isinstance(self.dataset, str | Path):
            return str(self.dataset)
        return f"{type(self.dataset).__name__} of {name_of(self.task)}"

    def spec(self) -> dict[str, Any]:
        """Return what the store keeps of it: where it is found again, and its settings; never a credential."""
        kept: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "task": name_of(self.task),
            "evaluators": {name: list(outputs) for name, outputs in self.outputs.items()},
            "credentials": list(self.credentials),
            "max_concurrency": self.max_concurrency,
            "task_timeout": self.task_timeout,
        }
        return kept if self.declared is None else {**kept, "declared": dict(self.declared)}

    async def aclose(self) -> None:
        """Lets go of what it holds, as connections, once a run of it has ended in this loop; it can be run again."""

    def run(self, db: str = "tidegate.db") -> Summary:
        """Runs it to its end, in a loop of its own, and returns how it went; what an earlier run has done is kept.

        `db` is a SQLite file or a database URL. Raises as `ExperimentRunner.run` does.
        """
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun(db))
        raise RuntimeError("a loop runs here already, as in a notebook: `await experiment.arun()`")

    async def arun(self, db: str = "tidegate.db") -> Summary:
        """As `run`, in the running loop."""
        from tidegate.runner.experiment_runner import ExperimentRunner

        async with ExperimentRunner(db, recover=False) as runner:
            return await runner.run(self)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a callable is called: its own name, or its class's."""
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "function"


def _takes(field: str, function: Callable[..., Any], *names: str) -> None:
    """Raises `ConfigurationError` where a function cannot be called with so many arguments: every row would fail."""
    try:
        # Of the function itself: what it wraps may take more than it is called with.
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
    fits = isinstance(name, str) and name.strip() == name and 0 < len(name) <= LONGEST_NAME and name.isprintable()
    require(fits, field, name, f"a printable name of 1 to {LONGEST_NAME} characters")
    return str(name)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _seconds(field: str, value: float | None) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = value is None or (number and 0 < value <= 86_400)
    require(fits, field, value, "seconds, more than 0 and at most a day")
    return value
