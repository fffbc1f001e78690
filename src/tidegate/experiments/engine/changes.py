"""Differences between an experiment and its stored description, and what to do about kept answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.item import TASK_STAGE
from tidegate.experiments.storage import ExperimentRow

UNCOMPARED_FIELDS = frozenset({"timeout", "api_key_env"})
"""Fields of a question that change no answer."""


def changed_parts(row: ExperimentRow, experiment: Experiment) -> list[str]:
    """Return the parts of an experiment that differ from those of its last run."""
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
