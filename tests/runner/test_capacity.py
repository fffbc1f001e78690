"""Capacity: what is refused spends no attempt, holds no slot, and holds up nobody behind another key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import HeldTask, Refused, in_loop, ran, rows, runner_at, statuses, stored
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.storage import ResultStatus, Status

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)

OK, PARKED = ResultStatus.OK, ResultStatus.PARKED
KEY = tidegate.Key("p", "https://p.test")
OTHER = tidegate.Key("q", "https://q.test")


def registry_of(**changes: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(**changes))


def governed(
    registry: RateLimitRegistry, key: tidegate.Key, call: Callable[[Any], Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """A function whose call is governed at `key`."""

    async def ask(row: Any, output: Any = None) -> Any:
        return await registry.aexecute(key, lambda: call(row))

    return ask


class TestWithoutAKey:
    @in_loop
    async def test_a_refusal_spends_no_attempt_and_is_waited_for_without_a_slot(self, tmp_path: Path) -> None:
        refusals = [0]

        async def answer(row: Any) -> Any:
            if refusals[0] < 10:
                refusals[0] += 1
                raise Refused(429, 0.01)
            return row["n"]

        summary, runs = await ran(tmp_path, Experiment("e", rows(20), answer))
        assert summary.complete
        assert {run.attempts for run in runs} == {1}

    @in_loop
    async def test_a_row_that_finds_no_capacity_until_its_deadline_is_parked_and_taken_up_by_a_resume(
        self, tmp_path: Path
    ) -> None:
        broken = [True]

        async def answer(row: Any) -> Any:
            if broken[0]:
                raise Refused(429)
            return "fine"

        async with runner_at(tmp_path, row_deadline=0.001, max_concurrency=1) as runner:
            experiment = Experiment("e", rows(1), answer)
            summary = await runner.run(experiment)
            (run,) = await stored(runner.store, summary.experiment.id)
            assert (run.status, run.error_kind, run.attempts) == (PARKED, "capacity", 0)
            assert (summary.status, summary.complete) == (Status.COMPLETED, False)
            broken[0] = False
            assert (await runner.run(experiment)).complete


class TestKeys:
    @in_loop
    async def test_only_one_call_goes_ahead_until_its_key_is_known(self, tmp_path: Path) -> None:
        registry, task = registry_of(), HeldTask(held=True)
        inside: list[int] = []

        async def answer(row: Any) -> Any:
            inside.append(row["n"])
            await task.go.wait()
            return await registry.aexecute(KEY, lambda: task(row))

        async with runner_at(tmp_path, registry=registry) as runner:
            running = asyncio.create_task(runner.run(Experiment("e", rows(40), answer)))
            other = HeldTask()
            assert (await runner.run(Experiment("other", rows(200), other))).complete
            assert inside == [0]
            task.go.set()
            assert (await running).complete
        assert set(task.calls.values()) == {1}

    @in_loop
    async def test_a_throttled_key_holds_no_slot_that_another_could_have(self, tmp_path: Path) -> None:
        registry, free = registry_of(), HeldTask()
        refused = asyncio.Event()

        async def at_the_limit(row: Any) -> Any:
            if len(free.calls) < 300:
                refused.set()
                raise Refused(429, 0.02)
            return "at last"

        async with runner_at(tmp_path, registry=registry, max_concurrency=4) as runner:
            throttled = asyncio.create_task(
                runner.run(Experiment("slow", rows(10), governed(registry, KEY, at_the_limit)))
            )
            await refused.wait()
            assert (await runner.run(Experiment("free", rows(300), governed(registry, OTHER, free)))).complete
            summary = await throttled
            runs = await stored(runner.store, summary.experiment.id)
        assert summary.complete
        assert {run.attempts for run in runs} == {1}

    @in_loop
    async def test_a_throttled_judge_does_not_slow_its_tasks_and_is_caught_up_with_from_the_database(
        self, tmp_path: Path
    ) -> None:
        registry, task, judge = registry_of(), HeldTask(), HeldTask()

        async def judging(row: Any) -> Any:
            if len(task.calls) < 150:
                raise Refused(429, 0.005)
            return await judge(row)

        evaluators = [Evaluator(governed(registry, KEY, judging), name="judge")]
        async with runner_at(tmp_path, registry=registry, PAGE_ITEMS=20) as runner:
            experiment = Experiment("e", rows(150), governed(registry, OTHER, task), evaluators)
            summary = await runner.run(experiment)
            runs = await stored(runner.store, summary.experiment.id)
        assert summary.complete
        assert set(task.calls.values()) == set(judge.calls.values()) == {1}
        assert len(judge.calls) == 150
        assert [run.annotations[0][1].score for run in runs] == list(range(150))

    @pytest.mark.parametrize("limit", [1, 2])
    @in_loop
    async def test_experiments_on_one_key_get_equal_shares(self, tmp_path: Path, limit: int) -> None:
        registry = registry_of(max_concurrency=limit)
        order: list[str] = []
        there: set[str] = set()
        both_are_there = asyncio.Event()

        def task(name: str) -> Any:
            async def call() -> Any:
                order.append(name)
                await both_are_there.wait()
                return name

            async def answer(row: Any) -> Any:
                there.add(name)
                if len(there) == 2:
                    both_are_there.set()
                return await registry.aexecute(KEY, call)

            return answer

        async with runner_at(tmp_path, registry=registry) as runner:
            await asyncio.gather(*(runner.run(Experiment(name, rows(100), task(name))) for name in ("a", "b")))
        both = order[10:130]
        assert abs(both.count("a") - both.count("b")) <= 6

    @in_loop
    async def test_no_permit_is_left_behind(self, tmp_path: Path) -> None:
        registry = registry_of()
        task = HeldTask()

        async def sometimes(row: Any) -> Any:
            return await registry.aexecute(KEY, lambda: task(row)) if row["n"] % 3 == 0 else "cached"

        async with runner_at(tmp_path, registry=registry) as runner:
            assert (await runner.run(Experiment("e", rows(90), sometimes))).complete
        assert registry.snapshot().keys[KEY].in_flight == 0

    @in_virtual_time
    async def test_what_waits_inside_its_call_is_not_timed_out_for_that(self, tmp_path: Path) -> None:
        registry = registry_in_virtual_time(max_concurrency=1)
        permit = registry.try_admit(KEY)
        assert permit
        waiting = asyncio.Event()

        async def answer(row: Any) -> Any:
            waiting.set()
            return await registry.aexecute(KEY, lambda: asyncio.sleep(0, "fine"))

        async with runner_at(tmp_path, registry=registry, task_timeout=0.05, attempts=1) as runner:
            running = asyncio.create_task(runner.run(Experiment("e", rows(1), answer)))
            await waiting.wait()
            await asyncio.sleep(0.12)
            registry.settle(permit, tidegate.core.values.Outcome(tidegate.core.values.OK))
            summary = await running
            assert await statuses(runner.store, summary.experiment.id) == {OK: 1}


class TestOutage:
    @pytest.mark.constants(
        FIRST_PAUSE_SECONDS=0.001, FIRST_COOLDOWN_SECONDS=0.01, MAX_COOLDOWN_SECONDS=0.02, TRANSIENT_ATTEMPTS=1
    )
    @in_loop
    async def test_an_outage_closes_one_key_and_all_resumes_by_itself(self, tmp_path: Path) -> None:
        registry = registry_of()
        down, fine, failed = [True], HeldTask(), []

        async def broken(row: Any) -> Any:
            if down[0]:
                failed.append(row["n"])
                if len(failed) > 40:
                    down[0] = False
                raise ConnectionRefusedError("down")
            return "up"

        async with runner_at(tmp_path, registry=registry, max_concurrency=6, attempts=9) as runner:
            dead = asyncio.create_task(runner.run(Experiment("dead", rows(30), governed(registry, KEY, broken))))
            assert (await runner.run(Experiment("fine", rows(100), governed(registry, OTHER, fine)))).complete
            summary = await dead
            runs = await stored(runner.store, summary.experiment.id)
        assert summary.complete
        assert max(run.attempts for run in runs) < 9
