"""Plugin of pytest: `--tidegate` governs the LLM calls of a test run and sums them up at its end.

While it is off, it imports nothing else of tidegate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidegate.core.events import Event
    from tidegate.testing import Simulator

SHOWN_WAITS = 10
"""Tests listed with their waits beside `--durations`. Chosen: few suffice to see which tests share a limit."""

# Counts of a process that workers hand to their controller.
COUNTS = ("calls", "answered", "given_up", "absorbed", "waits", "waited")
NAME = "tidegate-governance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini line that switch the plugin on."""
    group = parser.getgroup("tidegate", "LLM calls at the provider's true limit")
    group.addoption("--tidegate", action="store_true", help="govern the LLM calls of the tests and sum them up")
    parser.addini("tidegate", "govern the LLM calls of the tests, as --tidegate does", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--tidegate") or config.getini("tidegate"):
        config.pluginmanager.register(GovernedTests(config), NAME)


@pytest.fixture
def tidegate_simulator() -> Iterator[Simulator]:
    """Simulated provider on loopback, started with the default scenario and closed after the test."""
    from tidegate.testing import Simulator

    with Simulator() as simulator:
        yield simulator


class GovernedTests:
    """Counts of a governed test run: those of this process, and those that workers of xdist hand over."""

    def __init__(self, config: pytest.Config) -> None:
        import tidegate
        from tidegate.transports.governance import Installation

        # A `conftest.py` may have installed it for good.
        self._installed_before = Installation.binding is not None
        tidegate.install()
        self._config = config
        self._lock = threading.Lock()
        self._waits = 0
        self._waited = 0.0
        self._workers: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._lost = 0
        self._tests: dict[str, float] = {}
        # What bound each key in a worker, as text.
        self._bounds: list[str] = []
        self._unsubscribe = tidegate.registry().subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        from tidegate.core.events import RequestWaited

        if isinstance(event, RequestWaited):
            with self._lock:
                self._waits += 1
                self._waited += event.waited

    def _own(self) -> dict[str, float]:
        import tidegate

        keys = tidegate.registry().snapshot().keys.values()
        counts = {name: float(sum(getattr(key, name) for key in keys)) for name in COUNTS[:4]}
        return {**counts, "waits": self._waits, "waited": self._waited}

    def _own_bounds(self) -> list[str]:
        import tidegate

        keys = tidegate.registry().snapshot().keys.values()
        return [f"{key.key}: {text}" for key in keys if (text := key.binding_text)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Note the waits of the test for its reports."""
        item.stash[_BEFORE] = self._waited
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Give each report the seconds that the calls of its phase waited."""
        report = yield
        before, item.stash[_BEFORE] = item.stash[_BEFORE], self._waited
        report.tidegate_waited = self._waited - before
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if waited := getattr(report, "tidegate_waited", 0.0):
            self._tests[report.nodeid] = self._tests.get(report.nodeid, 0.0) + waited

    def pytest_sessionfinish(self) -> None:
        """Hand the counts of a worker of xdist to its controller."""
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["tidegate"] = self._own()
            output["tidegate_bounds"] = self._own_bounds()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of a worker of xdist that ended."""
        counts = getattr(node, "workeroutput", {}).get("tidegate")
        if counts is None:
            self._lost += 1
            return
        for name in COUNTS:
            self._workers[name] += counts[name]
        self._bounds += node.workeroutput["tidegate_bounds"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the totals of the run and, beside `--durations`, the tests whose calls waited longest."""
        own = self._own()
        total = {name: own[name] + self._workers[name] for name in COUNTS}
        terminalreporter.section("tidegate")
        terminalreporter.line(
            f"{total['calls']:.0f} calls, {total['answered']:.0f} answered, {total['given_up']:.0f} given up, "
            f"{total['absorbed']:.0f} refusals retried, {total['waits']:.0f} waits of {total['waited']:.1f} s in all"
        )
        for line in [*self._own_bounds(), *self._bounds][:SHOWN_WAITS]:
            terminalreporter.line(line)
        if self._lost:
            terminalreporter.line(
                f"counts incomplete: workers that ended without theirs: {self._lost}; the totals leave them out"
            )
        if self._config.getoption("durations", None) is not None:
            longest = sorted(self._tests.items(), key=lambda each: -each[1])[:SHOWN_WAITS]
            for name, waited in longest:
                terminalreporter.line(f"{waited:.2f}s waiting  {name}")

    def pytest_unconfigure(self) -> None:
        """Undo the installation at the end of the run, unless it was there before."""
        import tidegate

        self._unsubscribe()
        if not self._installed_before:
            tidegate.uninstall()


_BEFORE = pytest.StashKey[float]()
