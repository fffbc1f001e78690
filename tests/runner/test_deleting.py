"""Deletion by a user: the run is stopped and waited for, and a late owner writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.runner.scene import HeldTask, held, in_loop, rows, runner_at, statuses
from tidegate.errors import ClaimedElsewhere, CoolingDown, UnknownExperiment
from tidegate.experiments import Experiment, ExperimentRunner, ResultStatus
from tidegate.experiments.engine import claims
from tidegate.experiments.storage import Status, Store


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STOP_CHECK_SECONDS", 0.001)


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Return when something holds that other tasks bring about."""
    while True:
        if await holds():
            return
        await asyncio.sleep(0)


async def is_gone(store: Store, name: str = "e") -> bool:
    return await store.experiments.find(name) is None


@in_loop
async def test_run_of_this_runner_ends_before(tmp_path: Path) -> None:
    task, experiment = held()
    async with runner_at(tmp_path) as runner:
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        deleting = asyncio.create_task(runner.delete("e"))
        # The job in flight may finish, as at every stop; the deletion waits for it.

        async def stopped() -> bool:
            seen = runner.progress(number)
            return seen is None or seen.phase != "live"

        await until(stopped)
        assert not deleting.done()
        task.go.set()
        await deleting
        assert await is_gone(runner.store)
        with pytest.raises(UnknownExperiment):
            await runner.delete("e")
        # The name is free, and everything is asked again.
        summary = await runner.run(experiment)
    assert summary.answered == 50
    assert task.calls[0] == 2


@in_loop
async def test_run_of_another_runner_is_waited_for(tmp_path: Path) -> None:
    task, experiment = held()
    async with runner_at(tmp_path) as here, runner_at(tmp_path) as there:
        number = await here.start(experiment)
        await task.until(lambda: task.inside == 1)
        deleting = asyncio.create_task(there.delete("e"))

        async def stopped() -> bool:
            row = await there.store.experiments.find(number)
            return row is not None and row.claimed_by is None

        await until(stopped)
        await here._heartbeat.renew_claims()
        assert not deleting.done()
        assert await there.store.experiments.is_ending(number, 60.0)
        task.go.set()
        await deleting
        assert await is_gone(there.store)


@in_loop
async def test_owner_that_is_not_waited_for_writes_nothing_more(tmp_path: Path) -> None:
    task, experiment = held()
    async with runner_at(tmp_path) as here, runner_at(tmp_path) as there:
        number = await here.start(experiment)
        await task.until(lambda: task.inside == 1)
        await there.delete("e", force=True)
        assert await is_gone(there.store)
        again = await there.start(Experiment("e", rows(1), HeldTask()))
        assert again > number
        summary = await there.wait(again)
        task.go.set()
        with pytest.raises(UnknownExperiment):
            await here.wait(number)
        assert await statuses(there.store, again) == {ResultStatus.OK: 1}
        assert summary.counts.rows == 1


@in_loop
async def test_dead_owner_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, experiment = held()
    async with runner_at(tmp_path) as here, runner_at(tmp_path) as there:
        await here.start(experiment)
        await task.until(lambda: task.inside == 1)
        monkeypatch.setattr(claims, "is_dead", lambda replica: replica == here.replica)
        await there.delete("e")
        assert await is_gone(there.store)
        task.go.set()


async def resumed_when_it_is_to_go(runner: ExperimentRunner, number: int) -> None:
    """Let somebody resume an experiment between its stop and its deletion."""
    ending = runner.store.experiments.is_ending

    async def then(number: int, patience: float) -> bool:
        await runner.store.claims.resume(number, "somebody")
        return await ending(number, patience)

    runner.store.experiments.is_ending = then  # type: ignore[method-assign]


@in_loop
async def test_experiment_that_was_resumed_meanwhile_stays(tmp_path: Path) -> None:
    _, experiment = held(1)
    async with runner_at(tmp_path) as runner:
        row = await runner.store.experiments.create("e", experiment.spec(), 1, "")
        claim = await runner.store.claims.claim(row.id, "somebody", 60.0)
        assert claim is not None
        await runner.store.claims.release(claim, Status.COMPLETED)
        await resumed_when_it_is_to_go(runner, row.id)
        with pytest.raises(ClaimedElsewhere, match="somebody"):
            await runner.delete("e")
        # So soon after a resume, nobody may stop it.
        with pytest.raises(CoolingDown):
            await runner.delete("e")
        assert not await is_gone(runner.store)
