"""Rows of a key that the provider rejects as a whole end by its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import in_loop, rows, runner_at, stored
from tests.sdk.asking import make, request
from tests.transports.answering import Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Experiment
from tidegate.experiments.storage import ResultStatus, Status
from tidegate.testing import VirtualClock

MONEY = {
    "error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
}
HEADERS = {"content-type": "application/json"}


@pytest.mark.constants(START_CONCURRENCY=1)
@in_loop
async def test_rows_of_a_key_without_money_fail_by_its_answer(tmp_path: Path) -> None:
    with Server(lambda number, path: (429, HEADERS, json.dumps(MONEY).encode())) as server:
        registry = RateLimitRegistry(tidegate.Settings(), clock=VirtualClock())
        client = registry.wrap(make("async_openai", server.chat.removesuffix("/v1/chat/completions"), max_retries=0))

        async def task(row: Any) -> Any:
            return (await request("async_openai", client)).choices[0].message.content

        async with runner_at(tmp_path, registry=registry) as runner:
            summary = await runner.run(Experiment("e", rows(200), task))
            found = await stored(runner.store, summary.experiment.id)
        await client.close()
    assert summary.experiment.status is Status.ERROR
    assert {(each.status, each.error_kind) for each in found} == {(ResultStatus.ERROR, "money")}
