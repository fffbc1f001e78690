"""A runner whose functions ask models that share a quota: it is used, hardly exceeded, and starves no experiment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import rows, runner_at
from tidegate.experiments import Experiment
from tidegate.testing import Call, Limit, Refusal, Scenario

LIMIT, COUNT = 60, 90


class Limited(Exception):
    """A refusal that states the quota as the provider does."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("429")
        self.status_code = 429
        self.headers = headers


@in_virtual_time
async def test_experiments_on_two_models_use_what_these_share(tmp_path: Path) -> None:
    registry = registry_in_virtual_time(scopes={"openai": {"requests": "account"}})
    now = asyncio.get_running_loop().time
    gate = Scenario(limiters=(Limit(limit=LIMIT, window=60.0),)).gate()
    refused: list[float] = []
    ended: dict[str, list[float]] = {"a": [], "b": []}

    def experiment(model: str) -> Experiment:
        key = tidegate.Key("openai", "https://api.openai.com", "", model)

        async def call() -> dict[str, str]:
            verdict = gate.admit(Call(), now())
            (level,) = gate.levels(now())
            headers = {
                "x-ratelimit-limit-requests": f"{LIMIT}",
                "x-ratelimit-remaining-requests": f"{int(level.remaining)}",
                "x-ratelimit-reset-requests": f"{level.reset_after:.3f}s",
            }
            await asyncio.sleep(0.2)
            if isinstance(verdict, Refusal):
                refused.append(now())
                raise Limited(headers)
            return headers

        async def answer(row: Any) -> int:
            await registry.aexecute(key, call, get_headers=lambda headers: headers)
            ended[model].append(now())
            return 1

        return Experiment(model, rows(COUNT), answer)

    began = now()
    async with runner_at(tmp_path, registry=registry) as runner:
        summaries = await asyncio.gather(*(runner.run(experiment(model)) for model in ended))
    assert all(summary.complete for summary in summaries)
    ideal = (2 * COUNT - LIMIT) / LIMIT * 60.0
    assert max(ended["a"] + ended["b"]) - began <= ideal / 0.97 + 0.5
    assert len(refused) <= 0.05 * 2 * COUNT
    # Neither waits for the other to end.
    half = began + ideal / 2
    assert all(0.3 * COUNT < sum(at < half for at in each) < 0.95 * COUNT for each in ended.values())
