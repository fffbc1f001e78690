"""The simulator as a process of its own: it starts, answers, changes, and never stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

import tidegate.errors
from tidegate.errors import ConfigurationError
from tidegate.testing import Limit, Scenario, SimulatorProcess

SOURCE = str(Path(tidegate.errors.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE}


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_answers_counts_changes_and_ends():
    scenario = Scenario(limiters=(Limit(limit=2, window=3600),), answers={"2+2?": "4"})
    with SimulatorProcess(scenario) as provider:
        pid = provider.pid
        with openai.OpenAI(base_url=provider.openai_url, api_key="key", max_retries=0) as client:
            assert client.responses.create(model="m", input="2+2?", user="row").output_text == "4"
            provider.configure(outage=3600)
            with pytest.raises(openai.InternalServerError):
                client.responses.create(model="m", input="2+2?")
            provider.configure(outages=(), answers={"2+2?": "five"})
            assert client.responses.create(model="m", input="2+2?").output_text == "five"
        with pytest.raises(ConfigurationError):
            provider.configure(scope="planet")
        truth = provider.truth()
        assert (truth.order, truth.total.refused) == (("row", "#3"), {"outage": 1})
        provider.reset()
        assert provider.truth().total.received == 0
    assert not exists(pid)
    assert provider.truth().total.received == 0
    provider.close()


def test_the_command_prints_its_url_and_ends_with_its_input():
    command = [sys.executable, "-m", "tidegate.testing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        process.stdin.write(b'{"port": 0, "scenario": {"latency": "0.5"}}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
        process.stdin.close()
        assert process.wait(300) == 0


def test_a_simulator_ends_when_its_parent_is_killed():
    code = (
        "from tidegate.testing import SimulatorProcess\n"
        "import sys\n"
        "provider = SimulatorProcess().start()\n"
        "print(provider.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as parent:
        pid = int(parent.stdout.readline())
        assert exists(pid)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 300
        while exists(pid) and not is_zombie(pid):
            assert time.monotonic() < deadline, "the simulator outlived its parent"
            time.sleep(0.01)


def is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
