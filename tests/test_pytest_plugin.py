"""The plugin of pytest: off by default, totals of a run in one process and over workers, waits, the fixture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.testing import Simulator, SimulatorProcess
from tidegate.transports.stub_servers import is_stub

pytest_plugins = ["pytester"]

TESTS = """
import pytest, httpx

@pytest.mark.parametrize("n", range(3))
def test_ask(n, tidegate_simulator):
    body = {"model": "m", "messages": [{"role": "user", "content": "2"}]}
    for _ in range(2):
        url = tidegate_simulator.url + "/v1/chat/completions"
        answer = httpx.post(url, json=body, headers={"authorization": "Bearer k"})
        assert answer.status_code == 200
"""
OFF = """
import sys
def test_imports():
    found = {name for name in sys.modules if name.startswith("tidegate.")}
    assert found == {"tidegate._version", "tidegate.pytest_plugin"}
"""


over_workers = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project beside an installed distribution with the entry point."""
    folder = Path(pytester.mkdir("installed"))
    info = folder / "governed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: governed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ntidegate = tidegate.pytest_plugin\n")
    source = Path(__file__).parents[1] / "src"
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{source}")
    return pytester


@pytest.fixture
def governed(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return such a project that loads this plugin and xdist alone: to find all installed ones takes half a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "tidegate.pytest_plugin,xdist.plugin")
    return project


def test_off_it_imports_nothing_else_of_tidegate(project: pytest.Pytester) -> None:
    project.makepyfile(OFF)
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "given up" not in result.stdout.str()


def test_a_package_that_is_imported_before_pytest_gives_no_warning(project: pytest.Pytester) -> None:
    (record,) = project.path.glob("installed/*.dist-info")
    (record / "RECORD").write_text("tidegate/__init__.py,,\ntidegate/pytest_plugin.py,,\n")
    project.makepyfile("def test_one(): pass")
    main = "import sys, tidegate, pytest; sys.exit(pytest.main(['-W', 'error']))"
    result = project.run(sys.executable, "-c", main)
    result.assert_outcomes(passed=1)
    assert "PytestAssertRewriteWarning" not in result.stdout.str() + result.stderr.str()


@over_workers
def test_the_end_has_the_totals_once(governed: pytest.Pytester, workers: tuple[str, ...]) -> None:
    governed.makepyfile(TESTS)
    result = governed.runpytest_subprocess("--tidegate", *workers)
    result.assert_outcomes(passed=3)
    assert re.findall(r"\d+ calls, .* given up", result.stdout.str()) == ["6 calls, 6 answered, 0 given up"]


def test_an_ini_line_switches_it_on(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ntidegate = true\n")
    project.makepyfile(TESTS)
    project.runpytest_subprocess().stdout.fnmatch_lines(["6 calls, 6 answered, 0 given up, 0 refusals retried*"])


WAITING = """
import httpx
from tidegate.testing import Limit, Scenario, Simulator

def test_waits():
    body = {"model": "m", "messages": [{"role": "user", "content": "2"}]}
    limit = Limit(limit=120, window=60, burst=1)
    with Simulator(Scenario(limiters=(limit,))) as provider:
        for _ in range(4):
            url = provider.url + "/v1/chat/completions"
            assert httpx.post(url, json=body, headers={"authorization": "Bearer k"}).status_code == 200

def test_sends_nothing():
    pass
"""

REFUSED = """
import httpx
from tidegate.testing import Fault, Scenario, Simulator

def test_refusals():
    body = {"model": "m", "messages": [{"role": "user", "content": "2"}]}
    with Simulator(Scenario(faults=(Fault(kind="status", nth=(2, 4), status=429),))) as provider:
        for _ in range(4):
            url = provider.url + "/v1/chat/completions"
            assert httpx.post(url, json=body, headers={"authorization": "Bearer k"}).status_code == 200
"""

CONFTEST = """
import tidegate
tidegate.install()
def pytest_unconfigure(config):
    from tidegate.transports.governance import Installation
    print("still installed:", Installation.binding is not None)
"""

CRASH = """
import os
def test_crash():
    os._exit(3)
"""


def test_refusals_that_were_retried_are_counted(governed: pytest.Pytester) -> None:
    governed.makepyfile(REFUSED)
    out = governed.runpytest_subprocess("--tidegate").stdout.str()
    assert "4 calls, 4 answered, 0 given up, 2 refusals retried" in out


def test_an_installation_of_the_conftest_outlives_the_run(governed: pytest.Pytester) -> None:
    governed.makeconftest(CONFTEST)
    governed.makepyfile(OFF.replace("== {", ">= {"))
    out = governed.runpytest_subprocess("--tidegate", "-s").stdout.str()
    assert "still installed: True" in out


def test_counts_of_a_worker_that_died_are_said_to_be_missing(governed: pytest.Pytester) -> None:
    governed.makepyfile(CRASH)
    result = governed.runpytest_subprocess("--tidegate", "-n", "1", "--max-worker-restart", "0")
    result.stdout.fnmatch_lines(["counts incomplete: *"])


@over_workers
def test_the_longest_waits_stand_beside_the_durations(governed: pytest.Pytester, workers: tuple[str, ...]) -> None:
    governed.makepyfile(WAITING)
    out = governed.runpytest_subprocess("--tidegate", "--durations", "3", *workers).stdout.str()
    assert re.search(r"^\d+\.\d\ds waiting  .*::test_waits$", out, re.M)
    assert "test_sends_nothing" not in "".join(re.findall(r".* waiting .*", out))


STUB = """
import threading, http.server, httpx

class Refusing(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(429)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *facts):
        pass

def test_a_program_meets_a_429():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answer = httpx.post(f"http://127.0.0.1:{server.server_port}/v1/chat/completions", json={"model": "m"})
    server.shutdown()
    assert answer.status_code == 429
    assert "of max_wait = 2 s" in answer.headers["x-tidegate-reason"]
"""


def test_call_to_a_stub_server_of_a_test_ends_soon(governed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_MAX_WAIT", "30")
    governed.makepyfile(STUB)
    governed.runpytest_subprocess("--tidegate").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "0.0.0.0:8000", "[::]:80", "[::ffff:127.0.0.1]:80"],
)
def test_a_server_on_this_machine_is_a_stub_server(host: str) -> None:
    assert is_stub(f"http://{host}/v1")


@pytest.mark.parametrize(
    "host", ["192.168.1.20:8000", "10.0.0.5", "[fd00::1]", "vllm.localhost", "llm", "[::ffff:10.0.0.5]"]
)
def test_a_server_elsewhere_is_none(host: str) -> None:
    """A model server of the team, asked by an evaluation under pytest, has the whole `max_wait`."""
    assert not is_stub(f"http://{host}/v1")


ASKED = (
    "import sys; from tidegate.transports.stub_servers import is_stub; print([is_stub(url) for url in sys.argv[1:]])"
)


def asked_of_a_child(*urls: str) -> str:
    return subprocess.run([sys.executable, "-c", ASKED, *urls], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", [Simulator, SimulatorProcess])
def test_a_program_that_a_test_starts_tells_stub_servers_from_simulators(
    kind: type[Simulator] | type[SimulatorProcess],
) -> None:
    with kind() as simulator:
        url, other = simulator.url, simulator.url.replace("127.0.0.1", "localhost")
        assert asked_of_a_child(url, other, "http://127.0.0.1:9/v1") == "[False, False, True]\n"
    assert asked_of_a_child(url) == "[True]\n"
