"""For how long a row waits for capacity before it is given up for now, and what of that does not count."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import refusal, rows, runner_at, statuses
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.storage import ResultStatus

OK, PARKED = ResultStatus.OK, ResultStatus.PARKED
KEY = tidegate.Key("p", "https://p.test")
SHUT = tidegate.Key("shut", "https://shut.test")


async def nothing() -> int:
    return 1


class DelayedQueueRegistry(RateLimitRegistry):
    """After so many virtual seconds something happens at `at`: whoever asks there stands in a queue, for nobody knows
    how long.
    """

    def __init__(self, seconds: float, at: tidegate.Key = KEY) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(tidegate.Settings(), clock=self._loop.time, draw=lambda: 0.5)
        self._at, self._is_over = at, False
        self._loop.call_at(seconds, self._happens)
        self._wake: Any = None

    def try_admit(self, key: Any, cost: Any = None, *, wake: Any = None) -> Any:
        if key != self._at:
            return super().try_admit(key, cost, wake=wake)
        self._wake = wake
        if self._is_over:
            return NotReady(float("inf"), "queue")
        return super().try_admit(key, cost)

    def _happens(self) -> None:
        self._is_over = True
        if self._wake is not None:
            self._wake()


class TestDeadlines:
    @in_virtual_time
    async def test_while_a_key_is_closed_for_a_known_time_no_deadline_passes(self, tmp_path: Path) -> None:
        registry, refusals = registry_in_virtual_time(), [0]

        async def call() -> int:
            if refusals[0] < 2:
                refusals[0] += 1
                raise refusal("100")
            return 1

        async def answer(row: Any) -> Any:
            return await registry.aexecute(KEY, call if row["n"] else nothing)

        async with runner_at(tmp_path, registry=registry, row_deadline=1.0, max_concurrency=1) as runner:
            summary = await runner.run(Experiment("e", rows(2), answer))
            assert await statuses(runner.store, summary.experiment.id) == {OK: 2}
        assert refusals[0] == 2
        assert asyncio.get_running_loop().time() > 199.0

    @in_virtual_time
    async def test_when_a_key_that_was_closed_for_a_known_time_opens_early_the_deadlines_are_nearer(
        self, tmp_path: Path
    ) -> None:
        registry, loop = DelayedQueueRegistry(50.0), asyncio.get_running_loop()

        async def call() -> int:
            raise refusal("1000")

        async def answer(row: Any) -> Any:
            return await registry.aexecute(KEY, call if row["n"] else nothing)

        async with runner_at(tmp_path, registry=registry, row_deadline=5.0, max_concurrency=1) as runner:
            summary = await runner.run(Experiment("e", rows(2), answer))
            assert await statuses(runner.store, summary.experiment.id) == {OK: 1, PARKED: 1}
        # Five seconds, of which fifty do not count, less the moment between the refusal and the closing.
        assert 54.9 <= loop.time() <= 55.1

    @in_virtual_time
    async def test_a_row_behind_a_key_that_names_no_time_is_not_held_up_by_one_behind_a_key_that_does(
        self, tmp_path: Path
    ) -> None:
        registry = DelayedQueueRegistry(10.0, at=SHUT)

        async def call() -> int:
            raise refusal("1000")

        async def late() -> int:
            await asyncio.sleep(20.0)
            raise refusal("1000")

        async def answer(row: Any) -> Any:
            return await registry.aexecute(KEY, call if row["n"] == 2 else nothing)

        async def judge(row: Any, output: Any) -> Any:
            return await registry.aexecute(SHUT, late if row["n"] == 1 else nothing)

        experiment = Experiment("e", rows(3), answer, evaluators=[Evaluator(judge)])
        async with runner_at(tmp_path, registry=registry, row_deadline=5.0) as runner:
            number = await runner.start(experiment)
            await asyncio.sleep(26.0)
            assert (await runner.store.reports.counts(number)).annotations == {"judge": {OK: 1, PARKED: 1}}
            assert await statuses(runner.store, number) == {OK: 2}
            runner.leave(number)
            await runner.wait(number)


class TestDays:
    """The provider counts requests by the day; a day has 10 here, and the next begins after an hour and a half."""

    async def run(self, path: Path, headers: dict[str, str]) -> tuple[int, dict[ResultStatus, int], float]:
        registry, asked, loop = registry_in_virtual_time(), [0], asyncio.get_running_loop()

        async def call() -> int:
            asked[0] += 1
            if loop.time() < 5400.0 and asked[0] > 10:
                body = b'{"error": {"code": "rate_limit_exceeded", "message": "on requests per day (RPD): Limit 10"}}'
                raise refusal(headers.get("retry-after"), body)
            return 1

        async def answer(row: Any) -> Any:
            return await registry.aexecute(tidegate.Key("openai", "https://o.test"), call)

        async with runner_at(path, registry=registry, max_concurrency=4) as runner:
            summary = await runner.run(Experiment("e", rows(100), answer))
            return asked[0], await statuses(runner.store, summary.experiment.id), loop.time()

    @in_virtual_time
    async def test_a_day_that_is_over_is_waited_for_where_its_end_is_known_and_no_row_is_lost_to_it(
        self, tmp_path: Path
    ) -> None:
        asked, runs, ended = await self.run(tmp_path, {"retry-after": "5400"})
        assert (runs, asked <= 104) == ({OK: 100}, True)
        assert 5400.0 <= ended < 6000.0

    @in_virtual_time
    async def test_where_it_is_not_known_one_call_an_hour_looks_and_those_that_were_refused_are_parked(
        self, tmp_path: Path
    ) -> None:
        asked, runs, ended = await self.run(tmp_path, {})
        # Those in flight at the first refusal may be given it instead of asking themselves.
        assert 100 - runs[PARKED] <= asked <= 100
        assert 1 <= runs[PARKED] <= 8
        assert runs[OK] + runs[PARKED] == 100
        assert 5400.0 <= ended < 10800.0
