"""What crosses a run's way: others' results, its own next run, a caller or a runner that goes meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import HeldTask, held, in_loop, make, rows, runner_at
from tidegate.errors import StoreError
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.engine import claims
from tidegate.experiments.storage import Status


def gated(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, gate: asyncio.Event) -> asyncio.Event:
    """Has a method wait for the gate; the event that is returned says that it was called."""
    method: Callable[..., Awaitable[Any]] = getattr(owner, name)
    called = asyncio.Event()

    async def waiting(*args: Any) -> Any:
        called.set()
        await gate.wait()
        return await method(*args)

    monkeypatch.setattr(owner, name, waiting)
    return called


@in_loop
async def test_rows_that_come_while_anothers_results_fill_the_writer_are_fetched_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, gate = asyncio.Event(), asyncio.Event()
    gate.set()

    async def late() -> AsyncIterator[Any]:
        await go.wait()
        for row in rows(3):
            yield row

    async with runner_at(tmp_path, UNWRITTEN_RESULTS=5) as runner:
        number = await runner.start(Experiment("late", late, HeldTask()))
        running = runner._dispatcher.runs[number]
        while running.tracker.unwritten:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.001)
        gate.clear()
        writing = gated(monkeypatch, runner.store, "write", gate)
        other = asyncio.create_task(runner.run(Experiment("other", rows(20), HeldTask())))
        await writing.wait()
        while runner._writer.room:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        go.set()
        while not running.tally.all_rows:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        gate.set()
        assert (await other).complete
        assert (await runner.wait(number)).answered == 3


class SlowToClose(Experiment):
    """An experiment whose end takes a while."""

    def __init__(self, order: list[str], let: asyncio.Event, task: Any, repetitions: int) -> None:
        super().__init__("e", rows(1), task, repetitions=repetitions)
        self.closing = asyncio.Event()
        self._order, self._let = order, let

    async def aclose(self) -> None:
        self.closing.set()
        await self._let.wait()
        self._order.append("closed")


@in_loop
async def test_the_next_run_begins_when_the_one_before_has_closed_what_it_held(tmp_path: Path) -> None:
    order: list[str] = []
    let = asyncio.Event()

    async def answer(row: Any) -> int:
        order.append("asked")
        return 1

    async with runner_at(tmp_path, CANCEL_GRACE_SECONDS=10.0) as runner:
        first = SlowToClose(order, let, answer, 1)
        number = await runner.start(first)
        await first.closing.wait()
        second = asyncio.create_task(runner.run(SlowToClose(order, let, answer, 2)))
        for _ in range(20):
            assert (await runner.summary(number)).status is Status.COMPLETED
        let.set()
        assert (await second).answered == 2
    assert order == ["asked", "closed", "asked", "closed"]


@in_loop
async def test_who_waits_for_a_run_is_not_cancelled_by_a_shutdown_that_leaves_it_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(tmp_path, WRITE_GRACE_SECONDS=0.01, CANCEL_GRACE_SECONDS=0.01)
    await runner.open()

    async def away(*args: Any) -> Any:
        raise StoreError("the database is away", retryable=True)

    monkeypatch.setattr(runner.store, "write", away)
    number = await runner.start(Experiment("e", rows(3), HeldTask()))
    waiting = asyncio.create_task(runner.wait(number))
    await asyncio.sleep(0)
    await runner.shutdown(0.0)
    with pytest.raises(RuntimeError, match="shut down"):
        await waiting


@pytest.mark.parametrize(("toggle", "where"), [("start", "_row"), ("start", "amend"), ("resume", "_row")])
@in_loop
async def test_who_is_cancelled_while_he_claims_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toggle: str, where: str
) -> None:
    task, experiment = HeldTask(), Experiment("e", rows(3), HeldTask())
    async with runner_at(tmp_path) as runner:
        before = (await runner.run(experiment)).experiment
        more = Experiment("e", rows(3), task, repetitions=2)
        gate = asyncio.Event()
        owner = runner.store.experiments if where == "amend" else runner._claim_service
        reached = gated(monkeypatch, owner, where, gate)
        asked = runner.start(more) if toggle == "start" else runner.resume("e")
        asking = asyncio.create_task(asked)
        await reached.wait()
        asking.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        after = await runner.store.experiments.find("e")
        assert after is not None
        assert (after.status, after.claimed_by) == (before.status, None)
        assert (dict(after.spec), after.repetitions) == (dict(before.spec), before.repetitions)
        assert task.calls.total() == 0
        assert runner.progress("e") is None
        assert (await runner.run(more)).answered == 6


@in_loop
async def test_code_that_does_not_load_holds_up_no_other_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RESTORE_SECONDS", 0.2)
    never, task = threading.Event(), HeldTask()
    async with runner_at(tmp_path) as dead:
        for name in ("hangs", "fine"):
            row = await dead.store.experiments.create(name, {"name": name}, 1, "rows")
            assert await dead.store.claims.claim(row.id, "dead", 60.0) is not None

    def restore(spec: Any) -> Experiment:
        if spec["name"] == "hangs":
            never.wait()
        return Experiment("fine", rows(3), task)

    try:
        async with make(
            tmp_path, recover=True, restore=restore, STALE_SECONDS=0.01, ORPHAN_SCAN_SECONDS=0.01
        ) as runner:
            await task.until(lambda: len(task.calls) == 3)
            assert (await runner.wait("fine")).complete
            hung = await runner.store.experiments.find("hangs")
    finally:
        never.set()
    assert hung is not None
    # It is left to a replica that has its code.
    assert (hung.status, hung.claimed_by) == (Status.RUNNING, "dead")


@in_loop
async def test_a_runner_that_is_not_open_yet_runs_nothing(tmp_path: Path) -> None:
    runner: ExperimentRunner = make(tmp_path)
    runner.leave(1)
    runner.hasten()
    assert runner.progress("e") is None
    await runner.shutdown()


@in_loop
async def test_the_stream_of_a_number_that_does_not_run_here_ends_at_once(tmp_path: Path) -> None:
    task, experiment = held(3)
    async with runner_at(tmp_path) as runner:
        number = await runner.start(experiment)
        during = runner.subscribe(number)
        task.go.set()
        await runner.wait(number)
        assert [event async for event in during] != []
        assert [event async for event in runner.subscribe(number)] == []
