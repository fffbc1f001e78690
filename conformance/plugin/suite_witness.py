"""A pytest plugin: what became of each test, and, where told so, tidegate installed before any SDK is imported.

Loaded by `-p suite_witness`, which is early: before conftest files, and in the workers of pytest-xdist too. It stands
alone in this folder because the folder is put on the path of somebody else's test suite. Variables:

    SUITE_OUTCOMES   file for one JSON line a test: [node id, outcome, first line of the failure]
    SUITE_COUNTS     folder for one JSON file a process: calls that came to a patched method, calls governed
    SUITE_GOVERNED   where set, `tidegate.install()` is called
    SUITE_MOCKED     "folder fixture": of the tests in the folder, only those with the fixture are run
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WORSE = ("passed", "skipped", "xfailed", "xpassed", "failed", "error")
"""A test's phases come to the last of these that any of them came to."""

counts = {"seen": 0, "governed": 0}
_outcomes: dict[str, tuple[str, str]] = {}
_resolve = socket.getaddrinfo


def install() -> None:
    """Installs tidegate, and counts the calls that come to its patched methods and those that it governs."""
    from tidegate.transports import call
    from tidegate.transports.patches import Patches, Wrapper

    put, begin = Patches.put, call.HttpCall.__init__

    def counted(self: Patches, target: type | ModuleType, method: str, wrapper: Wrapper) -> bool:
        def seen(*call: Any) -> Any:
            counts["seen"] += 1
            return wrapper(*call)

        return put(self, target, method, seen)

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        counts["governed"] += 1
        begin(self, *args, **kwargs)

    Patches.put = counted  # type: ignore[method-assign]
    call.HttpCall.__init__ = begun  # type: ignore[method-assign]
    import tidegate

    tidegate.install()


def resolve_here(host: Any, *args: Any, **kwargs: Any) -> Any:
    """`socket.getaddrinfo` of a machine without a network: names of this machine and addresses only."""
    name = host.decode() if isinstance(host, bytes) else host
    if name and name != "localhost":
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    return _resolve(host, *args, **kwargs)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that would need a server."""
    folder, _, fixture = os.environ.get("SUITE_MOCKED", "").partition(" ")
    if not folder:
        return
    kept = [
        item for item in items if not item.nodeid.startswith(folder) or fixture in getattr(item, "fixturenames", ())
    ]
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes in one phase of a test."""
    outcome, why = outcome_of(report), ""
    if outcome in ("failed", "error"):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash.message if crash is not None else report.longrepr).strip().partition("\n")[0][:300]
    known = _outcomes.get(report.nodeid)
    if known is None or WORSE.index(outcome) > WORSE.index(known[0]):
        _outcomes[report.nodeid] = (outcome, why)


def outcome_of(report: pytest.TestReport) -> str:
    """What one phase of a test came to, one of `WORSE`."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed and report.when != "call":
        return "error"
    return report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes down what this process knows: its counts, and the outcomes where the reports are gathered."""
    folder = os.environ.get("SUITE_COUNTS")
    if folder:
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(counts))
    target = os.environ.get("SUITE_OUTCOMES")
    if target and not hasattr(session.config, "workerinput"):
        lines = [json.dumps([node, *rest]) for node, rest in _outcomes.items()]
        Path(target).write_text("".join(line + "\n" for line in lines))


if "SUITE_OUTCOMES" in os.environ:
    socket.getaddrinfo = resolve_here
    if os.environ.get("SUITE_GOVERNED"):
        install()
