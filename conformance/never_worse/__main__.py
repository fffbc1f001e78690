"""Every program plain, wrapped and under `tidegate run`, against servers of the same kind.

    python -m conformance.never_worse [--short] [--frameworks] [--lanes N] [--within SECONDS] [NAME ...]

Exit code 1 where a program is worse with tidegate than without. `--short` plays a part of the rows, in three minutes at
most. `--frameworks` plays the programs of `conformance.frameworks` too, each in its own environment. `--lanes` plays so
many programs at once. `--within` ends the run after so many seconds; a program that has not run then is a failure.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.common import table
from conformance import frameworks
from conformance.catalogue import FRAMEWORKS
from conformance.never_worse.catalogue import PROGRAMS, ROWS, Row
from conformance.never_worse.judging import Ended, ended_of, late, unlike
from conformance.never_worse.stub import Stub
from conformance.programs import environment, finish

MODES = ("plain", "wrapped", "run")
SHORT_SECONDS = 180.0
"""Most seconds of the short form, unless `--within` says otherwise. Source: what `make test-real` may take."""

HEADER = ("program", "", "answered", "of", "exit", "seconds", "process", "requests", "errors", "")

KNOWN = {row.name: row for row in ROWS}


class OutOfTimeError(Exception):
    """The seconds of `--within` are over."""


def play(row: Row, mode: str, ends: float = math.inf) -> Ended:
    """Run a program once against a new server; `ends` is the instant at which the whole run is over."""
    left = ends - time.monotonic()
    if left <= 0.0:
        raise OutOfTimeError
    with Stub(row.server(), row.delay) as server, tempfile.TemporaryDirectory() as home:
        given = {
            "SERVER": row.address.format(port=server.port) or server.url,
            "ROWS": str(row.rows),
            "WRAPPED": "1" if mode == "wrapped" else "0",
            "OPENAI_API_KEY": "sk-x",
            "AZURE_OPENAI_API_KEY": "",
            "ANTHROPIC_API_KEY": "sk-x",
            "XDG_RUNTIME_DIR": home,
            "HOME": home,
            "NO_PROXY": "*",
            "PYTHONUNBUFFERED": "1",
        }
        first, *rest = row.command
        program = [first] if first.startswith("-") else [str(PROGRAMS / first)]
        command = [sys.executable, *program, *rest]
        if mode == "run":
            command = [str(Path(sys.executable).with_name("tidegate")), "run", "--", *command]
        ended = finish(command, environment(given | dict(row.settings)), min(row.seconds, left), PROGRAMS)
        if ended.exit_code is None and left < row.seconds:
            raise OutOfTimeError
        return ended_of(ended.output, ended.complaints, ended.exit_code, ended.seconds, server.requests)


def modes_of(row: Row) -> tuple[str, ...]:
    """Return the modes of a row: a program that wraps nothing has no wrapped form."""
    return ("plain", "run") if row.command[0].startswith("-") else MODES


def cells(name: str, mode: str, ended: Ended, reasons: Iterable[str]) -> list[str]:
    """Return a line of the table."""
    errors = ", ".join(f"{count} {kind}" for kind, count in sorted(ended.errors.items()))
    exit_code = "stopped" if ended.exit_code is None else str(ended.exit_code)
    counts = [str(ended.answered), str(ended.rows), exit_code, f"{ended.seconds:.1f}", f"{ended.process:.1f}"]
    return [name, mode, *counts, str(ended.requests), errors[:60], "; ".join(reasons)]


def compare(
    name: str,
    modes: Iterable[str],
    run: Callable[[str], Ended],
    is_late: Callable[[Ended, Ended], list[str]] = late,
) -> tuple[list[list[str]], bool]:
    """Run a program in all modes, the plain one first; return its lines and whether one mode is worse than plain.

    Chance moves times, so a run that is only late has a second try, beside the slower of two plain runs. In both tries
    rows, exit code, exceptions and standard error must be as they should: no other try excuses them.
    """
    first, *others = modes
    plain = run(first)
    lines, failed = [cells(name, first, plain, ())], False
    for mode in others:
        governed = run(mode)
        reasons = unlike(plain, governed)
        lateness = is_late(plain, governed)
        if lateness and not reasons:
            again, other = run(first), run(mode)
            reasons = unlike(again, other)
            slower = max(plain, again, key=lambda each: each.process)
            lateness = min((is_late(slower, each) for each in (governed, other)), key=len)
        reasons += lateness
        failed = failed or bool(reasons)
        lines.append(cells("", mode, governed, reasons or ["ok"]))
    print("\n".join(" | ".join(line) for line in lines), flush=True)
    return lines, failed


def run_framework(name: str, ends: float, mode: str) -> Ended:
    """Run a framework's program plain or under `tidegate run`."""
    if ends <= time.monotonic():
        raise OutOfTimeError
    (framework,) = (each for each in FRAMEWORKS if each.name == name)
    done = frameworks.run(framework, plain=mode == "plain")
    # A framework may take the text of an error for an answer: the rows that are right count.
    answered = done.outcome.right if done.outcome is not None else 0
    # Admissions stand for the answers that followed them: the program itself tells no times.
    times = tuple(at - done.truth.admitted_at[0] for at in done.truth.admitted_at)
    times = times[framework.requests(1) - 1 :: framework.per_row]
    trouble = ended_of("", done.said.complaints, done.said.exit_code, done.said.seconds, done.truth.total.received)
    return trouble._replace(answered=answered, rows=done.wanted, seconds=done.seconds, times=times)


def compare_named(name: str, ends: float = math.inf) -> tuple[list[list[str]], bool] | None:
    """Compare the runs of the program of that name; return None where the time is over before its end."""
    row = KNOWN.get(name)
    try:
        if row is None:
            return compare(name, ("plain", "run"), partial(run_framework, name, ends))
        return compare(name, modes_of(row), partial(play, row, ends=ends), row.late)
    except OutOfTimeError:
        return None


def main(arguments: Sequence[str]) -> int:
    """Play the rows that the arguments name."""
    parser = argparse.ArgumentParser(prog="never_worse")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--within", type=float)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    others = [each.name for each in FRAMEWORKS]
    unknown = [name for name in given.names if name not in KNOWN and name not in others]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    names = given.names or [name for name, row in KNOWN.items() if row.short or not given.short]
    names += [name for name in others if given.frameworks and name not in names]
    most = given.within or (SHORT_SECONDS if given.short else math.inf)
    ends = time.monotonic() + most
    with ThreadPoolExecutor(given.lanes) as lanes:
        results = dict(zip(names, lanes.map(partial(compare_named, ends=ends), names), strict=True))
    missed = [name for name, result in results.items() if result is None]
    done = {name: result for name, result in results.items() if result is not None}
    bad = [name for name, (_, failed) in done.items() if failed]
    table("Programs without tidegate and with it", HEADER, [line for lines, _ in done.values() for line in lines])
    print(f"{len(done)} programs, {len(bad)} worse with tidegate than without{': ' if bad else ''}{', '.join(bad)}")
    if missed:
        print(f"never-worse incomplete: {most:g} s were over before {', '.join(missed)} had run; the run has failed.")
    return 1 if bad or missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
