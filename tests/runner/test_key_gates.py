"""What is remembered of keys: as much as those need who stand behind them, however many there have been."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import refusal, rows, runner_at
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.engine.queues import FairQueue
from tidegate.pool.key_gates import KeyGates

KEY = tidegate.Key("p", "https://p.test")
DAY = b'{"error": {"code": "rate_limit_exceeded", "message": "on requests per day (RPD): Limit 10"}}'


def remembered(runner: ExperimentRunner) -> tuple[int, int]:
    shared = runner._supervisor._shared
    return len(shared.gates._gates), len(shared.fair_queue._closed)


@in_virtual_time
async def test_experiments_that_have_ended_leave_no_gates_of_their_keys(tmp_path: Path) -> None:
    registry = registry_in_virtual_time()
    refused: set[tuple[tidegate.Key, int]] = set()

    def experiment(number: int) -> Experiment:
        async def answer(row: Any) -> Any:
            key = tidegate.Key("p", f"https://p{number}-{row['n'] % 3}.test")

            async def call() -> int:
                if (key, row["n"]) not in refused:
                    refused.add((key, row["n"]))
                    raise refusal("2")
                return 1

            return await registry.aexecute(key, call)

        return Experiment(f"e{number}", rows(6), answer)

    async with runner_at(tmp_path, registry=registry, max_concurrency=2) as runner:
        for number in range(10):
            assert (await runner.run(experiment(number))).complete
        assert len(refused) == 60
        assert remembered(runner) == (0, 0)


@in_virtual_time
async def test_one_that_is_left_behind_a_closed_key_leaves_none_either(tmp_path: Path) -> None:
    registry = registry_in_virtual_time()

    async def call() -> int:
        raise refusal("1000")

    async def answer(row: Any) -> Any:
        return await registry.aexecute(KEY, call)

    async with runner_at(tmp_path, registry=registry, row_deadline=1.0) as runner:
        number = await runner.start(Experiment("e", rows(5), answer))
        await asyncio.sleep(100.0)
        assert runner._supervisor._shared.gates.closed(KEY) is not None
        runner.leave(number)
        await runner.wait(number)
        assert remembered(runner) == (0, 0)


@in_virtual_time
async def test_a_day_that_is_over_is_remembered_until_its_end_though_nobody_stands_there(tmp_path: Path) -> None:
    key = tidegate.Key("openai", "https://o.test")
    registry = registry_in_virtual_time()

    async def call() -> int:
        raise refusal("5400", DAY)

    async def answer(row: Any) -> Any:
        return await registry.aexecute(key, call)

    async with runner_at(tmp_path, registry=registry) as runner:
        number = await runner.start(Experiment("e", rows(1), answer))
        await asyncio.sleep(10.0)
        runner.leave(number)
        await runner.wait(number)
        assert runner._supervisor._shared.gates.closed(key) is not None
        await asyncio.sleep(5400.0)
        assert remembered(runner) == (0, 0)


@in_virtual_time
async def test_a_gate_stays_as_long_as_one_run_stands_behind_it() -> None:
    loop = asyncio.get_running_loop()
    gates = KeyGates(registry_in_virtual_time(), FairQueue(), loop, lambda: None, lambda: 0.5)
    gates.add_user(KEY)
    gates.add_user(KEY)
    gates.close_for_day(KEY, 10.0)
    await asyncio.sleep(20.0)
    gates.remove_user(KEY)
    assert gates.closed_for(KEY) == 10.0
    gates.remove_user(KEY)
    assert gates.closed_for(KEY) == 0.0
