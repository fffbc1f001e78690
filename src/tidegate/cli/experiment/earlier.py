"""The messages before a run begins: the present owner of the experiment, and the results of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.cli.experiment.hints import command
from tidegate.runner import Experiment, ExperimentRunner
from tidegate.runner.replica import gone, owner
from tidegate.storage import ExperimentRow, ResultStatus, Status
from tidegate.storage.results import KEPT_LINES

ASIDE = frozenset({"timeout", "api_key_env"})
"""What a question may say that changes no answer."""


async def told(runner: ExperimentRunner, experiment: Experiment, *, again: bool) -> list[str]:
    """Lines to say. With `again` it was asked for by its name: that it was there already is no news then."""
    row = await runner.store.find(experiment.name)
    if row is None:
        return []
    lines: list[str] = []
    if row.status is Status.RUNNING and not gone(row.claimed_by):
        by = owner(row, await runner.store.last_logs(row.id, KEPT_LINES))
        lines += _whose(row, by, runner.settings.stale_after, command("show", row.name, runner.url))
    if not again:
        counts = await runner.store.counts(row.id)
        lines += _left(row, counts.runs.get(ResultStatus.OK, 0), experiment)
    return lines


def _whose(row: ExperimentRow, by: str, stale_after: float, attach: str) -> Iterator[str]:
    quiet = row.quiet or 0.0
    if stale_after > quiet:
        yield (
            f"{row.name} is run by {by}, heard of {quiet:.0f} s ago; attach with {attach}; this command waits for "
            f"its end, and takes it over if nothing more is heard for {stale_after - quiet:.0f} s"
        )


def _left(row: ExperimentRow, answered: int, experiment: Experiment) -> Iterator[str]:
    if answered:
        yield f"{row.name}: {answered} answers are there already, and stay: a new name asks all anew"
        if parts := list(changed(row, experiment)):
            yield f"{row.name}: they are of another {', '.join(parts)} than this"


def changed(row: ExperimentRow, experiment: Experiment) -> Iterator[str]:
    """Return what is not as it was when the experiment was stored, as far as that can be seen: code cannot."""
    if row.spec.get("source") not in (None, experiment.source):
        yield "file"
    if row.source != experiment.described:
        yield "dataset"
    before, now = _asked(row.spec.get("declared")), _asked(experiment.declared)
    for part, question in now.items():
        if part in before and before[part] != question:
            yield part


def _asked(declared: Any) -> dict[str, Any]:
    """The questions of a declaration by what they are called, without what changes no answer."""
    if not isinstance(declared, Mapping):
        return {}
    judges = {f"evaluator {judge['name']}": judge for judge in declared.get("evaluators", ())}
    return {
        part: {name: value for name, value in question.items() if name not in ASIDE}
        for part, question in {"task": declared.get("task", {}), **judges}.items()
    }
