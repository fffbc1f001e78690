"""Every framework at its defaults under `tidegate run`, against a provider that admits 120 requests a minute.

    python -m conformance.frameworks [--plain] [NAME ...]

Exit code 1 where a row was not answered or not right, where more than one request in 40 was refused, or where a
request went past the one key that all belong to. `--plain` runs the same without tidegate, to show what is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.common import table
from bench.environments import Environment
from conformance.catalogue import EXAMPLES, FRAMEWORKS, MODEL, Framework, rows
from conformance.outcomes import Outcome
from tidegate.testing import Call, Distribution, Limit, Scenario, SimulatorProcess, Truth, ideal_makespan

PER_MINUTE = 120
AT_ONCE = 20
"""What is left of the minute when a run begins, so that 40 rows have to wait; the key was used before."""

MOST_REFUSED_SHARE = 0.025
"""Share of the requests that may be refused: the one of 40 that finds an unknown limit."""

DEADLINE = 300.0
"""Seconds after which a run is ended: eight times the longest ideal."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, what it printed, and the `seconds` of its process."""

    exit_code: int
    output: str
    complaints: str
    seconds: float

    @property
    def governed(self) -> int:
        """The calls that `tidegate run` counted; 0 without it."""
        told = re.search(r"^tidegate: ([\d,]+) calls?, ", self.complaints, re.MULTILINE)
        return int(told[1].replace(",", "")) if told else 0


@dataclass(frozen=True, slots=True)
class Run:
    """One framework's run: what it says of itself, what the provider counted, and what it printed."""

    framework: Framework
    wanted: int
    outcome: Outcome | None
    truth: Truth
    ideal: float
    said: CommandResult
    plain: bool

    @property
    def refused_share(self) -> float:
        """Refused requests of all."""
        total = self.truth.total
        return total.refusals / total.received if total.received else 0.0

    @property
    def seconds(self) -> float:
        """From the first admission to the last."""
        admitted = self.truth.admitted_at
        return admitted[-1] - admitted[0] if admitted else 0.0

    @property
    def broken(self) -> list[str]:
        """The bounds that do not hold."""
        total, told = self.truth.total, self.outcome or Outcome(0, 0, 0.0)
        needed = self.framework.requests(self.wanted)
        bounds = {
            f"exit code {self.said.exit_code}": self.said.exit_code == 0,
            f"{self.said.governed} calls governed, {needed} needed": self.said.governed == needed,
            f"{told.answered} of {self.wanted} rows answered": told.answered == self.wanted,
            f"{told.right} of {self.wanted} rows right": told.right == self.wanted,
            f"score {told.score:g}": told.score == 100.0,
            f"{total.answered} requests answered, {needed} needed": total.answered == needed,
            f"{self.refused_share:.1%} of the requests refused": self.refused_share <= MOST_REFUSED_SHARE,
            f"{len(self.truth.keys)} keys": len(self.truth.keys) == 1,
        }
        return [name for name, holds in bounds.items() if not holds]

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        told, total = self.outcome, self.truth.total
        answered, failed = (str(told.answered), str(self.wanted - told.answered)) if told else ("-", "run lost")
        whole = total.answered == self.framework.requests(self.wanted)
        return [
            self.framework.name,
            self.framework.version,
            answered,
            failed,
            f"{told.score:g}" if told else "-",
            str(total.received),
            str(total.refusals),
            f"{self.refused_share:.1%}",
            f"{self.seconds:.1f}",
            f"{self.seconds / self.ideal:.2f}" if whole else "-",
            "" if self.plain else "ok" if not self.broken else "MISSED",
        ]


HEADER = ("", "version", "answered", "failed", "score", "requests", "429s", "share", "seconds", "of ideal", "")


def scenario(framework: Framework) -> Scenario:
    """120 requests a minute, 20 of them left, from a model that knows the right answers."""
    return Scenario(
        dialect="openai",
        limiters=(Limit(limit=PER_MINUTE, initial=AT_ONCE),),
        latency=Distribution.constant(0.1),
        answers={row["question"]: framework.answer(row["answer"]) for row in rows()},
    )


def run(framework: Framework, *, plain: bool) -> Run:
    """Installs the framework if need be, and runs its example in a copy of the folder."""
    environment = framework.environment
    environment.make()
    wanted = len(rows())
    played = scenario(framework)
    with tempfile.TemporaryDirectory() as home, SimulatorProcess(played) as provider:
        folder = Path(home) / "examples"
        shutil.copytree(EXAMPLES, folder)
        command = [part.format(url=provider.openai_url, model=MODEL) for part in framework.arguments]
        if not plain:
            command = ["tidegate", "run", "--", *command]
        command[0] = str(environment.bin / command[0])
        (packages,) = environment.folder.glob("lib/python*/site-packages")
        settings = {name: value.format(packages=packages) for name, value in framework.settings.items()}
        said = _run(command, folder, _surroundings(environment, home, provider.openai_url) | settings)
        outcome = framework.outcome(said.output, folder) if said.exit_code == 0 else None
        truth = provider.truth()
    last_admission = ideal_makespan(played, [Call(1)] * framework.requests(wanted)) - played.latency.median
    return Run(framework, wanted, outcome, truth, last_admission, said, plain)


def _surroundings(environment: Environment, home: str, url: str) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join([str(environment.bin), os.environ.get("PATH", os.defpath)]),
        "HOME": home,
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "NO_PROXY": "127.0.0.1",
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "any",
    }


def _run(command: Sequence[str], folder: Path, surroundings: dict[str, str]) -> CommandResult:
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaints,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            exit_code = -signal.SIGKILL
        finally:
            # What the command has left running, too: it has a session of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return CommandResult(exit_code, _text(output), _text(complaints), time.monotonic() - began)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def chosen(names: Sequence[str]) -> Iterator[Framework]:
    """The rows of these names, or all."""
    for framework in FRAMEWORKS:
        if not names or framework.name in names:
            yield framework


def main() -> int:
    """Runs what the command line asks for, and prints the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(each.name for each in FRAMEWORKS))
    parser.add_argument("--plain", action="store_true", help="without tidegate")
    parser.add_argument("--output", action="store_true", help="print what each run printed")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {each.name for each in FRAMEWORKS}
    if unknown:
        parser.error(f"no framework of the table: {', '.join(sorted(unknown))}")
    runs = []
    for framework in chosen(arguments.names):
        print(f"{framework.name} ...", file=sys.stderr, flush=True)
        done = run(framework, plain=arguments.plain)
        runs.append(done)
        if arguments.output or (done.broken and not done.plain):
            print(done.said.output[-4000:], done.said.complaints[-4000:], sep="\n", file=sys.stderr, flush=True)
    how = "plain" if arguments.plain else "under tidegate run"
    table(f"{len(rows())} rows each, {PER_MINUTE} requests a minute, {how}", HEADER, [each.cells for each in runs])
    if arguments.plain:
        return 0
    for done in runs:
        for bound in done.broken:
            print(f"{done.framework.name}: {bound}")
    return 1 if any(each.broken for each in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
