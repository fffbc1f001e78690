"""Whatever fails inside the runner ends the run with a reason, or is begun anew: nothing just stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import HeldTask, in_loop, make, rows, runner_at, stored
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import StoreError
from tidegate.experiments import Evaluator, Experiment, ExperimentRunner, Summary
from tidegate.experiments.engine import background, results
from tidegate.experiments.engine.background import BackgroundTask
from tidegate.experiments.engine.events import SubscriberHub
from tidegate.experiments.engine.result_handler import ResultHandler
from tidegate.experiments.engine.results import ResultWriter
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.supervisor import RunSupervisor
from tidegate.experiments.storage import Status
from tidegate.experiments.storage.claims import Claims


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at once."""
    for module in (background, results):
        monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.0001)
        monkeypatch.setattr(module, "MAX_RETRY_SECONDS", 0.001)


def failing(times: float = 1, error: BaseException | None = None, after: int = 0) -> Callable[[Any], Any]:
    """What makes a method fail so many times, once it has been called `after` times."""

    def broken(method: Any) -> Any:
        calls = [0]

        def called(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if after < calls[0] <= after + times:
                raise error if error is not None else ZeroDivisionError("inside")
            return method(*args, **kwargs)

        return called

    return broken


async def ends(runner: ExperimentRunner, experiment: Experiment) -> Summary:
    summary = await runner.run(experiment)
    assert runner.progress(experiment.name) is None
    return summary


INSIDE = (Status.ERROR, "ZeroDivisionError: inside")


def why(summary: Summary) -> tuple[Status, str]:
    """How it ended, and why, without the place in the code."""
    return summary.status, (summary.last_error or "").partition(" (")[0]


def judged(count: int = 40) -> Experiment:
    return Experiment("e", rows(count), HeldTask(), [Evaluator(HeldTask(), name="judge")])


CANCELLED = asyncio.CancelledError


class TestWriter:
    @pytest.mark.parametrize("error", [None, CANCELLED()], ids=["raises", "is cancelled"])
    @in_loop
    async def test_an_error_of_its_own_is_survived_and_nothing_is_lost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
    ) -> None:
        async with runner_at(tmp_path) as runner:
            monkeypatch.setattr(ResultWriter, "_filled", failing(2, error, after=1)(ResultWriter._filled))
            summary = await ends(runner, judged())
        assert summary.complete

    @in_loop
    async def test_too_many_in_a_row_end_every_run_and_another_runner_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        experiment, task, other = judged(), HeldTask(held=True), HeldTask(held=True)
        with monkeypatch.context() as patch:
            async with runner_at(tmp_path) as runner:
                # Both are running before anything breaks: a broken runner starts nothing.
                first = await runner.start(Experiment("e", rows(40), task, [Evaluator(HeldTask(), name="judge")]))
                second = await runner.start(Experiment("other", rows(3), other))
                await task.until(lambda: task.inside > 0)
                await other.until(lambda: other.inside > 0)
                patch.setattr(ResultWriter, "_filled", failing(float("inf"))(ResultWriter._filled))
                task.go.set()
                other.go.set()
                ended = await asyncio.gather(runner.wait(first), runner.wait(second))
                assert [why(each) for each in ended] == [INSIDE] * 2
                with pytest.raises(RuntimeError, match="broken"):
                    await runner.start(experiment)
        async with runner_at(tmp_path) as sound:
            assert (await sound.run(experiment)).complete
            assert len(await stored(sound.store, 1)) == 40

    @pytest.mark.parametrize("where", ["durable", "check_progress"])
    @in_loop
    async def test_a_run_that_cannot_take_in_a_durable_result_ends_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def broken(method: Any) -> Any:
            broken_ones = [0]

            def called(self: ExperimentRun, *args: Any) -> Any:
                if self.experiment.name == "e" and self.live:
                    broken_ones[0] += 1
                    if broken_ones[0] > 5:
                        if where == "durable":
                            self.tracker.unwritten -= 1
                        raise ZeroDivisionError("inside")
                return method(self, *args)

            return called

        async with runner_at(tmp_path) as runner:
            monkeypatch.setattr(ExperimentRun, where, broken(getattr(ExperimentRun, where)))
            other = Experiment("other", rows(100), HeldTask())
            summary, fine = await asyncio.gather(ends(runner, judged()), ends(runner, other))
        assert why(summary) == INSIDE
        assert fine.complete

    @in_loop
    async def test_subscribers_that_cannot_be_told_end_the_run_they_watch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with runner_at(tmp_path) as runner:
            watching = runner.subscribe("e")
            monkeypatch.setattr(SubscriberHub, "publish", failing(1, after=4)(SubscriberHub.publish))
            summary = await ends(runner, judged())
            assert len([event async for event in watching]) > 3
        assert why(summary) == INSIDE


@pytest.mark.parametrize("method", ["pending.tasks", "pending.evals", "datasets.add_rows", "datasets.complete"])
@pytest.mark.parametrize("error", [ZeroDivisionError("inside"), CANCELLED()], ids=["raises", "is cancelled"])
@in_loop
async def test_who_feeds_a_run_or_reads_its_dataset_and_dies_ends_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> None:
    task = HeldTask()
    async with runner_at(tmp_path, PAGE_ITEMS=2) as runner:
        kind, _, name = method.partition(".")
        part = getattr(runner.store, kind)
        monkeypatch.setattr(part, name, failing(1, error)(getattr(part, name)))
        judge = Evaluator(HeldTask(), name="judge")
        if method == "pending.evals":
            # There is something left over to look for.
            monkeypatch.setattr(RunSupervisor, "start", left_over(RunSupervisor.start))
        summary = await ends(runner, Experiment("e", rows(20), task, [judge]))
    assert summary.status is Status.ERROR
    assert ("inside" if isinstance(error, Exception) else "was cancelled") in (summary.last_error or "")


def left_over(begin: Any) -> Any:
    def called(self: RunSupervisor, experiment: Any, row: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, experiment, row, *args, **kwargs)
        for backlog in self.runs[row.id].tracker.backlogs:
            backlog.may_have_more = True

    return called


@in_loop
async def test_a_run_that_cannot_begin_ends_with_the_reason_and_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runner_at(tmp_path) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(ExperimentRun, "start", failing(1)(ExperimentRun.start))
            summary = await ends(runner, judged())
            assert why(summary) == INSIDE
        with monkeypatch.context() as patch:
            patch.setattr(runner.store.reports, "counts", failing(1)(runner.store.reports.counts))
            summary = await ends(runner, judged())
            assert why(summary) == INSIDE


@in_loop
async def test_a_claim_whose_run_cannot_be_made_is_given_back_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runner_at(tmp_path) as runner:
        monkeypatch.setattr(RunSupervisor, "start", failing(1)(RunSupervisor.start))
        with pytest.raises(ZeroDivisionError):
            await runner.start(judged())
        row = await runner.store.experiments.find("e")
    assert row is not None
    assert (row.status, row.claimed_by) == (Status.ERROR, None)
    assert (row.last_error or "").startswith("ZeroDivisionError: inside")


@in_loop
async def test_an_end_that_cannot_be_written_ends_the_run_here_and_it_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = judged()
    async with runner_at(tmp_path) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(Claims, "release", failing(1)(Claims.release))
            assert (await ends(runner, experiment)).status is Status.RUNNING
        assert (await ends(runner, experiment)).complete


@in_loop
async def test_an_items_end_that_cannot_be_taken_in_ends_the_run_and_gives_its_slot_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runner_at(tmp_path, max_concurrency=2) as runner:
        with monkeypatch.context() as patch:
            patch.setattr(ResultHandler, "conclude", failing(1, after=4)(ResultHandler.conclude))
            summary = await ends(runner, judged())
            assert why(summary) == INSIDE
        both = HeldTask()
        assert (await ends(runner, Experiment("next", rows(50), both))).complete
        assert both.most == 2


class TestDispatcher:
    @pytest.mark.parametrize("part", ["take", "peek"])
    @in_loop
    async def test_an_error_in_its_turn_ends_an_experiment_and_no_other_and_leaves_no_permit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
    ) -> None:
        registry, key = RateLimitRegistry(tidegate.Settings()), tidegate.Key("p", "https://p.test")
        fine, bad = HeldTask(), HeldTask()

        def governed(watch: HeldTask) -> Any:
            async def ask(row: Any) -> Any:
                return await registry.aexecute(key, lambda: watch(row))

            return ask

        async with runner_at(tmp_path, registry=registry) as runner:
            going = asyncio.create_task(ends(runner, Experiment("fine", rows(200), governed(fine))))
            number = await runner.start(Experiment("bad", rows(50), governed(bad)))
            work_queue = runner._dispatcher.runs[number].work_queue
            monkeypatch.setattr(work_queue, part, failing(1, after=3)(getattr(work_queue, part)))
            summary = await runner.wait(number)
            assert why(summary) == INSIDE
            assert (await going).complete
        assert registry.snapshot().keys[key].in_flight == 0


class TestOwnership:
    @pytest.mark.parametrize(
        "error",
        [ZeroDivisionError("inside"), CANCELLED(), StoreError("connection refused", retryable=True)],
        ids=["raises", "is cancelled", "has no database"],
    )
    @in_loop
    async def test_a_heartbeat_goes_on_whatever_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        task = HeldTask(held=True)
        async with runner_at(tmp_path, HEARTBEAT_SECONDS=0.005) as runner:
            number = await runner.start(Experiment("e", rows(3), task))
            renew, beaten = runner.store.claims.renew, asyncio.Event()

            async def noted(replica: str, claims: Any) -> frozenset[int]:
                kept = await renew(replica, claims)
                beaten.set()
                return kept

            monkeypatch.setattr(runner.store.claims, "renew", failing(2, error)(noted))
            await beaten.wait()
            task.go.set()
            assert (await runner.wait(number)).complete

    @pytest.mark.parametrize("error", [ZeroDivisionError("inside"), CANCELLED()], ids=["raises", "is cancelled"])
    @in_loop
    async def test_a_look_for_orphans_goes_on_whatever_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        task = HeldTask()
        experiment = Experiment("e", rows(3), task)
        await abandoned(tmp_path, experiment)
        monkeypatch.setattr(Claims, "orphans", failing(2, error)(Claims.orphans))
        async with make(
            tmp_path, recover=True, restore=lambda spec: experiment, STALE_SECONDS=0.001, ORPHAN_SCAN_SECONDS=0.005
        ) as runner:
            await task.until(lambda: len(task.calls) == 3)
            assert (await runner.wait("e")).complete

    @in_loop
    async def test_an_orphan_that_cannot_be_taken_up_holds_up_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = HeldTask()
        experiments = {name: Experiment(name, rows(3), task) for name in ("bad", "good")}
        for experiment in experiments.values():
            await abandoned(tmp_path, experiment)
        claim = Claims.claim

        async def picky(self: Claims, number: int, replica: str, stale_after: float) -> Any:
            if number == 1:
                raise ZeroDivisionError("inside")
            return await claim(self, number, replica, stale_after)

        monkeypatch.setattr(Claims, "claim", picky)
        async with make(
            tmp_path,
            recover=True,
            restore=lambda spec: experiments["good"],
            STALE_SECONDS=0.001,
            ORPHAN_SCAN_SECONDS=3000.0,
        ) as runner:
            await task.until(lambda: len(task.calls) == 3)
            assert (await runner.wait("good")).complete


async def abandoned(path: Path, experiment: Experiment) -> None:
    """An experiment whose replica has died long ago."""
    async with runner_at(path) as dead:
        row = await dead.store.experiments.create(experiment.name, experiment.spec(), experiment.repetitions, "rows")
        assert await dead.store.claims.claim(row.id, "dead", 60.0) is not None
        await asyncio.sleep(0.01)


def test_a_loop_that_is_being_closed_begins_nothing_anew() -> None:
    told: list[BaseException] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(3):
            BackgroundTask(loop, partial(asyncio.sleep, 3600), "a task", told.append, "it starts again")
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == []


class TestEnds:
    @in_loop
    async def test_a_dataset_that_will_not_end_and_an_experiment_that_will_not_close_are_left_behind(
        self, tmp_path: Path
    ) -> None:
        never, reading = asyncio.Event(), asyncio.Event()

        async def source() -> Any:
            reading.set()
            yield {"n": 0}
            while not never.is_set():
                try:
                    await never.wait()
                except asyncio.CancelledError:
                    continue

        class SlowToClose(Experiment):
            async def aclose(self) -> None:
                await never.wait()

        async with runner_at(tmp_path) as runner:
            watching = runner.subscribe("e")
            number = await runner.start(SlowToClose("e", source, HeldTask()))
            await reading.wait()
            runner.leave(number)
            assert (await runner.wait(number)).status is Status.STOPPED
            assert [event async for event in watching]
            never.set()
            await asyncio.sleep(0)

    @in_loop
    async def test_a_second_shutdown_waits_for_the_end_of_the_first(self, tmp_path: Path) -> None:
        task = HeldTask(held=True)
        runner = make(tmp_path)
        await runner.start(Experiment("e", rows(3), task))
        await task.until(lambda: task.inside == 1)
        first = asyncio.create_task(runner.shutdown())
        second = asyncio.create_task(runner.shutdown())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        task.go.set()
        await second
        assert first.done()
        async with runner_at(tmp_path) as later:
            assert len(await stored(later.store, 1)) == 1
