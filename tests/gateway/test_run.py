"""`tidegate run --gateway`: every program of the run is governed once, at the key that it has without a gateway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import venv
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.cli.running import PYTHON, RUN, TIDEGATE, environ, run
from tests.effort import some
from tests.gateway.conftest import running
from tests.gateway.test_proxy import eventually
from tests.gateway.upstream import PATIENCE, Upstream
from tidegate.testing import Limit, Scenario, Simulator

ASK = """
import importlib, json, os, sys
stack, url = sys.argv[1], os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
headers = {"authorization": "Bearer sk-1"}
if stack == "aiohttp":
    import aiohttp, asyncio

    async def ask():
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
            return answer.status, str(answer.url)

    status, asked = asyncio.run(ask())
elif stack == "openai":
    import openai

    answer = openai.OpenAI(api_key="sk-1").chat.completions.with_raw_response.create(**body)
    status, asked = answer.status_code, str(answer.http_request.url)
else:
    answer = importlib.import_module(stack).post(url, json=body, headers=headers)
    status, asked = answer.status_code, str(answer.request.url)
import tidegate

keys = [str(key) for key in tidegate.registry().snapshot().keys]
print(json.dumps({"status": status, "asked": asked, "keys": keys}))
"""

BARE = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
for number in range(int(sys.argv[1])):
    headers = {"authorization": "Bearer sk-1", "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    assert urllib.request.urlopen(request).status == 200
"""


@pytest.fixture(scope="module")
def provider() -> Simulator:
    with Simulator(Scenario(limiters=(Limit(limit=6, window=1.0),))) as provider:
        yield provider


@pytest.mark.parametrize("stack", some(["httpx", "aiohttp"], ["openai", "requests"]))
def test_a_python_program_has_the_key_that_it_has_without_a_gateway(provider: Simulator, stack: str) -> None:
    env = environ(OPENAI_BASE_URL=provider.openai_url, TIDEGATE_DIGEST_KEY="k")
    without, within = (run(*words, PYTHON, "-c", ASK, stack, env=env) for words in ((), ("--gateway",)))
    assert without.code == within.code == 0, within.lines
    assert json.loads(within.out) == json.loads(without.out)
    assert json.loads(within.out)["asked"] == f"{provider.openai_url}/chat/completions"
    assert len(json.loads(within.out)["keys"]) == 1
    assert within.last.startswith("tidegate: 1 calls, 1 answered") or within.last.startswith("tidegate: 1 call,")


def test_other_programs_are_governed_and_counted(provider: Simulator, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    env = environ(OPENAI_BASE_URL=provider.openai_url)
    done = run("--report", str(report), "--gateway", PYTHON, "-S", "-E", "-c", BARE, "14", env=env)
    assert done.code == 0, done.lines
    assert done.last.startswith("tidegate: 14 calls, 14 answered, 0 given up")
    (key,) = json.loads(report.read_text())["keys"]
    assert key["key"].startswith(f"compatible · {provider.url.removeprefix('http://')}")


def test_a_python_without_tidegate_goes_through_the_gateway(provider: Simulator, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    env = environ(OPENAI_BASE_URL=provider.openai_url)
    del env["PYTHONPATH"]
    done = run("--gateway", str(tmp_path / "bare" / "bin" / "python"), "-c", BARE, "2", env=env)
    assert done.code == 0, done.lines
    assert done.lines[0].endswith("; those that read a base-URL variable go through the gateway")
    assert done.last.startswith("tidegate: 2 calls, 2 answered")


def test_a_python_program_and_its_gateway_share_the_limit(provider: Simulator, tmp_path: Path) -> None:
    both = f"{PYTHON} -c '{ASK}' openai && {PYTHON} -S -E -c '{BARE}' 3"
    script = tmp_path / "both.sh"
    script.write_text(both)
    report = tmp_path / "report.json"
    env = environ(OPENAI_BASE_URL=provider.openai_url, TIDEGATE_SHARE=str(tmp_path))
    done = run("--report", str(report), "--gateway", "sh", str(script), env=env)
    assert done.code == 0, done.lines
    (key,) = json.loads(report.read_text())["keys"]
    assert key["calls"] == 4


def test_a_printed_line_leads_to_the_server_of_the_variable(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GROQ_BASE_URL=https://groq.example\n")
    base = f"{upstream.url}/v1"
    with running([], tmp_path, "# GROQ_BASE_URL", OPENAI_BASE_URL=base) as gateway:
        assert f"export OPENAI_BASE_URL={gateway.to(base)}" in gateway.printed
        assert f"export ANTHROPIC_BASE_URL={gateway.to('https://api.anthropic.com')}" in gateway.printed
        assert gateway.printed[-1].endswith(f"is left as it is: {tmp_path / '.env'} sets it")
        assert httpx.get(f"{gateway.to(base)}/models", trust_env=False).status_code == 200
    assert [each.line for each in upstream.received] == ["GET /v1/models HTTP/1.1"]


def test_learned_limits_of_the_gateway_are_saved(provider: Simulator, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    env = environ(OPENAI_BASE_URL=provider.openai_url)
    assert run("--state", str(state), "--gateway", PYTHON, "-S", "-E", "-c", BARE, "2", env=env).code == 0
    assert "compatible" in state.read_text()


def test_a_server_of_a_variable_that_python_does_not_read_is_governed(upstream: Upstream, tmp_path: Path) -> None:
    code = BARE.replace("OPENAI_BASE_URL", "OPENAI_API_BASE_URL")
    done = run("--gateway", PYTHON, "-S", "-E", "-c", code, "1", env=environ(OPENAI_API_BASE_URL=f"{upstream.url}/v1"))
    assert done.last.startswith("tidegate: 1 call")


def test_a_silent_run_has_a_gateway(provider: Simulator) -> None:
    env = environ(OPENAI_BASE_URL=provider.openai_url, TIDEGATE_LOG="off")
    done = run("--gateway", PYTHON, "-S", "-E", "-c", BARE, "2", env=env)
    assert (done.code, done.lines) == (0, [])


SHOW = "import os; print(os.environ.get('TIDEGATE_GATEWAY'), os.environ.get('OPENAI_BASE_URL'))"


def test_no_gateway_changes_nothing() -> None:
    for words in ((), ("--no-gateway",)):
        assert run(*words, PYTHON, "-c", SHOW).out == "None None\n"


def test_a_run_inside_a_run_uses_the_outer_gateway() -> None:
    code = f"import subprocess, sys; {SHOW}; subprocess.run([*{RUN!r}, '--gateway', sys.executable, '-c', {SHOW!r}])"
    done = run("--gateway", PYTHON, "-uc", code)
    outer, inner = done.out.splitlines()
    assert outer == inner
    assert outer.startswith("http://127.0.0.1:")
    assert outer.split()[1] == f"{outer.split()[0]}/api.openai.com/v1"


def test_a_file_that_names_a_server_is_said(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=https://mine.example/v1\n")
    done = run("--gateway", PYTHON, "-c", SHOW, cwd=tmp_path)
    assert done.out.endswith(" None\n")
    assert done.lines[0].startswith(f"tidegate: OPENAI_BASE_URL left unchanged: {tmp_path / '.env'} sets it; ")


def test_a_missing_extra_is_said(tmp_path: Path) -> None:
    """A package that cannot be found, as where the extra is not installed."""
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho ran $TIDEGATE_GATEWAY\n")
    node.chmod(0o755)
    hidden = [TIDEGATE[0], "-c", "import sys; sys.modules['uvicorn'] = None; " + TIDEGATE[2]]
    said = "gateway not available: uvicorn is not installed; run: pip install 'tidegate[ui]'"
    for words, code, out in (((), 0, "ran\n"), (("--gateway",), 1, ""), (("--no-gateway",), 0, "ran\n")):
        done = subprocess.run([*hidden, "run", *words, str(node)], env=environ(), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (code, out), done.stderr
        assert (said in done.stderr) is (words != ("--no-gateway",))


WAIT = "import os, sys; print(os.environ['TIDEGATE_GATEWAY'], flush=True); sys.stdin.read()"


def gateways(children: Path) -> list[int]:
    """The processes of this list that are gateways."""
    found = []
    for pid in map(int, children.read_text().split()):
        with suppress(OSError):
            if b"tidegate.server.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_gateway_ends_with_its_run_however_that_ends(upstream: Upstream) -> None:
    env = environ(OPENAI_BASE_URL=f"{upstream.url}/v1")
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(
            [*RUN, "--gateway", sys.executable, "-S", "-E", "-c", WAIT],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            root = process.stdout.readline().strip()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            if not children.exists():
                pytest.fail("no list of child processes: the kernel lacks /proc/PID/task/TID/children")
            # The kernel may leave a child out of the list while another one begins or ends.
            until = time.monotonic() + PATIENCE
            while not (found := gateways(children)) and time.monotonic() < until:
                pass
            (gateway,) = found
            assert root.rpartition("/")[2].encode() not in Path(f"/proc/{gateway}/cmdline").read_bytes()
            process.send_signal(number)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
            assert eventually(partial(_has_ended, gateway))


def _has_ended(pid: int) -> bool:
    try:
        # One that nobody waits for has ended, too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
