"""An experiment from its start to its end, on a real database: what runs, what is kept, what it comes to."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import HeldTask, in_loop, ran, rows, runner_at, settings, statuses, stored
from tidegate.errors import CannotRead
from tidegate.experiments import Evaluator, Experiment, RunnerSettings, emit
from tidegate.experiments.storage import ResultStatus, Status

OK, ERROR = ResultStatus.OK, ResultStatus.ERROR


@in_loop
async def test_every_row_and_repetition_is_answered_once_and_every_answer_judged(tmp_path: Path) -> None:
    task, judge = HeldTask(), HeldTask()
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(Experiment("e", rows(300), task, [Evaluator(judge, name="judge")], repetitions=2))
        assert (summary.status, summary.answered, summary.unanswered, summary.complete) == (
            Status.COMPLETED,
            600,
            0,
            True,
        )
        runs = await stored(runner.store, summary.experiment.id)
    assert [(run.ordinal, run.repetition, run.output) for run in runs] == [
        (ordinal, repetition, ordinal) for ordinal in range(300) for repetition in (1, 2)
    ]
    assert all(run.attempts == 1 and [each.score for _, each in run.annotations] == [run.output] for run in runs)
    assert set(task.calls.values()) == set(judge.calls.values()) == {2}


@in_loop
async def test_an_experiment_runs_by_one_call(tmp_path: Path) -> None:
    summary = await Experiment("e", rows(3), HeldTask()).arun(str(tmp_path / "one.db"))
    assert summary.complete


@in_loop
async def test_as_many_are_under_way_as_are_allowed_and_not_one_more(tmp_path: Path) -> None:
    wide, narrow = HeldTask(held=True), HeldTask(held=True)
    ahead = [wide.first_apart(), narrow.first_apart()]
    async with runner_at(tmp_path, max_concurrency=7) as runner:
        first = await runner.start(Experiment("narrow", rows(40), narrow, max_concurrency=2))
        second = await runner.start(Experiment("wide", rows(200), wide))
        # One call of each goes ahead until it is known that they ask no key; the others follow when it has ended.
        await narrow.until(lambda: narrow.inside == 1)
        await wide.until(lambda: wide.inside == 1)
        for each in ahead:
            each.set()
        await narrow.until(lambda: narrow.inside == 2)
        await wide.until(lambda: wide.inside == 5)
        for _ in range(50):
            await asyncio.sleep(0)
        assert (wide.most, narrow.most) == (5, 2)
        wide.go.set()
        narrow.go.set()
        await runner.wait(first)
        await runner.wait(second)


class TestFunctions:
    @in_loop
    async def test_a_synchronous_function_runs_in_a_thread_with_the_context(self, tmp_path: Path) -> None:
        tenant = contextvars.ContextVar("tenant", default="")
        tenant.set("mine")
        seen: set[tuple[str, bool]] = set()

        def answer(row: Any) -> int:
            seen.add((tenant.get(), threading.current_thread() is threading.main_thread()))
            return int(row["n"])

        summary, _ = await ran(tmp_path, Experiment("e", rows(30), answer))
        assert (summary.complete, seen) == (True, {("mine", False)})

    @in_loop
    async def test_what_an_asynchronous_generator_yields_is_the_answer(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            for word in ("four", " ", "words"):
                yield word

        async with runner_at(tmp_path) as runner:
            summary = await runner.run(Experiment("e", rows(1), answer))
            assert [run.output for run in await stored(runner.store, summary.experiment.id)] == ["four words"]

    @in_loop
    async def test_what_a_function_does_to_its_row_is_nobody_elses_affair(self, tmp_path: Path) -> None:
        seen: list[Any] = []

        async def answer(row: Any) -> Any:
            row["inner"].pop()
            seen.append(row.pop("n"))
            if len(seen) == 1:
                raise ConnectionError
            return {"list": [1]}

        async def first(row: Any, output: Any) -> float:
            output["list"].clear()
            return float(len(row["inner"]))

        async def second(row: Any, output: Any) -> float:
            return float(len(output["list"]) + len(row["inner"]) + row["n"])

        summary, _ = await ran(tmp_path, Experiment("e", [{"n": 5, "inner": [1, 2]}], answer, [first, second]))
        assert seen == [5, 5]
        assert [(score.evaluator, score.mean) for score in summary.scores] == [("first", 2.0), ("second", 8.0)]

    @in_loop
    async def test_emit_outside_a_task_does_nothing(self) -> None:
        emit("into the void")


class TestRows:
    @in_loop
    async def test_a_malformed_row_is_recorded_with_its_line_and_reason_and_the_run_goes_on(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text('{"n": 0}\n{"n": \n{"n": 2}\n')
        task = HeldTask()
        summary, runs = await ran(tmp_path, Experiment("e", path, task, repetitions=2))
        assert (summary.status, summary.complete, summary.unanswered) == (Status.COMPLETED, False, 2)
        bad = [run for run in runs if run.status is ResultStatus.INVALID]
        assert [(run.ordinal, run.repetition, run.attempts) for run in bad] == [(1, 1, 0), (1, 2, 0)]
        assert bad[0].error is not None
        assert bad[0].error.startswith("line 2: not JSON")
        assert sorted(task.calls) == [0, 2]

    @in_loop
    async def test_an_empty_dataset_is_done_at_once(self, tmp_path: Path) -> None:
        summary, _ = await ran(tmp_path, Experiment("e", [], HeldTask()))
        assert (summary.status, summary.complete) == (Status.COMPLETED, True)

    @in_loop
    async def test_two_rows_of_one_name_are_one_clear_error_and_nothing_is_lost(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text('{"id": "a", "n": 0}\n{"id": "b", "n": 1}\n{"id": "a", "n": 2}\n')
        summary, _ = await ran(tmp_path, Experiment("e", path, HeldTask()))
        assert summary.status is Status.ERROR
        assert summary.last_error is not None
        assert "'a'" in summary.last_error
        assert "3" in summary.last_error

    @in_loop
    async def test_a_missing_file_is_an_error_before_anything_is_claimed(self, tmp_path: Path) -> None:
        async with runner_at(tmp_path) as runner:
            with pytest.raises(CannotRead, match="no such file"):
                await runner.start(Experiment("e", tmp_path / "rows.jsonl", HeldTask()))
            assert await runner.store.experiments.every() == []

    @in_loop
    async def test_a_source_that_breaks_ends_the_run_and_what_was_read_stays(self, tmp_path: Path) -> None:
        def source() -> Any:
            yield {"n": 0}
            raise OSError("the disk is gone")

        async def awaited() -> Any:
            yield {"n": 0}
            raise OSError("the disk is gone")

        async with runner_at(tmp_path) as runner:
            for name, dataset in (("e", source), ("awaited", awaited)):
                summary = await runner.run(Experiment(name, dataset, HeldTask()))
                assert summary.status is Status.ERROR
                assert "the disk is gone" in (summary.last_error or "")
                assert summary.counts.rows == 1

    @in_loop
    async def test_the_first_answers_come_while_the_dataset_is_still_being_read(self, tmp_path: Path) -> None:
        task = HeldTask()

        async def source() -> Any:
            for number in range(1000):
                yield {"n": number}
            await task.until(lambda: len(task.calls) == 1000)
            yield {"n": 1000}

        summary, _ = await ran(tmp_path, Experiment("e", source, task))
        assert (summary.answered, summary.complete) == (1001, True)

    @pytest.mark.parametrize("rows_at_once", [1, 3])
    @pytest.mark.parametrize("blocks", [False, True])
    @in_loop
    async def test_the_rows_of_a_slow_source_are_answered_as_they_come(
        self, tmp_path: Path, blocks: bool, rows_at_once: int
    ) -> None:
        task, answered = HeldTask(), threading.Event()

        async def awaited() -> Any:
            for number in range(rows_at_once):
                yield {"n": number}
            await task.until(lambda: len(task.calls) == rows_at_once)
            yield {"n": rows_at_once}

        def blocking() -> Any:
            for number in range(rows_at_once):
                yield {"n": number}
            assert answered.wait(300)
            yield {"n": rows_at_once}

        async with runner_at(tmp_path) as runner:
            number = await runner.start(Experiment("e", blocking if blocks else awaited, task))
            await task.until(lambda: len(task.calls) == rows_at_once)
            answered.set()
            assert (await runner.wait(number)).answered == rows_at_once + 1


class TestTime:
    @in_loop
    async def test_a_call_that_hangs_is_cancelled_at_its_timeout_and_tried_again(self, tmp_path: Path) -> None:
        ended: list[str] = []

        async def answer(row: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        _, (run,) = await ran(tmp_path, Experiment("e", rows(1), answer), task_timeout=0.01)
        assert (run.status, run.error_kind, run.attempts) == (ERROR, "timeout", 3)
        assert run.error == "no answer within 0.01 s"
        assert ended == ["cancelled"] * 3

    @in_loop
    async def test_a_thread_that_hangs_gives_up_its_slot_and_its_late_answer_is_dropped(self, tmp_path: Path) -> None:
        release, late = threading.Event(), []

        def answer(row: Any) -> Any:
            if row["n"] == 0:
                release.wait(TOO_LATE)
                late.append("answered")
                return "late"
            return "in time"

        # The attempts are for the others, of which a slow machine may also answer one too late.
        async with runner_at(tmp_path, max_concurrency=1, attempts=5, task_timeout=0.2) as runner:
            summary = await runner.run(Experiment("e", rows(5), answer))
            release.set()
            runs = await stored(runner.store, summary.experiment.id)
        assert [run.status for run in runs] == [ERROR, OK, OK, OK, OK]

    @in_virtual_time
    async def test_a_function_that_ignores_its_cancellation_is_left_behind(self, tmp_path: Path) -> None:
        stubborn = asyncio.Event()

        async def answer(row: Any) -> Any:
            if row["n"] > 0:
                return "fine"
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue
            return "never mind"

        given = settings(max_concurrency=1, attempts=1, task_timeout=0.02)
        async with runner_at(tmp_path, **given.model_dump()) as runner:
            summary = await runner.run(Experiment("e", rows(3), answer))
            assert await statuses(runner.store, summary.experiment.id) == {OK: 2, ERROR: 1}
            stubborn.set()
            await asyncio.sleep(0)

    @in_loop
    async def test_a_cancellation_that_nobody_asked_for_is_tried_again(self, tmp_path: Path) -> None:
        calls: list[int] = []

        async def answer(row: Any) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise asyncio.CancelledError
            return "fine"

        summary, _ = await ran(tmp_path, Experiment("e", rows(1), answer))
        assert (summary.complete, len(calls)) == (True, 2)

    @in_loop
    async def test_a_function_that_exits_the_process_only_fails_its_row(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            raise SystemExit(3)

        _, (run,) = await ran(tmp_path, Experiment("e", rows(1), answer))
        assert (run.error_kind, str(run.error).partition(" (")[0]) == ("SystemExit", "SystemExit: 3")


TOO_LATE = RunnerSettings().task_timeout


@in_loop
async def test_experiments_share_the_slots_by_their_weights(tmp_path: Path) -> None:
    served: list[str] = []

    def task_of(name: str) -> Any:
        async def task(row: Any) -> str:
            served.append(name)
            await asyncio.sleep(0)
            return name

        return task

    held, gone = asyncio.Event(), asyncio.Event()

    async def first(row: Any) -> None:
        held.set()
        await gone.wait()

    async with runner_at(tmp_path, max_concurrency=1) as runner:
        # One function holds the only slot until both others wait for it.
        await runner.start(Experiment("first", rows(1), first))
        # `start` returns before the rows are loaded. Without this, another experiment could take the slot first.
        await held.wait()
        numbers = [
            await runner.start(Experiment(name, rows(80), task_of(name), weight=weight))
            for name, weight in (("light", 0.5), ("heavy", 1.5))
        ]

        def ready() -> bool:
            seen = [runner.progress(number) for number in numbers]
            return all(each is not None and each.stages[0].ready == 80 for each in seen)

        for _ in iter(ready, True):
            await asyncio.sleep(0.001)
        gone.set()
        for number in numbers:
            await runner.wait(number)
    assert served[:80].count("heavy") == 60
