"""`tidegate serve`: the server begins, names its URL, shows real programs, and refuses what is not safe."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import tidegate
from tests.cli.running import TIDEGATE, environ
from tests.relief import relieved_after
from tests.warm import WarmProcess
from tidegate.admission import hooks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli.commands import app
from tidegate.server.app import bind, names_of
from tidegate.testing import Limit, Scenario, Simulator

PATIENCE = 300.0
"""Seconds after which a server that does not answer fails the test; no test is near it."""


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, ["serve", *words])
    assert done.exit_code == 2, done.output
    return done.output


@contextmanager
def served(below: Path, *words: str) -> Iterator[tuple[str, str, str]]:
    """A server whose runs are below a folder: its URL, its token, and what it said before."""
    env = environ() | {"TMPDIR": str(below)}
    process = WarmProcess(
        [*TIDEGATE[1:], "serve", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            found = re.search(r"page ready: (http://\S+/)#(\S+)$", line.rstrip())
            if found:
                yield found[1], found[2], said
                break
        else:
            pytest.fail(said)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def limits(url: str, token: str) -> dict[str, Any]:
    answer = httpx.get(f"{url}api/limits", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    return dict(answer.json())


def test_a_public_address_is_refused() -> None:
    said = refused("--host", "192.0.2.1")
    assert "host" in said
    assert "--unsafe-public" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_all_addresses_at_once_are_refused_also_with_the_flag(host: str) -> None:
    for flag in ((), ("--unsafe-public",)):
        assert "it must be one address" in refused("--host", host, *flag)


def test_an_address_of_another_machine_is_refused() -> None:
    assert "not available" in refused("--host", "192.0.2.1", "--unsafe-public")


def test_a_missing_extra_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no uvicorn', name='uvicorn')")
    env = environ() | {"PYTHONPATH": os.pathsep.join((str(tmp_path), environ().get("PYTHONPATH", "")))}
    done = subprocess.run([*TIDEGATE, "serve"], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr == ("tidegate: page not available: uvicorn is not installed; run: pip install 'tidegate[ui]'\n")


@pytest.mark.parametrize(
    ("port", "host", "names"),
    [
        (4780, "127.0.0.1", {"127.0.0.1:4780", "localhost:4780", "[::1]:4780"}),
        (80, "::1", {f"{name}{end}" for name in ("127.0.0.1", "localhost", "[::1]") for end in ("", ":80")}),
        (4780, "192.0.2.7", {"192.0.2.7:4780"}),
    ],
)
def test_a_server_has_its_exact_names(port: int, host: str, names: set[str]) -> None:
    class Listener:
        def getsockname(self) -> tuple[str, int]:
            return host, port

    found = names_of(Listener(), host)  # type: ignore[arg-type]
    assert set(found) == names
    assert found[0].startswith(f"[{host}]" if ":" in host else host)


def test_pieces_of_an_answer_are_sent_at_once() -> None:
    """Nagle's algorithm is off on accepted connections: with it, a second small piece waits for the first one's ACK."""

    async def accepted() -> int:
        found = asyncio.get_running_loop().create_future()

        def look(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind("127.0.0.1", 0)
        async with await asyncio.start_server(look, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            value = int(await found)
            writer.close()
        return value

    assert asyncio.run(accepted()) != 0


def test_a_busy_port_is_passed_and_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with served(tmp_path, "--port", str(port)) as (url, _, said):
            chosen = int(url.rstrip("/").rpartition(":")[2])
            assert chosen > port
            assert f"port {port} is busy; using {chosen}" in said


def test_a_program_appears_with_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hooks, "on_new_queue", None)
    registry = RateLimitRegistry(tidegate.Settings())
    with served(tmp_path, "--port", "0") as (url, token, _):

        def look() -> dict[str, Any]:
            end = time.monotonic() + PATIENCE
            # A sample may find the file of the process before the row of the key is in it.
            while not ((found := limits(url, token)["runs"]) and found[0]["keys"]):
                assert time.monotonic() < end
            return dict(found[0])

        run = registry.execute("my-service", look)
        assert run["pid"] == os.getpid()
        (key,) = run["keys"]
        assert "my-service" in key["key"]
        assert (key["in_flight"], key["counts"]["calls"]) == (1, 1)


PROGRAM = """
import sys, tidegate, openai
tidegate.install()
with openai.OpenAI(api_key="k", base_url=sys.argv[1]) as client:
    for number in range(12):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
print("called", flush=True)
sys.stdin.read()
"""


def test_a_program_that_only_installs_appears_with_what_the_provider_counted(tmp_path: Path) -> None:
    env = environ() | {"TMPDIR": str(tmp_path), "OPENAI_BASE_URL": "", "TIDEGATE_SHARE": "off"}
    unannounced = Scenario(limiters=(Limit(limit=4, window=3600.0),), headers=False, retry_after="none")
    with Simulator(unannounced) as provider, relieved_after(1, provider, Limit(limit=4, window=0.5)):
        env["OPENAI_BASE_URL"] = provider.openai_url
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, provider.openai_url],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "called\n"
            counted = provider.truth().total
            with served(tmp_path, "--port", "0") as (url, token, _):
                end = time.monotonic() + PATIENCE
                while not (found := limits(url, token))["runs"]:
                    assert time.monotonic() < end
        finally:
            program.stdin.close()
            program.wait(PATIENCE)
            program.stdout.close()
    (run,) = found["runs"]
    (key,) = run["keys"]
    assert run["pid"] == program.pid
    assert (key["counts"]["calls"], key["counts"]["answered"]) == (12, counted.admitted)
    refused = sum(counted.refused.values())
    assert refused > 0
    assert (key["counts"]["refused"], key["refusals"]["absorbed"]["rate"]) == (refused, refused)
    kinds = {change["kind"] for change in found["changes"]}
    assert kinds & {"pace", "concurrency", "cooldown"}
    assert {change["key_id"] for change in found["changes"]} == {key["id"]}


def test_the_page_is_up_without_the_database_library() -> None:
    code = (
        "import sys, tidegate.server.app; "
        "print([name for name in ('sqlalchemy', 'pandas', 'openai') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "[]\n"
