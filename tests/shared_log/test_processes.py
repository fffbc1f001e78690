"""Real processes at one key: by default they share its limits, and the setting turns that off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome
from tidegate.testing import Limit, Scenario, SimulatorProcess

WORKER = """
import asyncio, json, sys
import httpx2, tidegate

tidegate.install()
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}

async def main(url, calls):
    headers = {"authorization": "Bearer k"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=120) as client:
        async def ask():
            (await client.post("/chat/completions", json=BODY)).raise_for_status()
        await ask()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(ask() for _ in range(calls)))
        key, = tidegate.registry().snapshot().keys.values()
        print(json.dumps([key.calls, key.refused, key.members, key.shared_through, key.share_lost]), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

BURST, RATE = 10.0, 20.0
"""Calls that the provider admits at once, and each second."""

SCENARIO = Scenario(dialect="openai", limiters=(Limit(limit=RATE * 6.0, window=6.0, burst=BURST),))


@contextmanager
def workers(count: int, url: str, calls: int, share: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that each made one call, and wait for a line."""
    environment = {**os.environ, "TIDEGATE_SHARE": share, "TIDEGATE_STATUS": "off"}
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER, url, str(calls)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert line(process) == "ready"
        yield started


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def reports(processes: Sequence[subprocess.Popen[str]]) -> list[list[Any]]:
    """Return what each process tells at its end; all stay alive until the last has told it."""
    found = [json.loads(line(process)) for process in processes]
    go(processes)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "shared"
    path.mkdir(mode=0o700)
    return str(path)


def test_processes_at_one_key_share_its_limits(folder: str) -> None:
    with SimulatorProcess(SCENARIO) as simulator, workers(4, simulator.openai_url, 15, folder) as four:
        simulator.reset()
        go(four)
        found = reports(four)
        truth = simulator.truth()
    assert [calls for calls, *_ in found] == [16] * 4
    assert {(members, through, lost) for *_, members, through, lost in found} == {(4, "file", "")}
    # How few are refused depends on how soon processes hear each other: `tests/laws/test_sharing_laws.py` says that.
    assert truth.total.answered == 60


def test_the_calls_of_a_killed_process_are_given_up_by_the_others(folder: str) -> None:
    slots = Scenario(dialect="openai", limiters=(Limit(kind="slots", limit=4),), latency=0.5)
    with SimulatorProcess(slots) as simulator, workers(3, simulator.openai_url, 12, folder) as three:
        go(three)
        os.kill(three[0].pid, signal.SIGKILL)
        three[0].wait()
        found = reports(three[1:])
    assert [calls for calls, *_ in found] == [13, 13]
    assert {members for _, _, members, *_ in found} == {2}


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    code = "import tidegate; tidegate.registry()"
    environment = {**os.environ, "TIDEGATE_SHARE": str(open_to_all)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr.count("limits not shared") == 1
    assert "is open to other users (mode 0777); this process decides alone" in ended.stderr


def test_the_variable_holds_for_settings_that_do_not_name_it(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    def place(registry: RateLimitRegistry) -> str:
        permit = registry.try_admit(Key("openai", "https://api.openai.com", scope="m"))
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.OK))
        return next(iter(registry.snapshot().keys.values())).shared_through

    monkeypatch.setenv("TIDEGATE_SHARE", "off")
    assert place(RateLimitRegistry(tidegate.Settings(max_wait=1))) == ""
    assert place(RateLimitRegistry(tidegate.Settings(max_wait=1, share=folder))) == "file"
    monkeypatch.setenv("TIDEGATE_SHARE", folder)
    assert place(RateLimitRegistry(tidegate.Settings(max_wait=1))) == "file"
    assert place(RateLimitRegistry(clock=lambda: 1.0)) == ""


INTERRUPTED = """
import signal
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome

registry, key = RateLimitRegistry(), Key("openai", "https://api.openai.com", scope="m")

def step():
    permit = registry.try_admit(key)
    if isinstance(permit, Permit):
        registry.settle(permit, Outcome(Kind.OK))

armed, interrupts = False, 0

def interrupt(*given):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.0017)
while interrupts < 500:
    try:
        armed = True
        while True:
            step()
    except KeyboardInterrupt:
        interrupts += 1
signal.setitimer(signal.ITIMER_REAL, 0)
step()
print("ended")
"""


def test_an_interrupt_at_any_place_leaves_no_lock_held(folder: str) -> None:
    environment = {**os.environ, "TIDEGATE_SHARE": folder, "TIDEGATE_STATUS": "off"}
    # A process whose lock stays held never ends.
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "ended"), ended.stderr
