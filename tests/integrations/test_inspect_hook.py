"""The hook in a real Inspect AI: `working_limit` with a queue, with the hook and without it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conformance.catalogue import FRAMEWORKS
from tidegate.testing import Distribution, Limit, Scenario, SimulatorProcess

pytestmark = pytest.mark.real

PATIENCE = 300.0
"""Seconds that one evaluation may take on a loaded machine."""

PROGRAM = """
import json, os, sys
import tidegate
if "install" in sys.argv: tidegate.install()
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.solver import generate
task = Task(dataset=[Sample(input=f"question {n}") for n in range(12)], solver=generate())
format = "json" if "json" in sys.argv else "eval"
(log,) = eval(task, model="openai/gpt-4o-mini", working_limit=4, display="none", log_dir="logs", log_format=format)
stored = read_eval_log(log.location)
samples = stored.samples
print(json.dumps({
    "status": stored.status,
    "limited": sum(each.limit is not None for each in samples),
    "answered": sum(bool(each.output.choices) for each in samples),
    "working": max(each.working_time for each in samples),
    "total": max(each.total_time for each in samples),
    "stored": stored.metadata.get("tidegate"),
    "returned": log.metadata.get("tidegate"),
    "governed": tidegate.registry().snapshot().calls,
}))
"""


def evaluate(folder: Path, *arguments: str, hook: str = "") -> dict[str, Any]:
    """Evaluate 12 samples, of which 2 are admitted at once and then one each second; return what the log says."""
    environment = next(each for each in FRAMEWORKS if each.name == "inspect_ai").environment
    environment.make()
    limit = Limit(limit=60, window=60, burst=2)
    with SimulatorProcess(Scenario(limiters=(limit,), latency=Distribution.constant(0.1))) as provider:
        variables = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "k", "TIDEGATE_INSPECT": hook}
        done = subprocess.run(
            [str(environment.bin / "python"), "-c", PROGRAM, *arguments],
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "NO_PROXY": "127.0.0.1", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, done.stderr
    assert "Exception calling hook" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_without_the_hook_the_queue_ends_samples(tmp_path: Path) -> None:
    found = evaluate(tmp_path, "install", hook="0")
    assert found["governed"] >= 12
    assert found["limited"] > 0
    assert found["working"] > 4.0
    assert found["stored"] is None


@pytest.mark.parametrize(
    ("arguments", "hook"), [(("install",), ""), (("json",), "1")], ids=["installed", "by the variable, a JSON log"]
)
def test_with_the_hook_no_wait_counts(tmp_path: Path, arguments: tuple[str, ...], hook: str) -> None:
    found = evaluate(tmp_path, *arguments, hook=hook)
    assert (found["status"], found["limited"], found["answered"]) == ("success", 0, 12)
    # One of twelve samples waits nine seconds or more: its share of the queue is no working time.
    assert found["total"] > 8.0
    assert found["working"] < 4.0
    assert found["returned"] == found["stored"]
    facts = found["stored"]
    assert (facts["calls"], facts["answered"], facts["given_up"]) == (12, 12, 0)
    assert facts["waited_seconds"] > 30.0
    assert facts["limits"][0]["limit"] == 60.0
