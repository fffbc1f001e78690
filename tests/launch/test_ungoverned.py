"""Processes leave in the folder of their run which calls were not governed, in whatever way they end."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.cli.running import PYTHON, run
from tests.launch.plugin import install_plugin
from tidegate.admission.hooks import REFUSED, SOCKET
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.runs import Ungoverned, read_ungoverned
from tidegate.launch.totals import Folder


def seen(folder: Path) -> Ungoverned:
    return read_ungoverned(folder, Folder(folder).totals().hosts)


def test_host_counts_of_a_process_and_its_fork_add_up(tmp_path: Path) -> None:
    counts = ProcessCounters(str(tmp_path))
    for _ in range(3):
        counts.count_host("a.example")
    child = os.fork()
    if not child:
        counts.forked()
        counts.count_host("a.example")
        os._exit(0)
    os.waitpid(child, 0)
    counts.count_host("b.example")
    found = seen(tmp_path)
    assert (dict(found.hosts), found.others, found.calls) == ({"a.example": 4, "b.example": 1}, 0, 5)


def test_host_counts_of_sessions_and_of_refused_requests_are_no_calls(tmp_path: Path) -> None:
    counts = ProcessCounters(str(tmp_path))
    for host in ("api.example", f"{SOCKET}api.example", f"{SOCKET}api.example", f"{REFUSED}api.example"):
        counts.count_host(host)
    found = seen(tmp_path)
    assert (found.hosts, found.sockets, found.calls) == ({"api.example": 1}, {"api.example": 2}, 1)
    assert found.refused == {"api.example": 1}


def test_host_counts_of_many_hosts_are_bounded(tmp_path: Path) -> None:
    counts = ProcessCounters(str(tmp_path))
    for number in range(5000):
        counts.count_host(f"h{number}.example")
    found = seen(tmp_path)
    assert 10 < len(found.hosts) < 1000
    assert (found.others, found.calls) == (5000 - len(found.hosts), 5000)


def test_host_counts_without_a_folder_do_not_fail(tmp_path: Path) -> None:
    ProcessCounters(str(tmp_path / "gone")).count_host("a.example")
    assert seen(tmp_path).calls == 0


def test_run_program_that_touches_tidegate_below_a_plugin_is_governed(tmp_path: Path) -> None:
    install_plugin(tmp_path)
    code = "import tidegate; tidegate.registry(); import httpx2; print(hasattr(httpx2.Client.send, '__wrapped__'))"
    done = run(PYTHON, "-c", code, cwd=tmp_path)
    assert (done.out, len(done.lines)) == ("True\n", 1)
    assert "ran ungoverned" not in done.last


def test_run_program_that_ends_ungoverned_says_so_at_the_end(tmp_path: Path) -> None:
    """Also where the program is killed, and where the text at the start has long scrolled away."""
    (tmp_path / "tidegate_sick.py").write_text(
        "import sys, tidegate.transports.install\n"
        "def install(): raise RuntimeError('no room')\n"
        "tidegate.transports.install.install = install\n"
    )
    done = run(PYTHON, "-c", "import tidegate_sick, httpx2, requests, os; os.kill(os.getpid(), 9)", cwd=tmp_path)
    said = [line for line in done.lines if "no room" in line]
    assert len(said) == 2
    why = "the installation failed (RuntimeError: no room); it is repeated at the next import of an HTTP library"
    assert said[0].endswith(f" not governed: {why}")
    assert said[1] == done.last
    assert "no LLM call was governed; some processes ran ungoverned: " in done.last


def test_run_that_saw_no_call_names_what_cannot_be_governed_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "curl_cffi.py").write_text("")
    done = run(PYTHON, "-c", "import curl_cffi, urllib.request", cwd=tmp_path)
    command = shlex.join([PYTHON, "-c", "import curl_cffi, urllib.request"])
    assert done.last == (
        f"tidegate: no LLM call was seen; curl_cffi cannot be governed: `tidegate run --gateway {command}` governs it "
        "where it reads the server from a base-URL variable"
    )


@pytest.mark.parametrize("module", ["dashscope", "writerai"])
def test_run_that_saw_no_call_names_an_sdk_that_is_governed_at_its_own_hosts_alone(tmp_path: Path, module: str) -> None:
    (tmp_path / f"{module}.py").write_text("import httpx")
    done = run(PYTHON, "-c", f"import {module}", cwd=tmp_path)
    assert done.last == (
        f"tidegate: no LLM call was seen; {module}: governed at its own hosts; its paths are inference paths nowhere "
        "else, so another server (loopback, a private gateway) passes by unless register_provider names it"
    )


def test_run_with_a_governed_stack_names_no_module_of_many_uses(tmp_path: Path) -> None:
    done = run(PYTHON, "-c", "import httpx, urllib3, urllib.request", cwd=tmp_path)
    assert done.last == "tidegate: no LLM call was seen; `tidegate doctor` lists what is governed"
