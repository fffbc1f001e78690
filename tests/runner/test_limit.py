"""The first rows of an experiment: the rest is left for a later run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import constants
from tests.runner.scene import HeldTask, in_loop, rows, runner_at, stored
from tidegate.errors import ConfigurationError
from tidegate.experiments import Experiment
from tidegate.experiments.storage import Status


def same(row: Any, output: Any) -> bool:
    return bool(row["n"] == output)


@in_loop
async def test_only_the_first_rows_are_read_and_tried(tmp_path: Path) -> None:
    read: list[int] = []

    def endless() -> Iterator[Any]:
        for number in range(1_000_000):
            read.append(number)
            yield {"n": number}

    task = HeldTask()
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(Experiment("e", endless, task, [same], repetitions=2), limit=7)
        assert (summary.status, summary.last_error) == (Status.STOPPED, "limit of 7 rows reached")
        assert sorted(task.calls.elements()) == sorted([*range(7)] * 2)
        assert summary.counts.annotations == {"same": {"ok": 14}}
    assert len(read) <= 8


@in_loop
async def test_later_runs_continue_behind_it(tmp_path: Path) -> None:
    task = HeldTask()
    experiment = Experiment("e", rows(30), task, [same])
    async with runner_at(tmp_path, PAGE_ITEMS=2) as runner:
        for limit in (5, 3, 12):
            summary = await runner.run(experiment, limit=limit)
            assert summary.status is Status.STOPPED
        assert set(task.calls) == set(range(12))
        summary = await runner.run(experiment)
        assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, 30, True)
        # Of a stored dataset too, only the first rows are tried.
        again = await runner.run(Experiment("e", rows(30), task, [same], repetitions=2), limit=4)
        assert again.answered == 34
        more = Experiment("e", rows(30), task, [same, lambda row, output: 1], repetitions=2)
        judged = await runner.run(more, limit=4)
        assert judged.counts.annotations["lambda"] == {"ok": 8}
        assert judged.status is Status.STOPPED
        final = await runner.run(more)
        assert (final.status, final.complete) == (Status.COMPLETED, True)
        assert len(await stored(runner.store, final.experiment.id)) == 60
    assert set(task.calls.values()) == {2}


@in_loop
async def test_limit_beyond_the_last_row_changes_nothing(tmp_path: Path) -> None:
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(Experiment("e", rows(3), HeldTask()), limit=4)
        assert (summary.status, summary.complete) == (Status.COMPLETED, True)


@pytest.mark.parametrize("count", [1, 3, 1000])
@in_loop
async def test_limit_of_all_rows_completes_the_experiment(tmp_path: Path, count: int) -> None:
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(Experiment("e", rows(count), HeldTask()), limit=count)
        assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, count, True)


@in_loop
async def test_replica_that_takes_a_run_over_keeps_to_its_limit(tmp_path: Path) -> None:
    task = HeldTask(held=True)
    experiment = Experiment("e", rows(10), task)
    async with runner_at(tmp_path) as here, runner_at(tmp_path, restore=lambda spec: experiment) as there:
        number = await here.start(experiment, limit=2)
        await task.until(lambda: task.inside == 1)
        await here.shutdown(0.0)
        claim = await there.store.experiments.find(number)
        assert claim is not None
        assert claim.status is Status.RUNNING
        task.go.set()
        constants.replace(STALE_SECONDS=0.0)
        await there._claim_service.claim_orphan(number)
        summary = await there.wait(number)
        assert (summary.answered, summary.last_error) == (2, "limit of 2 rows reached")
        await there.resume(number)
        assert (await there.wait(number)).answered == 10


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
@in_loop
async def test_limit_is_a_positive_number(tmp_path: Path, limit: Any) -> None:
    async with runner_at(tmp_path) as runner:
        with pytest.raises(ConfigurationError) as told:
            await runner.run(Experiment("e", rows(3), HeldTask()), limit=limit)
        assert told.value.field == "limit"
