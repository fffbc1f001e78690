"""A run whose SQLite file is deleted or replaced under it: it ends with ERROR, and names the file that has its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runner.scene import HeldTask, held, in_loop, make, rows, runner_at, stored
from tidegate.errors import DatabaseFileLost
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.engine.progress import Summary
from tidegate.experiments.storage import ResultStatus, Status, Store


def delete(path: Path) -> None:
    for name in ("runs.db", "runs.db-wal", "runs.db-shm"):
        (path / name).unlink()


async def in_file(path: Path) -> tuple[Status, str | None, list[object]]:
    """The status, the reason and the answers of the one experiment of a file."""
    store = await Store.open(str(path))
    row = await store.experiments.find("e")
    assert row is not None
    answers = [run.output for run in await stored(store, row.id) if run.status is ResultStatus.OK]
    await store.close()
    return row.status, row.last_error, answers


def saved_by(summary: Summary, path: Path) -> Path:
    assert summary.status is Status.ERROR
    assert summary.last_error is not None
    assert str(path) in summary.last_error
    return path


@in_loop
async def test_run_whose_file_is_deleted_ends_with_error_and_a_copy(tmp_path: Path) -> None:
    """The heartbeat notices it; what was under way finishes, and is in the copy."""
    task, experiment = held(30)
    async with runner_at(tmp_path, max_concurrency=4) as runner:
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        delete(tmp_path)
        await runner._heartbeat.renew_claims()
        task.go.set()
        summary = await runner.wait(number)
        assert runner.saved == tmp_path / "runs.saved.db"
    path = saved_by(summary, tmp_path / "runs.saved.db")
    assert await in_file(path) == (Status.ERROR, summary.last_error, [0])
    assert not (tmp_path / "runs.db").exists()


@in_loop
async def test_run_whose_file_is_gone_at_its_end_is_not_completed(tmp_path: Path) -> None:
    """No heartbeat comes in between."""
    task, experiment = held(1)
    async with runner_at(tmp_path, HEARTBEAT_SECONDS=3000.0) as runner:
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        delete(tmp_path)
        task.go.set()
        summary = await runner.wait(number)
    path = saved_by(summary, tmp_path / "runs.saved.db")
    assert (await in_file(path))[2] == [0]


@in_loop
async def test_run_goes_on_from_the_saved_file(tmp_path: Path) -> None:
    task, experiment = held(5)
    async with runner_at(tmp_path) as runner:
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        delete(tmp_path)
        await runner._heartbeat.renew_claims()
        task.go.set()
        await runner.wait(number)
        assert runner.saved is not None
    async with ExperimentRunner(str(runner.saved), recover=False) as again:
        assert (await again.run(experiment)).complete
    assert set(task.calls.values()) == {1}


@in_loop
async def test_shutdown_with_the_file_gone_saves_it(tmp_path: Path) -> None:
    """Whoever shuts down keeps the claim: it would be kept in a file that nobody can open."""
    task, experiment = held(5)
    runner = make(tmp_path)
    await runner.start(experiment)
    await task.until(lambda: task.inside == 1)
    delete(tmp_path)
    task.go.set()
    await runner.shutdown()
    assert (await in_file(tmp_path / "runs.saved.db"))[2] == [0]


@in_loop
async def test_two_runs_of_one_file_that_is_lost_are_both_saved(tmp_path: Path) -> None:
    """Two runners in one process: each saves what it ran, and neither overwrites the other's."""
    tasks = [HeldTask(held=True), HeldTask(held=True)]
    runners = [make(tmp_path), make(tmp_path)]
    for number, (task, runner) in enumerate(zip(tasks, runners, strict=True)):
        await runner.start(Experiment(f"e{number}", rows(3), task))
        await task.until(lambda task=task: task.inside == 1)  # type: ignore[misc]
    delete(tmp_path)
    for task, runner in zip(tasks, runners, strict=True):
        await runner._heartbeat.renew_claims()
        task.go.set()
    for number, runner in enumerate(runners):
        assert (await runner.wait(f"e{number}")).status is Status.ERROR
        assert runner.saved is not None
        store = await Store.open(str(runner.saved))
        row = await store.experiments.find(f"e{number}")
        assert row is not None
        assert [run.output for run in await stored(store, row.id)] == [0]
        await store.close()
    for runner in runners:
        await runner.shutdown()
    assert runners[0].saved != runners[1].saved


@in_loop
async def test_run_whose_file_cannot_be_saved_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, experiment = held(3)
    async with runner_at(tmp_path) as runner:
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        delete(tmp_path)

        async def full() -> DatabaseFileLost:
            return DatabaseFileLost(tmp_path / "runs.db", "was deleted", failure="disk full")

        monkeypatch.setattr(runner.store.database, "save_lost", full)
        await runner._heartbeat.renew_claims()
        task.go.set()
        summary = await runner.wait(number)
    assert summary.status is Status.ERROR
    assert "no copy could be saved (disk full)" in str(summary.last_error)
