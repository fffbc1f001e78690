"""Every program plain, wrapped and under `tidegate run`, against servers of the same kind.

    python -m conformance.never_worse [--short] [--frameworks] [NAME ...]

Exit code 1 where a program is worse with tidegate than without. `--short` plays a part of the rows, in minutes.
`--frameworks` plays the programs of `conformance.frameworks` too, each in its own environment.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
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
HEADER = ("program", "", "answered", "of", "exit", "seconds", "process", "requests", "errors", "")

KNOWN = {row.name: row for row in ROWS}


def play(row: Row, mode: str) -> Ended:
    """Run a program once against a new server."""
    with Stub(row.server(), row.delay) as server, tempfile.TemporaryDirectory() as home:
        given = {
            "SERVER": row.address or server.url,
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
        ended = finish(command, environment(given | dict(row.settings)), row.seconds, PROGRAMS)
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
    name: str, modes: Iterable[str], run: Callable[[str], Ended], hopeless: bool
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
        lateness = late(plain, governed, hopeless)
        if lateness and not reasons:
            again, other = run(first), run(mode)
            reasons = unlike(again, other)
            slower = max(plain, again, key=lambda each: each.process)
            lateness = min((late(slower, each, hopeless) for each in (governed, other)), key=len)
        reasons += lateness
        failed = failed or bool(reasons)
        lines.append(cells("", mode, governed, reasons or ["ok"]))
    print("\n".join(" | ".join(line) for line in lines), flush=True)
    return lines, failed


def run_framework(name: str, mode: str) -> Ended:
    """Run a framework's program plain or under `tidegate run`."""
    (framework,) = (each for each in FRAMEWORKS if each.name == name)
    done = frameworks.run(framework, plain=mode == "plain")
    # A framework may take the text of an error for an answer: the rows that are right count.
    answered = done.outcome.right if done.outcome is not None else 0
    # Admissions stand for the answers that followed them: the program itself tells no times.
    times = tuple(at - done.truth.admitted_at[0] for at in done.truth.admitted_at)
    times = times[framework.requests(1) - 1 :: framework.per_row]
    trouble = ended_of("", done.said.complaints, done.said.exit_code, done.said.seconds, done.truth.total.received)
    return trouble._replace(answered=answered, rows=done.wanted, seconds=done.seconds, times=times)


def compare_named(name: str) -> tuple[list[list[str]], bool]:
    """Compare the runs of the program of that name."""
    row = KNOWN.get(name)
    if row is None:
        return compare(name, ("plain", "run"), partial(run_framework, name), False)
    return compare(name, modes_of(row), partial(play, row), row.hopeless)


def main(arguments: Sequence[str]) -> int:
    """Play the rows that the arguments name."""
    parser = argparse.ArgumentParser(prog="never_worse")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    others = [each.name for each in FRAMEWORKS]
    unknown = [name for name in given.names if name not in KNOWN and name not in others]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    names = given.names or [name for name, row in KNOWN.items() if row.short or not given.short]
    names += [name for name in others if given.frameworks and name not in names]
    lines, bad = [], []
    for name in names:
        part, failed = compare_named(name)
        lines += part
        bad += [name] * failed
    table("Programs without tidegate and with it", HEADER, lines)
    print(f"{len(names)} programs, {len(bad)} worse with tidegate than without{': ' if bad else ''}{', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
