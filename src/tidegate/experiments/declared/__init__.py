"""Experiments without code: `experiment.yaml` declares a task and judges, and official SDKs send them to models.

A judge's answer is read as a score, a label, or a JSON object of named outputs. An answer that is none of them is
unusable, not a score of zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.errors import UnusableAnswer
from tidegate.experiments.declared.clients import LazyClient, UnsentRequest
from tidegate.experiments.declared.schema import (
    BatchSpec,
    Declaration,
    Document,
    JudgeSpec,
    declared,
    stored,
    values_of,
)
from tidegate.experiments.engine.batch import BatchTask
from tidegate.experiments.engine.budget import Budget
from tidegate.experiments.engine.experiment import Evaluator, Experiment

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)%?")
"""Pattern of a number; it includes a percent sign, so that `score` can reject percentages."""

MAX_SHOWN_CHARACTERS = 80
"""Maximum characters of an answer in an error message. Chosen: the beginning shows the form, and the message stays one
line."""


class Unparsable(UnusableAnswer):
    """Error for a judge's answer that lacks the requested value."""

    def __init__(self, answer: str, wanted: str) -> None:
        self.answer = answer
        text = " ".join(answer.split())
        shown = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"
        super().__init__(f"answer of the judge unusable: it is not {wanted}: {shown!r}")


def score(answer: str, bounds: tuple[float, float] | None) -> float:
    """Return the only number of the answer's last line that has any, or `score` of a JSON object.

    Raise `Unparsable` if there is no such number, it is a percentage, or it is outside the bounds.
    """
    wanted = "one number" + (f" from {bounds[0]:g} to {bounds[1]:g}" if bounds is not None else "")
    found = _said_as_json(answer, "score")
    if found is None:
        lines = [numbers for line in answer.splitlines() if (numbers := NUMBER.findall(line))]
        if not lines or len(lines[-1]) != 1 or lines[-1][0].endswith("%"):
            raise Unparsable(answer, wanted)
        found = float(lines[-1][0])
    if bounds is not None and not bounds[0] <= found <= bounds[1]:
        raise Unparsable(answer, wanted)
    return found


def label(answer: str, labels: Sequence[str]) -> str:
    """Return the only label that an answer equals or contains as a word, or `label` of a JSON object."""
    by_folded = {each.casefold(): each for each in labels}
    said = _object(answer)
    text = str(said["label"]) if said is not None and "label" in said else answer
    exact = by_folded.get(text.strip().strip(".!\"'`*").casefold())
    if exact is not None:
        return exact
    # Longer labels match first, so "not right" does not count as "right".
    either = "|".join(re.escape(each) for each in sorted(by_folded, key=len, reverse=True))
    named = set(re.findall(rf"(?<!\w)(?:{either})(?!\w)", text.casefold()))
    if len(named) != 1:
        raise Unparsable(answer, f"one of {', '.join(labels)}")
    return by_folded[named.pop()]


def outputs(answer: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the named values of the JSON object in an answer. Every name must be there; other names are dropped."""
    said = _object(answer)
    if said is None or any(name not in said for name in names):
        raise Unparsable(answer, f"a JSON object with {', '.join(names)}")
    return {name: said[name] for name in names}


def _said_as_json(answer: str, name: str) -> float | None:
    said = _object(answer)
    value = said.get(name) if said is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _object(answer: str) -> Mapping[str, Any] | None:
    """Return the first JSON object in an answer, whatever text surrounds it."""
    decoder = json.JSONDecoder(parse_constant=_refused)
    start = answer.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            start = answer.find("{", start + 1)
            continue
        return found if isinstance(found, dict) else None
    return None


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def from_file(path: Path) -> Experiment:
    """Return the experiment that a YAML file declares; a relative dataset path starts at the file's folder.

    Raise `ConfigurationError`, which names the line and the field, and `CannotLoad` if a provider's SDK is missing.
    """
    path = path.expanduser()
    declaration = declared(Document.of(path))
    dataset = path.resolve().parent / Path(declaration.dataset).expanduser()
    return Declared(declaration.model_copy(update={"dataset": str(dataset)}), str(path.resolve()))


def from_stored(values: Mapping[str, Any], source: str) -> Experiment:
    """Return the experiment of a stored declaration; its file is no longer needed."""
    return Declared(stored(values), source)


class Declared(Experiment):
    """Experiment of declared questions; it closes its clients at the end of a run."""

    def __init__(self, declaration: Declaration, source: str) -> None:
        task = LazyClient(declaration.task, source)
        judges = [LazyClient(judge, source) for judge in declaration.evaluators]
        self._asked = [task, *judges]
        super().__init__(
            declaration.name,
            declaration.dataset,
            _task(task) if declaration.batch is None else _batch_task(task, declaration.batch),
            [_evaluator(judge, asked) for judge, asked in zip(declaration.evaluators, judges, strict=True)],
            repetitions=declaration.repetitions,
            max_concurrency=declaration.max_concurrency,
            weight=declaration.weight,
            spread=declaration.spread,
            task_timeout=declaration.task.timeout,
            credentials=declaration.credentials,
            source=source,
            declared=declaration.model_dump(mode="json", exclude_defaults=True),
            batch=declaration.batch is not None,
            budget=Budget(**declaration.budget.model_dump()) if declaration.budget is not None else None,
        )

    async def request(self, stage: int, row: Any, output: str) -> UnsentRequest:
        """Return the request of a stage (0: the task) for a row with this answer. Raise `MissingField`."""
        values = values_of(row)
        return self._asked[stage].request({**values, "output": output} if stage else values)

    async def aclose(self) -> None:
        """Close the clients of this loop; the next run creates new ones."""
        for asked in self._asked:
            await asked.close()


def _task(asked: LazyClient) -> Callable[[Any], Awaitable[str]]:
    async def answer(row: Any) -> str:
        return await asked(values_of(row))

    return answer


def _batch_task(asked: LazyClient, batch: BatchSpec) -> BatchTask:
    def build(row: Any) -> dict[str, Any]:
        return asked.body(values_of(row))

    return BatchTask(build, asked.text, client=asked.sdk, max_requests=batch.max_requests)


def _evaluator(judge: JudgeSpec, asked: LazyClient) -> Evaluator:
    read = _reading(judge)

    async def judged(row: Any, output: Any) -> Any:
        return read(await asked({**values_of(row), "output": output}))

    return Evaluator(judged, name=judge.name, outputs=_outputs(judge), timeout=judge.timeout)


def _outputs(judge: JudgeSpec) -> Sequence[str]:
    if judge.outputs is not None:
        return judge.outputs
    return ("label", "score") if isinstance(judge.labels, dict) else ()


def _reading(judge: JudgeSpec) -> Callable[[str], Any]:
    """Return the function that reads the judge's answer as a score, a label, or named outputs."""
    if judge.outputs is not None:
        names = judge.outputs
        return lambda answer: outputs(answer, names)
    if judge.labels is None:
        return lambda answer: score(answer, judge.range)
    labels = judge.labels
    if not isinstance(labels, dict):
        return lambda answer: label(answer, labels)
    worth: dict[str, float] = labels

    def labelled(answer: str) -> dict[str, Any]:
        found = label(answer, list(worth))
        return {"label": found, "score": worth[found]}

    return labelled
