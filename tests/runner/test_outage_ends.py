"""A provider that is down for good: its rows are parked, all others go on, and the run ends."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.raw_server import RawServer, Reply
from tests.runner.scene import Refused, in_loop, ran, refusal, rows, runner_at, statuses
from tests.sdk.asking import make, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment
from tidegate.experiments.storage import ResultStatus, Status

OK, PARKED = ResultStatus.OK, ResultStatus.PARKED
KEY = tidegate.Key("p", "https://p.test")
DEAD = tidegate.Key("dead", "https://dead.test")

FAILURES: dict[str, Any] = {
    "503": lambda: Refused(503),
    "500": lambda: Refused(500),
    "529": lambda: Refused(529),
    "429": lambda: Refused(429),
    "refused": lambda: ConnectionRefusedError("nobody is there"),
    "reset": lambda: ConnectionResetError("cut"),
}
CAPACITY = ("529", "429")
"""Failures that are answers: they open no breaker, so only the deadline of a row ends them."""


def asking(registry: RateLimitRegistry, key: tidegate.Key, failure: Any = None, seconds: float = 0.1) -> Any:
    """A task, or an evaluator, that asks one question at `key`."""

    async def call() -> float:
        await asyncio.sleep(seconds)
        if failure is not None:
            raise failure()
        return 1.0

    async def ask(row: Any, output: Any = None) -> float:
        return float(await registry.aexecute(key, call))

    return ask


@pytest.mark.parametrize("failure", FAILURES)
@in_virtual_time
async def test_dead_judge_parks_every_judgement_at_the_row_deadline(tmp_path: Path, failure: str) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    judge = Evaluator(asking(registry, DEAD, FAILURES[failure]), name="judge")
    count = 250
    experiment = Experiment("e", rows(count), asking(registry, KEY), [judge])
    async with runner_at(tmp_path, registry=registry, row_deadline=10.0, max_outage=None) as runner:
        summary = await runner.run(experiment)
        counts = await runner.store.reports.counts(summary.experiment.id)
        failures = await runner.store.reports.failures(summary.experiment.id)
    assert counts.runs == {OK: count}
    judged = counts.annotations["judge"]
    # The first calls of all came before anything was known of the key: what may pass has three attempts.
    assert judged.get(PARKED, 0) >= count - 20
    assert sum(judged.values()) == count
    assert loop.time() <= 60.0
    assert summary.status is Status.COMPLETED
    parked = next(each for each in failures if each.status is PARKED)
    assert parked.kind == "capacity"
    assert "no capacity for 10 s" in str(parked.example)


@pytest.mark.parametrize("failure", [name for name in FAILURES if name not in CAPACITY])
@in_virtual_time
async def test_key_down_beyond_max_outage_ends_the_run_stopped(tmp_path: Path, failure: str) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    experiment = Experiment("e", rows(250), asking(registry, DEAD, FAILURES[failure]))
    async with runner_at(tmp_path, registry=registry, max_outage=30.0) as runner:
        summary = await runner.run(experiment)
        found = await statuses(runner.store, summary.experiment.id)
        lines = await runner.store.reports.last_logs(summary.experiment.id, 100)
    assert summary.status is Status.STOPPED
    (end,) = [line.detail for line in lines if line.detail["type"] == "ended"]
    assert (end["status"], end["parked"]) == ("STOPPED", found[PARKED])
    assert found[PARKED] >= 230
    assert sum(found.values()) == 250
    assert str(DEAD) in str(summary.last_error)
    assert "30 s (max_outage)" in str(summary.last_error)
    assert {"503": "status 503", "500": "status 500"}.get(failure, "") in str(summary.last_error)
    assert 30.0 <= loop.time() <= 60.0


@pytest.mark.parametrize("failure", ["500", "503", "refused"])
@in_virtual_time
async def test_server_that_comes_up_after_two_minutes_answers_the_rows(tmp_path: Path, failure: str) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    down, up = (asking(registry, DEAD, fails) for fails in (FAILURES[failure], None))

    async def answer(row: Any) -> float:
        return float(await (down if loop.time() < 120.0 else up)(row))

    async with runner_at(tmp_path, registry=registry) as runner:
        summary = await runner.run(Experiment("e", rows(250), answer))
        found = await statuses(runner.store, summary.experiment.id)
    # Rows of the first second may spend an attempt before anything is known of the key, but have two more.
    assert found == {OK: 250}


@in_virtual_time
async def test_judge_down_beyond_max_outage_leaves_the_tasks_alone(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    judges = [
        Evaluator(asking(registry, DEAD, FAILURES["503"]), name="dead"),
        Evaluator(asking(registry, KEY), name="fine"),
    ]
    experiment = Experiment("e", rows(300), asking(registry, KEY, seconds=5.0), judges)
    async with runner_at(tmp_path, registry=registry, max_outage=20.0, max_concurrency=10) as runner:
        summary = await runner.run(experiment)
        counts = await runner.store.reports.counts(summary.experiment.id)
    assert counts.runs == {OK: 300}
    assert counts.annotations == {"dead": {PARKED: 300}, "fine": {OK: 300}}
    assert (summary.status, str(DEAD) in str(summary.last_error)) == (Status.STOPPED, True)
    # A fifteenth of the rows at a time, each for five seconds: nobody waited for the judge.
    assert loop.time() <= 300.0


@in_virtual_time
async def test_judges_that_wait_inside_their_calls_hold_up_no_task(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    ended: list[float] = []
    ask = asking(registry, KEY, seconds=0.5)

    async def answer(row: Any) -> float:
        output = float(await ask(row))
        ended.append(loop.time())
        return output

    # So slow that every slot has a judge in it before the first one fails.
    judge = Evaluator(asking(registry, DEAD, FAILURES["503"], seconds=8.0), name="judge")
    async with runner_at(
        tmp_path, registry=registry, row_deadline=600.0, max_outage=None, max_concurrency=20
    ) as runner:
        await runner.run(Experiment("e", rows(150), answer, [judge]))
    assert ended[-1] <= 40.0
    assert loop.time() >= 600.0


@in_virtual_time
async def test_parked_rows_are_resumed(tmp_path: Path) -> None:
    registry, down = registry_in_virtual_time(), [True]

    async def call() -> int:
        if down[0]:
            raise ConnectionRefusedError("nobody is there")
        return 1

    async def answer(row: Any) -> Any:
        return await registry.aexecute(DEAD, call)

    experiment = Experiment("e", rows(50), answer)
    async with runner_at(tmp_path, registry=registry, max_outage=20.0) as runner:
        assert (await runner.run(experiment)).status is Status.STOPPED
        down[0] = False
        assert (await runner.run(experiment)).complete


@in_virtual_time
async def test_provider_that_comes_back_during_the_run_ends_it_completed(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()

    async def call() -> float:
        if loop.time() < 60.0:
            raise Refused(503)
        return 1.0

    async def judge(row: Any, output: Any) -> float:
        return float(await registry.aexecute(DEAD, call))

    experiment = Experiment("e", rows(300), asking(registry, KEY, seconds=5.0), [judge])
    async with runner_at(tmp_path, registry=registry, max_outage=20.0, max_concurrency=10) as runner:
        summary = await runner.run(experiment)
        judged = (await runner.store.reports.counts(summary.experiment.id)).annotations["judge"]
    assert summary.status is Status.COMPLETED
    assert judged[PARKED] + judged[OK] == 300
    assert judged[OK] >= 100


@in_virtual_time
async def test_max_outage_none_waits_for_ever(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()

    async def call() -> int:
        if loop.time() < 6_000.0:
            raise Refused(503)
        return 1

    async def answer(row: Any) -> Any:
        return await registry.aexecute(DEAD, call)

    async with runner_at(tmp_path, registry=registry, max_outage=None, row_deadline=50_000.0) as runner:
        assert (await runner.run(Experiment("e", rows(100), answer))).complete


@in_virtual_time
async def test_day_quota_that_resets_in_three_hours_stops_nothing(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    body = b'{"error": {"code": "rate_limit_exceeded", "message": "on requests per day (RPD): Limit 10"}}'

    async def call() -> int:
        if loop.time() < 10_800.0:
            raise refusal(str(max(1, math.ceil(10_800.0 - loop.time()))), body)
        return 1

    async def answer(row: Any) -> Any:
        return await registry.aexecute(tidegate.Key("openai", "https://o.test"), call)

    summary, _ = await ran(tmp_path, Experiment("e", rows(200), answer), registry=registry)
    assert summary.complete
    assert loop.time() >= 10_800.0


@in_virtual_time
async def test_stated_cooldowns_count_for_no_deadline(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()

    async def call() -> int:
        if loop.time() < 500.0:
            raise refusal("50")
        return 1

    async def answer(row: Any) -> Any:
        return await registry.aexecute(KEY, call)

    async with runner_at(tmp_path, registry=registry, row_deadline=10.0, max_outage=10.0) as runner:
        assert (await runner.run(Experiment("e", rows(100), answer))).complete


@in_virtual_time
async def test_rows_behind_a_slow_key_that_answers_are_not_parked(tmp_path: Path) -> None:
    registry, loop = registry_in_virtual_time(), asyncio.get_running_loop()
    free_at = [0.0]

    async def call() -> int:
        # One call in five seconds, and no word of it.
        if loop.time() < free_at[0]:
            raise Refused(429)
        free_at[0] = loop.time() + 5.0
        return 1

    async def answer(row: Any) -> Any:
        return await registry.aexecute(KEY, call)

    summary, _ = await ran(
        tmp_path, Experiment("e", rows(120), answer), registry=registry, row_deadline=300.0, max_concurrency=1
    )
    assert summary.complete
    assert loop.time() >= 595.0


TROUBLE = {
    "503": Reply(503, b'{"error": {"message": "unavailable"}}'),
    "529": Reply(529, b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'),
    "reset": Reply(body=b'{"choices": [', claimed=100, reset=True),
    "too long": Reply(body=b'{"choices": []}', claimed=100),
}


@pytest.mark.constants(FIRST_COOLDOWN_SECONDS=0.05, MAX_COOLDOWN_SECONDS=0.1)
@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ("503", "async_openai"),
        ("503", "openai"),
        ("529", "async_anthropic"),
        ("reset", "async_openai"),
        ("too long", "async_anthropic"),
        ("too long", "openai"),
    ],
)
@in_loop
async def test_run_over_http_ends_with_its_rows_parked(tmp_path: Path, trouble: str, kind: str) -> None:
    with RawServer(lambda _: TROUBLE[trouble]) as server:
        registry = RateLimitRegistry(tidegate.Settings())
        client = registry.wrap(make(kind, server.url, max_retries=0))

        async def judge(row: Any, output: Any) -> float:
            await request(kind, client)
            return 1.0

        def judge_in_thread(row: Any, output: Any) -> float:
            request(kind, client)
            return 1.0

        judging = Evaluator(judge if kind.startswith("async") else judge_in_thread, name="judge")

        async def answer(row: Any) -> int:
            return 1

        summary, runs = await ran(
            tmp_path,
            Experiment("e", rows(40), answer, [judging]),
            registry=registry,
            row_deadline=0.5,
            max_concurrency=8,
        )
    assert {run.status for run in runs} == {OK}
    judged = [run.annotations[0][1].status for run in runs]
    assert judged.count(PARKED) >= 30
    assert summary.status is Status.COMPLETED
