"""The experiment that a declaration stands for: a task and judges that ask models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.runner.declared import judging
from tidegate.runner.declared.asking import Asked
from tidegate.runner.declared.declaration import Declaration, Judge, declared, stored
from tidegate.runner.declared.document import Document
from tidegate.runner.declared.template import values_of
from tidegate.runner.experiment import Evaluator, Experiment

Evaluation = Callable[[Any, Any], Awaitable[Any]]


def from_file(path: Path) -> Experiment:
    """The experiment that a YAML file declares; its dataset is looked for beside the file.

    Raises `ConfigurationError`, which names the line and the field, and `CannotLoad` where a provider's SDK is missing.
    """
    path = path.expanduser()
    declaration = declared(Document.of(path))
    dataset = path.resolve().parent / Path(declaration.dataset).expanduser()
    return Declared(declaration.model_copy(update={"dataset": str(dataset)}), str(path.resolve()))


def from_stored(values: Mapping[str, Any], source: str) -> Experiment:
    """The experiment whose declaration the store has; the file that it came from is not needed any more."""
    return Declared(stored(values), source)


class Declared(Experiment):
    """An experiment of declared questions, whose clients it closes at the end of a run."""

    def __init__(self, declaration: Declaration, source: str) -> None:
        task = Asked(declaration.task, source)
        judges = [Asked(judge, source) for judge in declaration.evaluators]
        self._asked = [task, *judges]
        super().__init__(
            declaration.name,
            declaration.dataset,
            _task(task),
            [_evaluator(judge, asked) for judge, asked in zip(declaration.evaluators, judges, strict=True)],
            repetitions=declaration.repetitions,
            max_concurrency=declaration.max_concurrency,
            task_timeout=declaration.task.timeout,
            credentials=declaration.credentials,
            source=source,
            declared=declaration.model_dump(mode="json", exclude_defaults=True),
        )

    async def aclose(self) -> None:
        """Closes the clients of this loop; a next run makes others."""
        for asked in self._asked:
            await asked.close()


def _task(asked: Asked) -> Callable[[Any], Awaitable[str]]:
    async def answer(row: Any) -> str:
        return await asked(values_of(row))

    return answer


def _evaluator(judge: Judge, asked: Asked) -> Evaluator:
    read = _reading(judge)

    async def judged(row: Any, output: Any) -> Any:
        return read(await asked({**values_of(row), "output": output}))

    return Evaluator(judged, name=judge.name, outputs=_outputs(judge), timeout=judge.timeout)


def _outputs(judge: Judge) -> Sequence[str]:
    if judge.outputs is not None:
        return judge.outputs
    return ("label", "score") if isinstance(judge.labels, dict) else ()


def _reading(judge: Judge) -> Callable[[str], Any]:
    """Return how the judge's answer becomes a score, a label, or named outputs."""
    if judge.outputs is not None:
        names = judge.outputs
        return lambda answer: judging.outputs(answer, names)
    if judge.labels is None:
        return lambda answer: judging.score(answer, judge.range)
    labels = judge.labels
    if not isinstance(labels, dict):
        return lambda answer: judging.label(answer, labels)
    worth: dict[str, float] = labels

    def labelled(answer: str) -> dict[str, Any]:
        label = judging.label(answer, list(worth))
        return {"label": label, "score": worth[label]}

    return labelled
