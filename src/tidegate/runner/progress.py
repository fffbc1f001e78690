"""The progress of a running experiment, and its waits: a frozen picture, made when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.runner.item import TASK
from tidegate.storage import AnnotationResult, Counts, ResultStatus, RunResult

if TYPE_CHECKING:
    from tidegate.runner.running import Running
    from tidegate.runner.stage import Stage


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a stage does not go on: its gate's reason (`pause`, `pace`, `quota …`, `breaker`, …), and for how long; or
    `concurrency`, where as much is under way as may be.

    `key` is whose gate it is, without any credential; `seconds` is None where something under way must end first.
    """

    reason: str
    key: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class StageProgress:
    """One stage: its durable results by status, what is under way, what is ready in memory, and what it waits for.

    `total` is how many results it will have as far as is known: for an evaluator, one for every answered task.
    `closed` is why its items are parked instead of being tried: its guard, or the outage of its key; else empty.
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
        """Return how many items have come to an end."""
        return sum(self.done.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """An experiment that runs here: its rows so far, whether that is all of them, and its stages, tasks first.

    `unwritten` results are not durable yet; it grows while the database is away.
    """

    name: str
    phase: str
    rows: int
    all_rows: bool
    unwritten: int
    stages: tuple[StageProgress, ...]


class Tally:
    """Durable results by stage and status, those of earlier runs included."""

    def __init__(self, stages: int) -> None:
        self.rows = 0
        self.all_rows = False
        self.done: list[dict[ResultStatus, int]] = [{} for _ in range(stages)]

    def begin(self, counts: Counts, stages: list[Stage], again: bool) -> None:
        """Takes in what is there already; what will be tried again counts as not done."""
        for stage in stages:
            found = counts.runs if stage.index == TASK else counts.annotations.get(stage.name, {})
            for status, count in found.items():
                if not (again and status in (ResultStatus.ERROR, ResultStatus.PARKED)):
                    self.done[stage.index][status] = count

    def add(self, stage: int, result: RunResult | AnnotationResult) -> None:
        """One more."""
        status = result.status if isinstance(result, RunResult) else result.annotations[0].status
        done = self.done[stage]
        done[status] = done.get(status, 0) + 1


def progress(running: Running) -> Progress:
    """The picture of a running experiment."""
    tally = running.tally
    under_way = [0] * len(running.stages)
    for job in running.under_way:
        under_way[job.item.stage] += 1
    tasks = tally.rows * running.experiment.repetitions
    answered = tally.done[TASK].get(ResultStatus.OK, 0)
    stages = tuple(
        StageProgress(
            stage.name,
            tasks if stage.index == TASK else answered,
            dict(tally.done[stage.index]),
            under_way[stage.index],
            running.workload.depth(stage.index),
            _wait(running, stage.index),
            running.closed(stage),
        )
        for stage in running.stages
    )
    return Progress(
        running.experiment.name, running.phase.value, tally.rows, tally.all_rows, running.books.unwritten, stages
    )


def _wait(running: Running, stage: int) -> Wait | None:
    gate = running.workload.gate(stage)
    closed = running.floor.gates.closed(gate)
    if not running.workload.depth(stage):
        return None
    if closed is None:
        full = running.floor.slots <= 0 or len(running.under_way) >= running.cap
        return Wait("concurrency", "", None) if full else None
    key = running.stages[stage].habit.key
    seconds = closed.until - running.floor.loop.time()
    return Wait(closed.reason, str(key) if key is not None else "", max(0.0, seconds) if seconds < 1e9 else None)
