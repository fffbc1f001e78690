"""Results on their way to the database: in order, in batches, through its absence, never lost for another's sake."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests import constants
from tests.runner.scene import HeldTask, in_loop, rows, runner_at, stored
from tidegate.errors import StoreError
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.engine import background
from tidegate.experiments.engine.results import Result, ResultWriter
from tidegate.experiments.storage import ResultStatus, RunResult, Status, Store


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away is asked again at once."""
    monkeypatch.setattr(background, "FIRST_RETRY_SECONDS", 0.0001)
    monkeypatch.setattr(background, "MAX_RETRY_SECONDS", 0.001)


class Paper:
    """A store that notes its batches; `script` says what becomes of the next ones."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.batches: list[list[int]] = []

    async def write(self, batch: Sequence[Result]) -> frozenset[int]:
        await asyncio.sleep(0)
        answer = self.script.pop(0) if self.script else frozenset()
        if callable(answer):
            answer = answer(batch)
        if isinstance(answer, Exception):
            raise answer
        self.batches.append([result.ordinal for result in batch if isinstance(result, RunResult)])
        return cast("frozenset[int]", answer)


class RecordingReceiver:
    """A receiver that notes what it is told."""

    def __init__(self) -> None:
        self.durables: list[int] = []
        self.refused: list[int] = []
        self.lost = 0
        self._news = asyncio.Event()

    def durable(self, item: Any, result: Any) -> None:
        self.durables.append(result.ordinal)
        self._news.set()

    async def until(self, count: int) -> None:
        while len(self.durables) < count:
            self._news.clear()
            await self._news.wait()

    def unwritable(self, item: Any, result: Any, error: Exception) -> None:
        self.refused.append(result.ordinal)

    def fenced(self, count: int) -> None:
        self.lost += count


def result(ordinal: int, experiment: int = 1) -> RunResult:
    return RunResult(experiment, 1, ordinal, 1, ResultStatus.OK, "1")


def writer_of(paper: Paper, bound: int = 1000, batch: int = 10, seconds: float = 0.0) -> tuple[ResultWriter, list[str]]:
    roomy: list[str] = []
    constants.replace(UNWRITTEN_RESULTS=bound, WRITE_SECONDS=seconds)
    return ResultWriter(cast(Store, paper), batch=batch, on_room=lambda: roomy.append("room")), roomy


async def written(paper: Paper, count: int, **kwargs: Any) -> RecordingReceiver:
    writer, _ = writer_of(paper, **kwargs)
    told = RecordingReceiver()
    for ordinal in range(count):
        writer.put(told, None, result(ordinal))
    writer.close()
    await writer.run()
    return told


@in_loop
async def test_results_are_written_in_their_order_and_told_when_they_are_durable() -> None:
    paper = Paper()
    told = await written(paper, 25)
    assert [ordinal for batch in paper.batches for ordinal in batch] == told.durables == list(range(25))


@in_loop
async def test_a_full_batch_is_not_waited_for() -> None:
    paper = Paper()
    writer, _ = writer_of(paper, seconds=3600.0)
    running = asyncio.create_task(writer.run())
    told = RecordingReceiver()
    for ordinal in range(10):
        writer.put(told, None, result(ordinal))
    await told.until(10)
    writer.put(told, None, result(10))
    await asyncio.sleep(0.01)
    assert len(told.durables) == 10
    writer.flush()
    await told.until(11)
    writer.close()
    await running


@in_loop
async def test_results_under_a_lost_claim_are_counted_and_those_of_others_are_written() -> None:
    writer, _ = writer_of(Paper(frozenset({2})))
    mine, lost = RecordingReceiver(), RecordingReceiver()
    for ordinal in range(3):
        writer.put(mine, None, result(ordinal))
        writer.put(lost, None, result(ordinal, experiment=2))
    writer.close()
    await writer.run()
    assert (mine.durables, mine.lost, lost.durables, lost.lost) == ([0, 1, 2], 0, [], 3)


@in_loop
async def test_it_has_no_room_while_the_database_is_away_and_says_when_it_has() -> None:
    gate = asyncio.Event()

    class Slow(Paper):
        async def write(self, batch: Sequence[Result]) -> frozenset[int]:
            await gate.wait()
            return await super().write(batch)

    writer, roomy = writer_of(Slow(), bound=5)
    running = asyncio.create_task(writer.run())
    told = RecordingReceiver()
    for ordinal in range(5):
        writer.put(told, None, result(ordinal))
    await asyncio.sleep(0)
    assert not writer.room
    gate.set()
    writer.close()
    await running
    assert (roomy, writer.room, len(told.durables)) == (["room"], True, 5)


class TestRuns:
    @in_loop
    async def test_a_run_goes_on_when_its_database_is_back_with_nothing_lost_and_nothing_asked_twice(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, judge = HeldTask(), HeldTask()
        async with runner_at(tmp_path, UNWRITTEN_RESULTS=20, max_concurrency=4) as runner:
            write, tries, most = runner.store.write, [0], [0]

            async def sometimes(batch: Sequence[Result]) -> frozenset[int]:
                tries[0] += 1
                most[0] = max(most[0], len(runner._writer._entries))
                if tries[0] % 5 != 0:
                    raise StoreError("server closed the connection unexpectedly", retryable=True)
                return await write(batch)

            monkeypatch.setattr(runner.store, "write", sometimes)
            summary = await runner.run(Experiment("e", rows(200), task, [Evaluator(judge, name="judge")]))
            runs = await stored(runner.store, summary.experiment.id)
        assert summary.complete
        assert set(task.calls.values()) == set(judge.calls.values()) == {1}
        assert len(runs) == 200
        assert most[0] <= 20 + 2 * 4

    @in_loop
    async def test_rows_that_are_invalid_are_read_no_faster_than_they_can_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text("not JSON\n" * 600)
        async with runner_at(tmp_path, UNWRITTEN_RESULTS=20, PAGE_ITEMS=20, batch=5) as runner:
            write, most = runner.store.write, [0]

            async def slow(batch: Sequence[Result]) -> frozenset[int]:
                await asyncio.sleep(0.005)
                most[0] = max(most[0], runner._writer.waiting)
                return await write(batch)

            monkeypatch.setattr(runner.store, "write", slow)
            summary = await runner.run(Experiment("e", path, HeldTask()))
        assert summary.counts.runs == {ResultStatus.INVALID: 600}
        assert most[0] <= 20 + 20

    @in_loop
    async def test_a_result_that_cannot_be_stored_fails_its_row_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with runner_at(tmp_path) as runner:
            write = runner.store.write

            async def picky(batch: Sequence[Result]) -> frozenset[int]:
                if any(isinstance(each, RunResult) and each.output == "7" for each in batch):
                    raise StoreError("out of range", retryable=False)
                return await write(batch)

            monkeypatch.setattr(runner.store, "write", picky)
            summary = await runner.run(Experiment("e", rows(20), HeldTask()))
            runs = await stored(runner.store, summary.experiment.id)
        assert summary.status is Status.COMPLETED
        assert [(run.ordinal, run.error_kind) for run in runs if run.status is ResultStatus.ERROR] == [
            (7, "not_storable")
        ]

    @in_loop
    async def test_a_store_that_refuses_everything_ends_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with runner_at(tmp_path) as runner:

            async def never(batch: Sequence[Result]) -> frozenset[int]:
                raise StoreError("read-only database", retryable=False)

            monkeypatch.setattr(runner.store, "write", never)
            summary = await runner.run(Experiment("e", rows(20), HeldTask()))
        assert summary.status is Status.ERROR
        assert "read-only database" in (summary.last_error or "")
