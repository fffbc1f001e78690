"""Experiments through real SDKs, over HTTP, against simulated providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import in_loop, ran, rows, runner_at, settings, stored
from tests.sdk.asking import at_rest, make, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment
from tidegate.testing import Distribution, Limit, OutageSpan, Scenario, Simulator

QUICK = Distribution.constant(0.002)


def asks(kind: str, client: Any) -> Any:
    """A task, or an evaluator, that asks one question."""

    async def ask(row: Any, output: Any = None) -> Any:
        await request(kind, client)
        return 1.0

    return ask


@pytest.mark.constants(START_CONCURRENCY=16)
@in_loop
async def test_a_task_and_its_judge_at_two_providers_at_their_limits_lose_nothing(tmp_path: Path) -> None:
    slots = Scenario(limiters=(Limit(kind="slots", limit=2),), latency=QUICK)
    few = Scenario(limiters=(Limit(limit=30, window=1.0, burst=5),), latency=QUICK)
    with Simulator(slots) as one, Simulator(few) as other:
        registry = RateLimitRegistry(tidegate.Settings())
        client = registry.wrap(make("async_openai", one.url))
        judge = registry.wrap(make("async_anthropic", other.url))
        async with runner_at(tmp_path, registry=registry) as runner:
            judging = Evaluator(asks("async_anthropic", judge), name="judge")
            summary = await runner.run(Experiment("e", rows(60), asks("async_openai", client), [judging]))
            runs = await stored(runner.store, summary.experiment.id)
        await client.close()
        await judge.close()
        truths = one.truth().total, other.truth().total
    assert summary.complete
    assert {run.attempts for run in runs} == {1}
    assert [truth.answered for truth in truths] == [60, 60]
    assert at_rest(registry)


@pytest.mark.constants(START_CONCURRENCY=16)
@in_loop
async def test_a_synchronous_client_in_threads_is_governed_by_the_same_keys(tmp_path: Path) -> None:
    slots = Scenario(limiters=(Limit(kind="slots", limit=2),), latency=QUICK)
    with Simulator(slots) as provider:
        registry = RateLimitRegistry(tidegate.Settings())
        client = registry.wrap(make("openai", provider.url))

        def answer(row: Any) -> str:
            return str(request("openai", client).choices[0].message.content)

        summary, _ = await ran(tmp_path, Experiment("e", rows(40), answer), registry=registry)
        client.close()
        truth = provider.truth().total
    assert summary.complete
    assert truth.answered == 40
    assert at_rest(registry)


@pytest.mark.constants(
    FIRST_COOLDOWN_SECONDS=0.02, MAX_COOLDOWN_SECONDS=0.1, FIRST_BACKOFF_SECONDS=0.2, MAX_BACKOFF_SECONDS=0.5
)
@in_loop
async def test_an_outage_loses_no_row(tmp_path: Path) -> None:
    down = Scenario(outages=(OutageSpan(start=0.0, end=0.4, status=503),), latency=QUICK)
    with Simulator(down) as provider:
        registry = RateLimitRegistry(tidegate.Settings())
        client = registry.wrap(make("async_openai", provider.url, max_retries=0))
        given = settings(
            attempts=3,
        )
        summary, _ = await ran(
            tmp_path, Experiment("e", rows(30), asks("async_openai", client)), registry=registry, **given.model_dump()
        )
        await client.close()
    assert summary.complete
    assert at_rest(registry)
