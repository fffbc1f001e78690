"""Who stops a run and what is kept: stops, resumes, shutdowns, lost claims, orphans."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import HeldTask, held, in_loop, rows, runner_at, statuses
from tidegate.errors import CoolingDown, UnknownExperiment
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.storage import ResultStatus, Status, Toggle
from tidegate.experiments.storage.schema import execution_configs

OK = ResultStatus.OK


class TestStop:
    @in_loop
    async def test_what_is_under_way_finishes_and_is_kept_and_nothing_new_is_started(self, tmp_path: Path) -> None:
        task, experiment = held()
        async with runner_at(tmp_path, max_concurrency=4) as runner:
            number = await runner.start(experiment)
            await task.until(lambda: task.inside == 1)
            assert await runner.stop("e") is Toggle.DONE
            task.go.set()
            summary = await runner.wait(number)
            assert summary.status is Status.STOPPED
            assert await statuses(runner.store, number) == {OK: len(task.calls)}
            assert len(task.calls) < 50

    @in_loop
    async def test_a_stopped_run_goes_on_where_it_was_and_asks_nothing_twice(self, tmp_path: Path) -> None:
        task, judge = HeldTask(), HeldTask()
        go = asyncio.Event()

        async def answer(row: Any) -> Any:
            answered = await task(row)
            if row["n"] >= 20:
                await go.wait()
            return answered

        experiment = Experiment("e", rows(60), answer, [Evaluator(judge, name="judge")])
        async with runner_at(tmp_path, max_concurrency=4) as runner:
            number = await runner.start(experiment)
            await task.until(lambda: len(task.calls) == 24)
            await runner.store.claims.stop(number)
            await runner._heartbeat.renew_claims()
            go.set()
            summary = await runner.wait(number)
            assert (summary.status, summary.answered) == (Status.STOPPED, 24)
        async with runner_at(tmp_path) as runner:
            await warmed_up(runner, number)
            summary = await runner.run(experiment)
        assert summary.complete
        assert set(task.calls.values()) == {1}
        assert set(judge.calls.values()) == {1}

    @pytest.mark.parametrize("page", ["tasks", "evals"])
    @in_loop
    async def test_stop_amid_a_page_leaves_its_rows_to_the_next_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
    ) -> None:
        task, judge = HeldTask(), HeldTask(held=page == "evals")
        experiment = Experiment("e", rows(90), task, [Evaluator(judge, name="judge")])
        async with runner_at(tmp_path, PAGE_ITEMS=4, max_concurrency=2) as runner:
            read, amid, go = getattr(runner.store.pending, page), asyncio.Event(), asyncio.Event()

            async def slowly(*given: Any, **named: Any) -> Any:
                found = await read(*given, **named)
                if len(task.calls) > 20 and found:
                    amid.set()
                    await go.wait()
                return found

            monkeypatch.setattr(runner.store.pending, page, slowly)
            number = await runner.start(experiment)
            if page == "evals":
                await task.until(lambda: len(task.calls) == 90)
            judge.go.set()
            await amid.wait()
            assert await runner.stop("e") is Toggle.DONE
            go.set()
            assert (await runner.wait(number)).status is Status.STOPPED
            monkeypatch.undo()
            await warmed_up(runner, number)
            assert (await runner.run(experiment)).complete

    @in_loop
    async def test_a_source_that_answers_its_cancellation_by_an_end_is_not_taken_for_a_whole_dataset(
        self, tmp_path: Path
    ) -> None:
        reading = asyncio.Event()

        async def cut_off() -> Any:
            yield {"n": 0}
            try:
                reading.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        async with runner_at(tmp_path) as runner:
            number = await runner.start(Experiment("e", cut_off, HeldTask()))
            await reading.wait()
            runner.leave(number)
            await runner.wait(number)
            row = await runner.store.experiments.find(number)
            assert row is not None
            assert not row.complete
            summary = await runner.run(Experiment("e", rows(3), HeldTask()))
            assert (summary.complete, summary.answered) == (True, 3)

    @in_loop
    async def test_a_grace_that_is_ended_cancels_what_is_under_way_and_leaves_it_to_be_done(
        self, tmp_path: Path
    ) -> None:
        task, experiment = held()
        async with runner_at(tmp_path, max_concurrency=4, attempts=1) as runner:
            number = await runner.start(experiment)
            await task.until(lambda: task.inside == 1)
            await runner.stop(number)
            runner.hasten()
            summary = await runner.wait(number)
            assert (task.inside, summary.answered, await statuses(runner.store, number)) == (0, 0, {})

    @in_loop
    async def test_a_second_stop_changes_nothing_and_a_resume_too_soon_is_refused(self, tmp_path: Path) -> None:
        task, experiment = held()
        async with runner_at(tmp_path) as runner:
            number = await runner.start(experiment)
            await runner.stop(number)
            assert await runner.stop(number) is Toggle.ALREADY
            task.go.set()
            assert await runner.resume(number) is Toggle.COOLING
            with pytest.raises(CoolingDown):
                await runner.start(experiment)

    @in_loop
    async def test_what_nobody_knows_cannot_be_stopped(self, tmp_path: Path) -> None:
        async with runner_at(tmp_path) as runner:
            with pytest.raises(UnknownExperiment):
                await runner.stop("nothing")


async def warmed_up(runner: Any, number: int) -> None:
    """Ends the cool-down of a stop: it is what the database says."""
    cooled = execution_configs.update().values(cooldown_until=None)
    await runner.store.database.transacted(lambda connection: connection.execute(cooled))


class TestDispatcher:
    @in_loop
    async def test_an_error_inside_is_survived_and_too_many_in_a_row_end_the_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, experiment = held(20)
        async with runner_at(tmp_path, max_concurrency=2, grace=5.0) as runner:
            number = await runner.start(experiment)
            await task.until(lambda: task.inside == 1)
            dispatcher = runner._dispatcher
            step, failures = dispatcher._step, [0]

            def broken() -> bool:
                failures[0] += 1
                raise ZeroDivisionError

            monkeypatch.setattr(dispatcher, "_step", broken)
            for _ in range(3):
                dispatcher._check()
            assert (dispatcher.errors, dispatcher.stopped) == (3, False)
            monkeypatch.setattr(dispatcher, "_step", step)
            dispatcher._check()
            assert dispatcher.errors == 0
            monkeypatch.setattr(dispatcher, "_step", broken)
            for _ in range(50):
                dispatcher._check()
            task.go.set()
            summary = await runner.wait(number)
        assert summary.status is Status.ERROR
        assert "ZeroDivisionError" in (summary.last_error or "")
