"""Who waits for capacity: in whose slot, for how long, and what that costs the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import HeldTask, Refused, in_loop, rows, runner_at, statuses
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.experiments import Experiment
from tidegate.experiments.engine.job import Job
from tidegate.experiments.engine.queues import FairQueue
from tidegate.experiments.storage import ResultStatus
from tidegate.pool.key_gates import KeyGates

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)

OK, PARKED = ResultStatus.OK, ResultStatus.PARKED
KEY = tidegate.Key("p", "https://p.test")
SHUT = tidegate.Key("shut", "https://shut.test")


def registry_of(**changes: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(**changes))


def held_up(registry: RateLimitRegistry, seconds: float) -> None:
    """The provider behind `SHUT` says that nobody is to come for so long."""
    permit = registry.try_admit(SHUT)
    assert isinstance(permit, Permit)
    registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, seconds))


def taken(registry: RateLimitRegistry) -> Permit:
    """The only slot of `SHUT`: calls wait behind it until it is settled, however long a test takes."""
    permit = registry.try_admit(SHUT)
    assert isinstance(permit, Permit)
    return permit


ONE_SLOT = {"max_concurrency": 1}


async def nothing() -> int:
    return 1


class TestInside:
    @in_loop
    async def test_functions_that_wait_inside_their_first_call_leave_their_slots_to_others(
        self, tmp_path: Path
    ) -> None:
        registry, free = registry_of(), HeldTask()
        held_up(registry, 1000.0)

        async def answer(row: Any) -> Any:
            return await registry.aexecute(SHUT, nothing)

        async with runner_at(tmp_path, registry=registry, max_concurrency=2) as runner:
            for name in ("a", "b", "c"):
                await runner.start(Experiment(name, rows(5), answer))
            assert (await runner.run(Experiment("free", rows(50), free))).complete
            assert free.most <= 2
            await runner.shutdown(0.0)

    @in_loop
    async def test_so_do_those_that_wait_inside_a_later_call_and_their_experiment_has_no_more_than_its_share(
        self, tmp_path: Path
    ) -> None:
        registry, free = registry_of(**ONE_SLOT), HeldTask()
        permit, inside = taken(registry), [0]

        async def answer(row: Any) -> Any:
            await registry.aexecute(KEY, nothing)
            inside[0] += 1
            return await registry.aexecute(SHUT, nothing)

        async with runner_at(tmp_path, registry=registry, max_concurrency=3) as runner:
            going = asyncio.create_task(runner.run(Experiment("e", rows(30), answer)))
            while inside[0] < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert (await runner.run(Experiment("free", rows(50), free))).complete
            assert (inside[0], going.done()) == (3, False)
            registry.settle(permit, Outcome(Kind.OK))
            assert (await going).complete
            assert runner._supervisor._shared.functions.free == 3

    @in_loop
    async def test_what_waits_inside_a_thread_leaves_its_slot_as_well(self, tmp_path: Path) -> None:
        registry, free = registry_of(**ONE_SLOT), HeldTask()
        permit = taken(registry)

        def answer(row: Any) -> Any:
            return registry.execute(SHUT, lambda: 1)

        async with runner_at(tmp_path, registry=registry, max_concurrency=1) as runner:
            going = asyncio.create_task(runner.run(Experiment("e", rows(3), answer)))
            assert (await runner.run(Experiment("free", rows(20), free))).complete
            assert not going.done()
            registry.settle(permit, Outcome(Kind.OK))
            assert (await going).complete
            assert runner._supervisor._shared.functions.free == 1

    @in_virtual_time
    async def test_a_functions_time_stands_still_while_it_waits_and_nobody_looks_at_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry, looks = registry_in_virtual_time(), [0]
        held_up(registry, 0.2)
        is_up = Job._check_timeout

        def counted(self: Job) -> None:
            looks[0] += 1
            is_up(self)

        monkeypatch.setattr(Job, "_check_timeout", counted)

        async def answer(row: Any) -> Any:
            return await registry.aexecute(SHUT, nothing)

        async with runner_at(tmp_path, registry=registry, task_timeout=0.02, attempts=1) as runner:
            assert (await runner.run(Experiment("e", rows(1), answer))).complete
        assert looks[0] <= 3


@in_virtual_time
async def test_a_gate_behind_somebody_who_is_about_to_go_is_not_asked_again_at_once() -> None:
    class Ahead(RateLimitRegistry):
        def try_admit(self, key: Any, cost: Any = None, *, wake: Any = None) -> Any:
            asked.append(key)
            return NotReady(self.clock() - 1.0, "queue")

    asked: list[Any] = []
    loop = asyncio.get_running_loop()
    gates = KeyGates(Ahead(tidegate.Settings(), clock=loop.time), FairQueue(), loop, lambda: None, lambda: 0.5)
    assert gates.request_permit(KEY, None) is False
    for _ in range(5):
        await asyncio.sleep(0)
    assert gates.closed(KEY) is not None
    while gates.closed(KEY) is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class TestOtherKeys:
    @in_loop
    async def test_a_permit_of_a_key_that_a_row_does_not_ask_is_given_back_at_once(self, tmp_path: Path) -> None:
        registry = registry_of(max_concurrency=1)
        free: list[int] = []

        async def answer(row: Any) -> Any:
            if row["n"] % 2 == 0:
                return await registry.aexecute(KEY, nothing)

            async def other() -> None:
                free.append(registry.snapshot().keys[KEY].in_flight)

            return await registry.aexecute(SHUT, other) or 1

        async with runner_at(tmp_path, registry=registry, max_concurrency=1) as runner:
            assert (await runner.run(Experiment("e", rows(10), answer))).complete
        assert free == [0] * 5

    @in_loop
    async def test_a_permit_comes_back_from_a_function_that_is_cancelled_before_its_first_call(
        self, tmp_path: Path
    ) -> None:
        registry = registry_of(max_concurrency=1)
        began = asyncio.Event()

        async def answer(row: Any) -> Any:
            if row["n"] > 0:
                began.set()
                await asyncio.Event().wait()
            return await registry.aexecute(KEY, nothing)

        async with runner_at(tmp_path, registry=registry, max_concurrency=1) as runner:
            number = await runner.start(Experiment("e", rows(3), answer))
            await began.wait()
            assert registry.snapshot().keys[KEY].in_flight == 1
            runner.leave(number)
            runner.hasten()
            await runner.wait(number)
            assert (registry.snapshot().keys[KEY].in_flight, registry.snapshot().keys[KEY].attempts) == (0, 1)

    @in_virtual_time
    async def test_a_permit_comes_back_from_a_function_that_is_left_behind(self, tmp_path: Path) -> None:
        registry, stubborn = registry_in_virtual_time(max_concurrency=1), asyncio.Event()

        async def answer(row: Any) -> Any:
            while row["n"] == 1 and not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue
            return await registry.aexecute(KEY, nothing)

        async with runner_at(tmp_path, registry=registry, max_concurrency=1, task_timeout=0.02, attempts=1) as runner:
            summary = await runner.run(Experiment("e", rows(4), answer))
            in_flight = registry.snapshot().keys[KEY].in_flight
            stubborn.set()
            await asyncio.sleep(0)
            assert await statuses(runner.store, summary.experiment.id) == {OK: 3, ResultStatus.ERROR: 1}
            assert in_flight == 0

    @pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.05, MAX_BACKOFF_SECONDS=10.0)
    @in_virtual_time
    async def test_a_refusal_at_a_key_that_is_not_asked_is_waited_for_longer_each_time(self, tmp_path: Path) -> None:
        registry, paid = registry_in_virtual_time(), [0]

        async def call() -> None:
            paid[0] += 1

        async def answer(row: Any) -> Any:
            await registry.aexecute(KEY, call)
            # By a client that nobody governs.
            raise Refused(429)

        async with runner_at(
            tmp_path,
            registry=registry,
            row_deadline=1.0,
        ) as runner:
            summary = await runner.run(Experiment("e", rows(1), answer))
            assert await statuses(runner.store, summary.experiment.id) == {PARKED: 1}
        assert 3 <= paid[0] <= 8
