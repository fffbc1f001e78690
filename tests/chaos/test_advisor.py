"""Who is throttled holds nobody else up: speeds and shares in virtual time, exact to the call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.providers import Provider, per_second
from tests.chaos.runners import LATENCY, apart, registry, runner_of, seconds_of
from tests.chaos.virtual_time import in_virtual_time
from tests.effort import effort
from tests.runner.scene import rows
from tidegate.experiments import Evaluator, Experiment

FAST, SLOW = 100.0, 1.0
"""Calls a second that the two providers admit."""

ROWS = effort(500, 1000)


async def alone(path: Path) -> float:
    """Seconds that an experiment on the fast provider takes where nothing else runs."""
    known, fast = registry(), Provider("fast", per_second(FAST, latency=LATENCY))
    async with runner_of(known, path / "alone") as runner:
        return await seconds_of(runner, Experiment("b", rows(ROWS), fast.asked_by("b", known)))


@in_virtual_time
async def test_an_experiment_at_one_call_a_second_leaves_another_its_hundred(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    solo = await alone(tmp_path)
    known = registry()
    slow, fast = (Provider(name, per_second(rate, latency=LATENCY)) for name, rate in (("slow", SLOW), ("fast", FAST)))
    async with runner_of(known, tmp_path) as runner:
        throttled = asyncio.create_task(runner.run(Experiment("a", rows(60), slow.asked_by("a", known))))
        beside = await seconds_of(runner, Experiment("b", rows(ROWS), fast.asked_by("b", known)))
        assert not throttled.done()
        assert (await throttled).complete
    assert solo >= 0.98 * beside
    # One refusal each is how they learned of a bucket that was empty already.
    assert (fast.truth().total.refusals, slow.truth().total.refusals) == (1, 1)
    assert apart(slow.truth().admitted_at) <= 1.02 / SLOW
    assert apart(fast.truth().admitted_at) <= 1.02 / FAST


@in_virtual_time
async def test_nine_throttled_experiments_of_nine_keys_leave_it_as_much(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    solo = await alone(tmp_path)
    known, fast = registry(), Provider("fast", per_second(FAST, latency=LATENCY))
    slow = [Provider(f"slow-{number}", per_second(SLOW, latency=LATENCY)) for number in range(9)]
    async with runner_of(known, tmp_path) as runner:
        throttled = [
            asyncio.create_task(runner.run(Experiment(each.key.base_url, rows(20), each.asked_by("a", known))))
            for each in slow
        ]
        beside = await seconds_of(runner, Experiment("b", rows(ROWS), fast.asked_by("b", known)))
        assert not any(each.done() for each in throttled)
        assert all(summary.complete for summary in await asyncio.gather(*throttled))
    assert solo >= 0.98 * beside
    # The first call waits as long as its refusal says, the second one also for what is kept in hand.
    assert all(apart(each.truth().admitted_at[1:]) <= 1.02 / SLOW for each in slow)


@in_virtual_time
async def test_the_same_experiments_on_one_key_alternate(tmp_path: Path) -> None:
    known, shared = registry(), Provider("shared", per_second(FAST, latency=LATENCY))
    async with runner_of(known, tmp_path) as runner:
        ended = await asyncio.gather(
            *(runner.run(Experiment(name, rows(ROWS // 2), shared.asked_by(name, known))) for name in ("a", "b"))
        )
    assert all(each.complete for each in ended)
    # The first ones were learning what the key is; from then on until one has ended, any hundred are shared.
    both = shared.order[20 : ROWS - 20]
    for begin in range(0, len(both) - 100, 20):
        part = both[begin : begin + 100]
        assert abs(part.count("a") - part.count("b")) <= 5
    assert apart(shared.truth().admitted_at) <= 1.02 / FAST


@in_virtual_time
async def test_a_throttled_judge_does_not_slow_the_tasks_that_it_judges(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    solo = await alone(tmp_path)
    known = registry()
    slow, fast = (Provider(name, per_second(rate, latency=LATENCY)) for name, rate in (("slow", SLOW), ("fast", FAST)))
    judge = Evaluator(slow.asked_by("judge", known), name="judge")
    async with runner_of(known, tmp_path) as runner:
        summary = await runner.run(Experiment("b", rows(ROWS), fast.asked_by("b", known), [judge]))
    assert summary.complete
    tasks = fast.truth()
    assert solo >= 0.98 * (tasks.admitted_at[-1] + LATENCY.median)
    assert (tasks.total.answered, slow.truth().total.answered) == (ROWS, ROWS)
    assert apart(slow.truth().admitted_at) <= 1.02 / SLOW
