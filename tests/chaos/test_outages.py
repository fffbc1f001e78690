"""A provider that is away stops what needs it and nothing else, and when it is back, all goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from tests.chaos.providers import Provider, per_second
from tests.chaos.runners import LATENCY, SLOTS, apart, now, registry, runner_of, seconds_of
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import rows, stored
from tidegate.experiments import Evaluator, Experiment, RunnerSettings
from tidegate.experiments.storage import ResultStatus, Status
from tidegate.testing import OutageSpan

AWAY = 120.0
"""Seconds: longer than all attempts and pauses of a call together."""

ROWS = 300


@pytest.mark.parametrize("status", [503, 500, "drop"])
@in_virtual_time
async def test_a_dead_provider_stops_its_key_alone_and_all_resumes_when_it_is_back(
    tmp_path: Path, status: Literal[500, 503, "drop"]
) -> None:
    known = registry()
    outage = OutageSpan(start=1.0, end=1.0 + AWAY, status=status)
    dead = Provider("dead", per_second(50, latency=LATENCY, outages=(outage,)))
    fine = Provider("fine", per_second(50, latency=LATENCY))
    async with runner_of(known, tmp_path) as runner:
        broken = asyncio.create_task(runner.run(Experiment("dead", rows(ROWS), dead.asked_by("dead", known))))
        beside = await seconds_of(runner, Experiment("fine", rows(ROWS), fine.asked_by("fine", known)))
        assert not broken.done()
        assert dead.truth().total.answered < ROWS / 2
        summary = await broken
        runs = await stored(runner.store, summary.experiment.id)
    assert summary.complete
    assert len(runs) == ROWS
    assert beside < AWAY / 10
    assert apart(fine.truth().admitted_at) <= 1.02 / 50
    # Asked by probes alone while it was away, and never given up.
    assert dead.truth().total.refusals < 60


@in_virtual_time
async def test_a_judge_that_is_away_keeps_no_task_back_and_catches_up(tmp_path: Path) -> None:
    known = registry()
    outage = OutageSpan(start=0.0, end=AWAY, status="drop")
    dead = Provider("dead", per_second(50, latency=LATENCY, outages=(outage,)))
    fine = Provider("fine", per_second(50, latency=LATENCY))
    judge = Evaluator(dead.asked_by("judge", known), name="judge")
    async with runner_of(known, tmp_path) as runner:
        summary = await runner.run(Experiment("e", rows(ROWS), fine.asked_by("task", known), [judge]))
    assert summary.complete
    assert apart(fine.truth().admitted_at) <= 1.02 / 50
    assert min(dead.truth().admitted_at) >= AWAY
    assert dead.truth().total.answered == ROWS


SILENT = 600.0
"""Seconds: longer than all attempts of a row at the default timeout of a task, 120 s."""

FEW = 12
"""Rows so few that each is tried again and again."""


@pytest.mark.parametrize("begin", [0.0, 1.0])
@in_virtual_time
async def test_provider_that_takes_calls_and_does_not_answer_loses_no_row(tmp_path: Path, begin: float) -> None:
    known = registry()
    silent = Provider("silent", per_second(50, latency=LATENCY), silent=(begin, begin + SILENT))
    fine = Provider("fine", per_second(50, latency=LATENCY))
    async with runner_of(known, tmp_path) as runner:
        hung = asyncio.create_task(runner.run(Experiment("silent", rows(FEW), silent.asked_by("silent", known))))
        beside = await seconds_of(runner, Experiment("fine", rows(ROWS), fine.asked_by("fine", known)))
        summary = await hung
        runs = await stored(runner.store, summary.experiment.id)
        ended = now()
    assert summary.complete
    assert len(runs) == FEW
    assert beside < SILENT / 4
    # A call that waits for its timeout may have begun just before the provider was back.
    assert ended < begin + SILENT + 2 * RunnerSettings().task_timeout
    # Its slots were full when it fell silent, and from then on probes alone were sent.
    assert silent.unanswered <= 3 * SLOTS


@in_virtual_time
async def test_row_that_is_slow_by_itself_ends_as_a_timeout_and_holds_nobody_up(tmp_path: Path) -> None:
    known = registry()
    provider = Provider("p", per_second(50, latency=LATENCY))
    ask = provider.asked_by("p", known)

    async def task(row: dict[str, int]) -> float:
        if row["n"] % 100 == 7:
            await known.aexecute(provider.key, asyncio.Event().wait)
        answer: float = await ask(row)
        return answer

    async with runner_of(known, tmp_path) as runner:
        summary = await runner.run(Experiment("e", rows(ROWS), task))
        runs = await stored(runner.store, summary.experiment.id)
    assert summary.experiment.status is Status.COMPLETED
    assert [run.error_kind for run in runs if run.status is not ResultStatus.OK] == ["timeout"] * 3
    state = known.snapshot().keys[provider.key]
    assert (state.breaker, state.abandoned) == ("closed", 9)
