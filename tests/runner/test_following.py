"""Without a `max_concurrency`, as many functions run as the keys admit; with one, it is said where it binds."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import HeldTask, in_loop, rows, runner_at
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment, ExperimentRunner
from tidegate.pool import function_limit
from tidegate.pool.function_limit import LEAST_FUNCTIONS

pytestmark = pytest.mark.constants(START_CONCURRENCY=1000)

KEY = tidegate.Key("p", "https://p.test")
OTHER = tidegate.Key("q", "https://q.test")


def open_registry(slots: int) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_concurrency=slots))


def asking(registry: RateLimitRegistry, key: tidegate.Key, task: HeldTask) -> Any:
    async def ask(row: Any, output: Any = None) -> Any:
        return await registry.aexecute(key, lambda: task(row))

    return ask


def limit_of(runner: ExperimentRunner) -> function_limit.FunctionLimit:
    return runner._supervisor._shared.functions


@in_loop
async def test_as_many_functions_run_as_the_key_admits(tmp_path: Path) -> None:
    registry, task = open_registry(300), HeldTask(held=True)
    async with runner_at(tmp_path, registry=registry) as runner:
        running = asyncio.create_task(runner.run(Experiment("e", rows(400), asking(registry, KEY, task))))
        await task.until(lambda: task.inside == 300)
        for _ in range(20):
            await asyncio.sleep(0)
        assert limit_of(runner).in_flight == 300
        task.go.set()
        assert (await running).complete
    assert task.most == 300


@in_loop
async def test_functions_in_threads_run_as_the_key_admits_and_their_threads_end_when_idle(tmp_path: Path) -> None:
    registry, go, inside = open_registry(100), threading.Event(), threading.Semaphore(0)

    def call() -> int:
        inside.release()
        go.wait()
        return 1

    async with runner_at(tmp_path, registry=registry) as runner:
        task = lambda row: registry.execute(KEY, call)  # noqa: E731
        running = asyncio.create_task(runner.run(Experiment("e", rows(150), task)))
        await asyncio.to_thread(lambda: [inside.acquire() for _ in range(100)])
        go.set()
        assert (await running).complete


@in_loop
async def test_functions_that_call_nothing_begin_with_the_old_twenty_and_it_is_said_what_holds_them(
    tmp_path: Path,
) -> None:
    task = HeldTask(held=True)

    async def answer(row: Any) -> Any:
        return await task(row) if row["n"] else 0

    async with runner_at(tmp_path) as runner:
        running = asyncio.create_task(runner.run(Experiment("e", rows(100), answer)))
        await task.until(lambda: task.inside == LEAST_FUNCTIONS)
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.inside == LEAST_FUNCTIONS
        seen = runner.progress("e")
        assert seen is not None
        assert seen.stages[0].wait is not None
        assert seen.stages[0].wait.reason == "own work"
        task.go.set()
        assert (await running).complete


@in_loop
async def test_functions_that_wait_in_the_queue_of_another_key_are_no_more_than_those_that_do_not(
    tmp_path: Path,
) -> None:
    """Each has paid for its first call: all of that would be lost with the process."""
    registry = open_registry(1)
    wide = open_registry(500)
    second = HeldTask(held=True)
    paid: list[int] = []

    async def answer(row: Any) -> Any:
        await wide.aexecute(OTHER, lambda: asyncio.sleep(0))
        paid.append(row["n"])
        return await registry.aexecute(KEY, lambda: second(row))

    async with runner_at(tmp_path, registry=wide) as runner:
        running = asyncio.create_task(runner.run(Experiment("e", rows(400), answer)))
        await second.until(lambda: second.inside == 1)
        for _ in range(400):
            await asyncio.sleep(0)
        assert len(paid) <= 5 * LEAST_FUNCTIONS
        second.go.set()
        assert (await running).complete


@in_loop
async def test_rows_under_way_are_bounded_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_limit, "FIRST_CHARACTERS", 10_000)
    monkeypatch.setattr(function_limit, "MIN_CHARACTERS", 10_000)
    monkeypatch.setattr(function_limit, "BYTES_PER_CHARACTER", 2**60)
    registry, task = open_registry(300), HeldTask(held=True)
    large = [{"n": number, "text": "x" * 400} for number in range(100)]
    async with runner_at(tmp_path, registry=registry) as runner:
        ask = asking(registry, KEY, task)
        running = asyncio.create_task(runner.run(Experiment("e", large, ask, [Evaluator(ask, name="judge")])))
        await task.until(lambda: task.inside >= LEAST_FUNCTIONS)
        for _ in range(50):
            await asyncio.sleep(0)
        assert LEAST_FUNCTIONS <= task.inside <= 25
        seen = runner.progress("e")
        assert seen is not None
        assert seen.stages[0].wait is not None
        assert seen.stages[0].wait.reason == "memory"
        task.go.set()
        assert (await running).complete


@in_loop
async def test_it_is_logged_once_that_max_concurrency_holds_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    async with runner_at(tmp_path) as runner:
        summary = await runner.run(Experiment("narrow", rows(40), HeldTask(), max_concurrency=2))
        await runner.run(Experiment("wide", rows(40), HeldTask()))
        log = await runner.store.reports.last_logs(summary.experiment.id, 100)
    told = [record.getMessage() for record in caplog.records if "held back" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("experiment narrow held back: max_concurrency=2 functions are in flight")
    assert [line.detail["functions"] for line in log if line.detail["type"] == "held_back"] == [2]


@in_loop
async def test_a_max_concurrency_that_does_not_bind_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    async with runner_at(tmp_path, max_concurrency=50) as runner:
        assert (await runner.run(Experiment("e", rows(40), HeldTask()))).complete
    assert not [record for record in caplog.records if "held back" in record.getMessage()]
