"""How far a run is, and what it waits for, as those who watch it see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.core.values import answer as answered
from tests.core.values import bucket
from tests.runner.scene import HeldTask, in_loop, rows, runner_at
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Kind, Outcome
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.engine.progress import ResultTally
from tidegate.experiments.storage import ResultCounts, ResultStatus

OK = ResultStatus.OK
KEY = tidegate.Key("p", "https://p.test", "0123456789abcdef")


@in_loop
async def test_it_shows_what_is_under_way_and_what_there_is(tmp_path: Path) -> None:
    task = HeldTask(held=True)
    async with runner_at(tmp_path, max_concurrency=3) as runner:
        number = await runner.start(
            Experiment("e", rows(9), task, [Evaluator(HeldTask(), name="judge")], repetitions=2)
        )
        await task.until(lambda: task.inside == 1)
        seen = runner.progress("e")
        assert seen is not None
        assert (seen.name, seen.phase, seen.rows) == ("e", "live", 9)
        first, judge = seen.stages
        assert (first.name, first.total, first.finished, first.under_way, first.ready) == ("task", 18, 0, 1, 17)
        assert first.wait is not None
        assert (first.wait.reason, first.wait.seconds) == ("its first call", None)
        assert (judge.name, judge.total, judge.wait) == ("judge", 0, None)
        task.go.set()
        await runner.wait(number)
        assert runner.progress("e") is None


@in_loop
async def test_it_says_where_as_much_is_under_way_as_may_be(tmp_path: Path) -> None:
    later = HeldTask(held=True)

    async def answer(row: Any) -> Any:
        # The first one shows that it asks for no key: then the others go at once.
        return await later(row) if row["n"] else 0

    async with runner_at(tmp_path, max_concurrency=3) as runner:
        number = await runner.start(Experiment("e", rows(9), answer, max_concurrency=2))
        await later.until(lambda: later.inside == 2)
        seen = runner.progress("e")
        assert seen is not None
        assert seen.stages[0].wait is not None
        assert (seen.stages[0].wait.reason, seen.stages[0].wait.seconds) == ("concurrency", None)
        later.go.set()
        await runner.wait(number)


@in_virtual_time
async def test_it_says_why_and_how_long_a_throttled_stage_waits_and_names_no_credential(tmp_path: Path) -> None:
    registry = registry_in_virtual_time()

    async def answer(row: Any) -> Any:
        return await registry.aexecute(KEY, lambda: asyncio.sleep(0, 1))

    async def other(row: Any) -> Any:
        # The provider names half a minute; whoever is at that key waits, and this one looks at it.
        permit = registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, 30.0))

    async with runner_at(tmp_path, registry=registry) as runner:
        await runner.run(Experiment("other", rows(1), other))
        task = Experiment("e", rows(5), answer)
        number = await runner.start(task)
        running = runner._dispatcher.runs[number]
        running._discovery.set_key(running.stages[0], KEY, Cost())
        while not (seen := runner.progress(number)) or seen.stages[0].wait is None or not seen.stages[0].wait.key:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        wait = seen.stages[0].wait
        assert (wait.reason, wait.key) == ("pause", "p · p.test · key 012345")
        assert wait.seconds is not None
        assert 0 < wait.seconds <= 30
        await runner.shutdown(0.0)


@in_virtual_time
async def test_rest_is_foretold_beside_an_evaluator_that_makes_no_calls(tmp_path: Path) -> None:
    registry = registry_in_virtual_time()
    go = asyncio.Event()

    async def answer(row: Any) -> Any:
        if row["n"] > 2:
            await go.wait()
        return await registry.aexecute(KEY, lambda: asyncio.sleep(0, 1))

    def judge(row: Any, output: Any) -> float:
        return 1.0

    async with runner_at(tmp_path, registry=registry) as runner:
        number = await runner.start(Experiment("e", rows(60), answer, [judge], max_concurrency=4))
        while (seen := runner.progress(number)) is None or seen.stages[1].finished < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert seen.stages[1].total == 3
        while not isinstance(permit := registry.try_admit(KEY), Permit):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        registry.settle(permit, answered(bucket(120.0, 0.0)))
        seen = runner.progress(number)
        assert seen is not None
        # 53 rows are not started, at two a second.
        assert seen.rest == pytest.approx(53 / 2, rel=0.1)
        assert seen.bound_by == "120 requests/min"
        await runner.shutdown(0.0)


@in_loop
async def test_what_an_earlier_run_has_done_is_counted_and_what_will_be_tried_again_is_not(tmp_path: Path) -> None:
    broken = [True]
    seen: list[Any] = []

    async def answer(row: Any) -> Any:
        if row["n"] == 3 and broken[0]:
            raise KeyError
        seen.append(runner.progress("e"))
        return 1

    async with runner_at(tmp_path) as runner:
        experiment = Experiment("e", rows(5), answer)
        await runner.run(experiment)
        broken[0] = False
        assert (await runner.run(experiment)).complete
    assert dict(seen[-1].stages[0].done) == {OK: 4}
    assert (seen[-1].rows, seen[-1].all_rows, seen[-1].stages[0].total) == (5, True, 5)


def stored(**by_status: int) -> ResultCounts:
    return ResultCounts(10, {ResultStatus(status): count for status, count in by_status.items()}, {})


def test_the_tally_takes_the_counts_of_all_replicas_in_place_of_its_own() -> None:
    tally = ResultTally(["task", "judge"])
    tally.rows, tally.all_rows = 10, True
    tally.load(stored(ok=2, error=3), retry_failed=True)
    # Another replica has answered 4 rows; which of the stored failures are new is not known.
    tally.count_tasks(stored(ok=6, error=2, invalid=1), retry_failed=True)
    assert tally.done[0] == {OK: 6, ResultStatus.INVALID: 1}
    # One that counts twice for a moment shows no more rows than there are.
    tally.done[0][OK] = 10
    assert tally.done_of(0, 10) == {OK: 9, ResultStatus.INVALID: 1}
    # At the end every failure is one of this run.
    tally.count_tasks(stored(ok=8, error=1, invalid=1), retry_failed=False)
    assert tally.done_of(0, 10) == {OK: 8, ResultStatus.ERROR: 1, ResultStatus.INVALID: 1}
    assert tally.done[1] == {}
