"""Rows behind a key that the provider rejects as a whole end as by its own answer, without a request each."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import in_loop, rows, runner_at, stored
from tests.sdk.asking import make, request
from tests.transports.answering import Server
from tidegate.errors import KeyRefused
from tidegate.runner import Experiment
from tidegate.storage import ResultStatus, Status
from tidegate.testing import VirtualClock

MONEY = {
    "error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
}
HEADERS = {"content-type": "application/json"}


@in_loop
async def test_rows_behind_a_key_without_money_fail_as_by_its_answer(tmp_path: Path) -> None:
    clock = VirtualClock()

    def refuse(number: int, path: str) -> tuple[int, dict[str, str], bytes]:
        clock.advance(1.0)
        return 429, HEADERS, json.dumps(MONEY).encode()

    with Server(refuse) as server:
        registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1), clock=clock)
        client = registry.wrap(make("async_openai", server.chat.removesuffix("/v1/chat/completions")))

        async def task(row: Any) -> Any:
            return (await request("async_openai", client)).choices[0].message.content

        async with runner_at(tmp_path, registry=registry) as runner:
            summary = await runner.run(Experiment("e", rows(200), task))
            found = await stored(runner.store, summary.experiment.id)
        await client.close()
        assert len(server.seen) <= 24
    assert summary.experiment.status is Status.ERROR
    assert {(each.status, each.error_kind) for each in found} == {(ResultStatus.ERROR, "money")}


class Refused(Exception):
    """As an SDK raises it, with the response of the call that it belongs to."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__("refused")
        self.status_code = status
        self.response = type("Response", (), {"status_code": status, "headers": HEADERS, "content": body})()


def test_execute_of_a_rejected_key_raises_facts_and_shares_no_exception() -> None:
    clock = VirtualClock()
    registry = tidegate.RateLimitRegistry(tidegate.Settings(start_concurrency=1), clock=clock)
    made: list[Refused] = []

    def call() -> Any:
        clock.advance(1.0)
        made.append(Refused(429, json.dumps(MONEY).encode()))
        raise made[-1]

    with ThreadPoolExecutor(60) as pool:
        ended = [pool.submit(registry.execute, "k", call) for _ in range(60)]
    errors = [each.exception() for each in ended]
    without = [each for each in errors if isinstance(each, KeyRefused)]
    assert {id(each) for each in errors if each not in without} == {id(each) for each in made}
    assert len(without) >= 20
    for each in without:
        assert (each.cause, each.status, each.__cause__) == ("money", 429, None)
        assert json.loads(each.body)["error"]["code"] == "insufficient_quota"
    with pytest.raises(Refused):
        registry.execute("k", call)
