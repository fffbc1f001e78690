"""Every program plain, wrapped and under `tidegate run`, against servers of the same kind.

    python -m conformance.never_worse [--short] [--frameworks] [NAME ...]

Exit code 1 where a program is worse with tidegate than without. `--short` plays a part of the rows, in minutes.
`--frameworks` plays the programs of `conformance.frameworks` too, each in its own environment.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.common import table
from conformance import frameworks
from conformance.catalogue import FRAMEWORKS
from conformance.never_worse.catalogue import PROGRAMS, ROWS, Row
from conformance.never_worse.judging import Ended, ended_of, worse
from conformance.never_worse.stub import Stub
from conformance.programs import environment, finish

MODES = ("plain", "wrapped", "run")
HEADER = ("program", "", "answered", "of", "exit", "seconds", "process", "requests", "errors", "")


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


def is_noisy(reason: str, plain: Ended) -> bool:
    """Return whether chance may be the reason: seconds, or the rows of a program that plain does not answer whole."""
    return "s, plain " in reason or ("rows answered" in reason and plain.answered < plain.rows)


def compare(row: Row) -> tuple[list[list[str]], bool]:
    """Play a row in all modes; return its lines and whether one mode is worse than plain."""
    lines, failed = [], False
    modes = modes_of(row)
    plain = play(row, modes[0])
    lines.append(cells(row.name, modes[0], plain, ()))
    for mode in modes[1:]:
        governed = play(row, mode)
        reasons = worse(plain, governed, row.hopeless)
        if reasons and all(is_noisy(reason, plain) for reason in reasons):
            # One run of each is noisy: the better of two counts, beside the lesser of plain's.
            again, other = play(row, modes[0]), play(row, mode)
            slower = plain._replace(
                seconds=max(plain.seconds, again.seconds), answered=min(plain.answered, again.answered)
            )
            reasons = min(worse(slower, governed, row.hopeless), worse(slower, other, row.hopeless), key=len)
        failed = failed or bool(reasons)
        lines.append(cells("", mode, governed, reasons or ["ok"]))
    for line in lines:
        print(" | ".join(line), flush=True)
    return lines, failed


def compare_framework(name: str) -> tuple[list[list[str]], bool]:
    """Run a framework's program plain and under `tidegate run`; return its lines and whether the latter is worse."""
    (framework,) = (each for each in FRAMEWORKS if each.name == name)
    lines, ended = [], {}
    for mode in ("plain", "run"):
        done = frameworks.run(framework, plain=mode == "plain")
        # A framework may take the text of an error for an answer: the rows that are right count.
        answered = done.outcome.right if done.outcome is not None else 0
        code, requests = done.said.exit_code, done.truth.total.received
        trouble = ended_of("", done.said.complaints, code, done.said.seconds, requests)
        # Admissions stand for the answers that followed them: the program itself tells no times.
        times = tuple(at - done.truth.admitted_at[0] for at in done.truth.admitted_at)
        times = times[framework.requests(1) - 1 :: framework.per_row]
        ended[mode] = trouble._replace(answered=answered, rows=done.wanted, seconds=done.seconds, times=times)
        reasons = worse(ended["plain"], ended[mode], hopeless=False) if mode == "run" else []
        lines.append(cells(name if mode == "plain" else "", mode, ended[mode], reasons or ["ok"] * (mode == "run")))
        print(" | ".join(lines[-1]), flush=True)
    return lines, bool(reasons)


def main(arguments: Sequence[str]) -> int:
    """Play the rows that the arguments name."""
    parser = argparse.ArgumentParser(prog="never_worse")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--frameworks", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    known = {row.name: row for row in ROWS}
    others = [each.name for each in FRAMEWORKS]
    unknown = [name for name in given.names if name not in known and name not in others]
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    names = given.names or [name for name, row in known.items() if row.short or not given.short]
    names += [name for name in others if given.frameworks and name not in names]
    lines, bad = [], []
    for name in names:
        part, failed = compare(known[name]) if name in known else compare_framework(name)
        lines += part
        bad += [name] * failed
    table("Programs without tidegate and with it", HEADER, lines)
    print(f"{len(names)} programs, {len(bad)} worse with tidegate than without{': ' if bad else ''}{', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
