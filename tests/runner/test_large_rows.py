"""Rows and answers of megabytes: what is held of them is bounded by bytes, whatever the counts allow."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.runner.scene import HeldTask, in_loop, runner_at
from tidegate.experiments import Experiment
from tidegate.experiments.engine import dataset, queues, results
from tidegate.experiments.engine.queues import Item, Place, WorkQueue
from tidegate.experiments.engine.results import ResultWriter
from tidegate.experiments.storage import ResultStatus, RunResult, pending

TEXT = "x" * 400


def large(count: int) -> list[dict[str, Any]]:
    return [{"n": number, "text": TEXT} for number in range(count)]


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of a thousand characters, so that rows of four hundred are large."""
    monkeypatch.setattr(dataset, "BATCH_BYTES", 1000)
    monkeypatch.setattr(pending, "PAGE_BYTES", 1000)
    monkeypatch.setattr(queues, "MAX_QUEUE_BYTES", 1000)
    monkeypatch.setattr(results, "BATCH_BYTES", 1000)
    monkeypatch.setattr(results, "UNWRITTEN_BYTES", 2000)


@pytest.mark.usefixtures("small_budgets")
@in_loop
async def test_run_of_large_rows_and_answers_holds_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is answered and judged, as without a bound."""
    queued, batches = [0], [0]
    add, write = WorkQueue.add, None

    def noted(self: WorkQueue, items: Any) -> None:
        add(self, items)
        queued[0] = max(queued[0], *(queue.size for queue in self._queues))

    monkeypatch.setattr(WorkQueue, "add", noted)
    task = HeldTask()

    async def answer(row: Any) -> str:
        await task(row)
        return TEXT

    judge = HeldTask()
    async with runner_at(tmp_path, max_concurrency=4) as runner:
        write = runner.store.write

        async def counted(batch: Any) -> frozenset[int]:
            sizes = [len(each.output or "") for each in batch if isinstance(each, RunResult)]
            batches[0] = max(batches[0], sum(sizes))
            return await write(batch)

        monkeypatch.setattr(runner.store, "write", counted)
        summary = await runner.run(Experiment("e", large(60), answer, [judge]))
        assert summary.complete
        assert summary.answered == 60
    assert set(task.calls.values()) == set(judge.calls.values()) == {1}
    # One item more than fits, as the first of a page always comes.
    assert queued[0] <= 1000 + 2 * 900
    assert batches[0] <= 1000


async def rows_of(source: Any) -> list[int]:
    return [len(batch) async for batch in dataset.batches(source, 1000)]


@pytest.mark.usefixtures("small_budgets")
@in_loop
async def test_batch_of_a_dataset_ends_at_its_bytes(tmp_path: Path) -> None:
    async def awaited() -> Any:
        for row in large(7):
            yield row

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"t": "{TEXT}"}}\n' for _ in range(7)))
    for source in (large(7), awaited, str(path)):
        sizes = await rows_of(source)
        assert sum(sizes) == 7
        assert max(sizes) <= 3


def test_weight_of_a_cycle_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "BATCH_BYTES", 1000)
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    assert dataset.weight(cycle) >= 1000
    assert dataset.weight({"a": ["b" * 10, 1, None]}) == 8 + 24 + 10


def test_queue_with_large_items_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_QUEUE_BYTES", 1000)
    monkeypatch.setattr(queues, "PAGE_ITEMS", 100)
    queue = WorkQueue(1)
    items = [Item(0, Place(n, 1), None, size=600) for n in range(2)]
    queue.add(items[:1])
    assert (queue.room(0), queue.runs_low(0)) == (99, False)
    queue.add(items[1:])
    assert queue.room(0) == 0
    assert queue.take(None) is items[0]
    queue.remove([items[1]])
    assert (queue.room(0), queue.runs_low(0)) == (100, True)
    queue.add(items)
    queue.clear()
    assert (queue.room(0), queue.runs_low(0)) == (100, True)


def test_large_items_that_wait_for_a_retry_leave_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold their rows for as long as their back-off lasts."""
    monkeypatch.setattr(queues, "MAX_QUEUE_BYTES", 1000)
    monkeypatch.setattr(queues, "PAGE_ITEMS", 100)
    queue = WorkQueue(1)
    items = [Item(0, Place(n, 1), None, size=600) for n in range(2)]
    for item in items:
        item.attempts = 1
        queue.delay(item, Mock())
    assert (queue.room(0), queue.runs_low(0)) == (0, False)
    for item in items:
        queue.retry(item)
    assert (queue.room(0), queue.runs_low(0)) == (0, False)
    assert queue.take(None) is items[0]
    assert (queue.room(0), queue.runs_low(0)) == (100, False)
    queue.delay(items[0], Mock())
    queue.remove([items[1]])
    assert (queue.room(0), queue.runs_low(0)) == (100, False)
    queue.remove([items[0]])
    assert (queue.room(0), queue.runs_low(0)) == (100, True)
    queue.delay(items[0], Mock())
    queue.clear()
    assert (queue.room(0), queue.runs_low(0)) == (100, True)


class Text(str):
    """A text that tells how many of it are alive."""

    alive = 0

    def __new__(cls, text: str) -> Text:
        cls.alive += 1
        return super().__new__(cls, text)

    def __del__(self) -> None:
        type(self).alive -= 1


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "errors"])
@in_loop
async def test_answer_that_is_durable_is_held_by_nothing(tmp_path: Path, fails: bool) -> None:
    """Also without the collector, which may not come in hours: what it would find is megabytes an item."""

    async def task(row: Any) -> Any:
        text = Text(TEXT)
        if fails:
            raise ValueError(f"row {row['n']} is wrong", text)
        return [text]

    gc.disable()
    try:
        async with runner_at(tmp_path, max_concurrency=2, GUARD_FAILURES=1000) as runner:
            summary = await runner.run(Experiment("e", large(40), task))
            assert summary.counts.runs == {ResultStatus.ERROR if fails else ResultStatus.OK: 40}
            assert Text.alive <= 2
    finally:
        gc.enable()


@in_loop
async def test_item_whose_result_waits_for_the_database_holds_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand results may wait: each would keep its row and its answer in memory."""
    held: list[object] = []
    put = ResultWriter.put

    def noted(self: ResultWriter, receiver: Any, item: Any, result: Any) -> None:
        if item is not None:
            held.extend((item.body, item.output))
        put(self, receiver, item, result)

    monkeypatch.setattr(ResultWriter, "put", noted)
    async with runner_at(tmp_path) as runner:
        assert (await runner.run(Experiment("e", large(5), HeldTask(), [HeldTask()]))).complete
    assert held == [None] * 20


class Receiver:
    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.mark.usefixtures("small_budgets")
@in_loop
async def test_writer_with_large_results_has_no_room_until_they_are_written() -> None:
    batches: list[int] = []

    class Store:
        async def write(self, batch: Any) -> frozenset[int]:
            batches.append(len(batch))
            return frozenset()

    result = RunResult(1, 1, 0, 1, ResultStatus.OK, output=TEXT)
    made = ResultWriter(Store(), batch=100, on_room=lambda: None)  # type: ignore[arg-type]
    for count in range(1, 8):
        made.put(Receiver(), None, result)
        assert made.room is (400 * count < 2000)
    writing = asyncio.create_task(made.run())
    made.close()
    await writing
    assert made.room
    assert batches == [2, 2, 2, 1]
