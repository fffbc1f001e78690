"""`tidegate simulate` as a process: it serves what the flags say, and tells the truth when it is stopped."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import openai
import pytest

from tests.cli.running import environ
from tidegate.testing import Limit, Scenario

COMMAND = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "simulate"]


@contextmanager
def simulating(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the address that it printed; it is gone at the end whatever happens."""
    with subprocess.Popen(
        [*COMMAND, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environ(),
    ) as process:
        try:
            assert process.stdout is not None
            said = "".join(process.stdout.readline() for _ in range(5))
            found = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert found is not None, said
            lines = said.splitlines()
            # The whole line can be pasted into a shell.
            assert f"export OPENAI_BASE_URL={found[0]}/v1 OPENAI_API_KEY=any" in lines
            assert f"export ANTHROPIC_BASE_URL={found[0]} ANTHROPIC_API_KEY=any" in lines
            yield process, found[0]
        finally:
            process.kill()


def ask(url: str, model: str = "m") -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, trust_env=False).status_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_then_prints_what_happened(number: signal.Signals) -> None:
    with simulating("--dialect", "openai", "--rpm", "2") as (process, url):
        assert [ask(url) for _ in range(3)] == [200, 200, 429]
        process.send_signal(number)
        said, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")
    assert "Ground truth" in said
    last = next(line for line in said.splitlines() if line.split()[:1] == ["all"])
    assert last.split()[1:] == ["3", "2", "1", "0", "0", "1", "requests", "1"]


def test_brackets_in_the_name_of_a_model_are_printed_as_they_are() -> None:
    with simulating("--rpm", "5") as (process, url):
        assert ask(url, "[red]m[/x]") == 200
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")
    assert "[red]m[/x]" in said


def test_a_piped_table_is_as_wide_as_its_content() -> None:
    model = "a-model-with-a-long-name-" * 8
    with simulating("--rpm", "5") as (process, url):
        assert ask(url, model) == 200
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=300)
    assert model in said


def test_the_printed_address_is_what_the_sdk_needs() -> None:
    with simulating("--rpm", "5") as (_, url), openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        answer = client.chat.completions.with_raw_response.create(
            model="m", messages=[{"role": "user", "content": "hello"}]
        )
    assert answer.headers["x-ratelimit-limit-requests"] == "5"


def test_a_scenario_file_takes_the_place_of_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(Scenario(dialect="openai", limiters=(Limit(limit=1),)).to_json())
    with simulating("--scenario", str(path)) as (_, url):
        assert [ask(url), ask(url)] == [200, 429]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*COMMAND, f"--port={port}"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tidegate: port: {port} is not usable")
    assert done.stderr.count("\n") == 1
