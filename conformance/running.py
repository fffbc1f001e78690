"""One suite in an environment of its own: made from its source distribution, and run with tidegate or without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from conformance.comparing import Result, Results, results_of
from conformance.programs import AMBIENT

ROOT = Path(__file__).parents[1]
PLUGIN = Path(__file__).parent / "plugin"
TOOLS = ("pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0", "pytest-xdist==3.8.0")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
AMBIENT_OF_SUITES = (*AMBIENT, "SUITE_")
"""Prefixes of variables that would change what a suite does, or name an account."""


class Suite(NamedTuple):
    """One SDK's own tests. `mocked` is `folder fixture`: of that folder, only the tests with that fixture are run.

    `test_seconds` bounds one test, `seconds` a whole run. `left_out` says what is not run, and why. `infers` is False
    where no test asks a model anything: such a suite can only show that what is none of ours passes through.
    """

    name: str
    package: str
    version: str
    extras: str
    needs: tuple[str, ...]
    arguments: tuple[str, ...]
    left_out: str
    source: str
    mocked: str = ""
    infers: bool = True
    test_seconds: int = 60
    seconds: int = 1800


class Run(NamedTuple):
    """What one run of a suite came to; `seen` and `governed` count calls, `ended` says how the process did."""

    results: Results
    seen: int
    governed: int
    seconds: float
    ended: str


class Place:
    """Where one suite lives: `folder` is its environment."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        self.suite = suite
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.tree = folder / "sdist" / f"{suite.package.replace('-', '_')}-{suite.version}"

    def prepare(self) -> None:
        """Makes the environment, unless it is there as the suite's row has it."""
        suite = self.suite
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        wanted = repr((sys.version, str(ROOT), ours, suite.version, suite.extras, suite.needs, TOOLS))
        stamp = self.folder / "ready"
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        check([sys.executable, "-m", "venv", str(self.folder)])
        self.pip("install", "--upgrade", "pip")
        # A source distribution is built to learn its name: its own build requirements are fetched for that.
        target = self.folder / "sdist"
        exact = f"{suite.package}=={suite.version}"
        self.pip("download", "--no-binary", suite.package, "--no-deps", "--dest", str(target), exact)
        with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
            archive.extractall(target, filter="data")
        self.pip("install", f"{self.tree}{suite.extras}", *suite.needs, *TOOLS, "--editable", str(ROOT))
        stamp.write_text(wanted)

    def pip(self, *arguments: str) -> None:
        """Runs this environment's pip."""
        check([str(self.python), *PIP, *arguments])

    def run(self, mode: str, jobs: int, tests: Sequence[str] = ()) -> Run:
        """Runs the suite, or some tests of it alone; `mode` is `without` or `governed`."""
        suite, out = self.suite, self.folder / "runs" / (f"{mode}-again" if tests else mode)
        shutil.rmtree(out, ignore_errors=True)
        (out / "counts").mkdir(parents=True)
        pytest = [str(self.python), "-m", "pytest", "-p", "suite_witness", "-p", "no:cacheprovider", "--quiet"]
        pytest += ["--timeout", str(suite.test_seconds), "-n", str(jobs)]
        began = time.monotonic()
        ended = finish(
            [*pytest, *(_options(suite.arguments) if tests else suite.arguments), *tests],
            cwd=self.tree,
            env=self.environment(mode, out),
            log=out / "log",
            seconds=suite.seconds,
        )
        counts = [json.loads(path.read_text()) for path in (out / "counts").glob("*.json")]
        return Run(
            results_of(out / "outcomes.jsonl"),
            sum(each["seen"] for each in counts),
            sum(each["governed"] for each in counts),
            time.monotonic() - began,
            ended,
        )

    def alone(self, tests: Collection[str]) -> tuple[Results, Results]:
        """Runs each of the tests in a process of its own, without tidegate and with it."""
        both: tuple[dict[str, Result], dict[str, Result]] = ({}, {})
        for test in tests:
            for results, mode in zip(both, ("without", "governed"), strict=True):
                results.update(self.run(mode, 0, [test]).results)
        return both

    def environment(self, mode: str, out: Path) -> dict[str, str]:
        """The variables of a run: this machine's own, but for those that name accounts and servers."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(AMBIENT_OF_SUITES)}
        kept |= {"PYTHONPATH": str(PLUGIN), "SUITE_OUTCOMES": str(out / "outcomes.jsonl")}
        kept |= {"SUITE_COUNTS": str(out / "counts"), "SUITE_MOCKED": self.suite.mocked}
        return kept | ({"SUITE_GOVERNED": "1"} if mode == "governed" else {})


def _options(arguments: Iterable[str]) -> list[str]:
    """The options among pytest's arguments, without the paths: `-o name=value` and its like are pairs."""
    given, options = list(arguments), []
    for place, each in enumerate(given):
        if each in ("-o", "-p"):
            options += given[place : place + 2]
    return options


def check(command: list[str]) -> None:
    """Runs a command that must succeed; what it says is shown where it does not."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}\n{' '.join(command)}: exit code {done.returncode}")


def finish(command: list[str], *, cwd: Path, env: dict[str, str], log: Path, seconds: float) -> str:
    """Runs a command to its end, or ends it and what it started; returns how it ended."""
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=output, stderr=output, start_new_session=True)
        try:
            return f"exit code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
