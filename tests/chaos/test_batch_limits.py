"""More rows than fit into one file of the provider: full files, each row once, and evaluators beside the results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import constants
from tests.storage.places import SQLite
from tidegate.experiments import BatchTask, Experiment, ExperimentRunner, RunnerSettings
from tidegate.testing import Scenario, Simulator

ROWS = 50_500
"""OpenAI takes 50,000 requests in a file."""


def body(row: Any) -> dict[str, Any]:
    return {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"q{row['n']}"}]}


def said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def right(row: Any, output: Any) -> bool:
    return bool(output == f"You said: q{row['n']}")


@pytest.mark.chaos
def test_rows_beyond_the_limit_of_a_file_are_in_the_next_one(sqlite: SQLite, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(ROWS)))

    async def run(url: str) -> tuple[Any, list[Any]]:
        client = openai.AsyncOpenAI(base_url=url, api_key="any")
        task = BatchTask(body, said, client=client)
        made = Experiment("e", tmp_path / "rows.jsonl", task, [right], batch=True)
        constants.replace(POLL_SECONDS=0.2)
        settings = RunnerSettings()
        async with client, ExperimentRunner(sqlite.url, settings=settings, recover=False) as runner:
            summary = await runner.run(made)
            files = [
                (await client.files.content(each.input_file_id)).content async for each in await client.batches.list()
            ]
        return summary, files

    with Simulator(Scenario(batch_seconds=0.5)) as provider:
        summary, files = asyncio.run(run(provider.openai_url))
    assert sorted(each.count for each in summary.batches) == [ROWS - 50_000, 50_000]
    assert [(each.scored, each.mean) for each in summary.scores] == [(ROWS, 1.0)]
    ids = [json.loads(line)["custom_id"] for file in files for line in file.splitlines()]
    assert len(ids) == len(set(ids)) == ROWS
    assert {len(file.splitlines()) for file in files} == {50_000, ROWS - 50_000}
