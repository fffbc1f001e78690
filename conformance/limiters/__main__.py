"""Rate limiters of other people, each asked by a plain OpenAI client and by the same client with tidegate.

    python -m conformance.limiters [--short] [--repeat N] [--page] [--events FOLDER] [NAME ...]

Exit code 1 where a run with tidegate misses a bar of its row, or a limiter could not be started. `--short` plays some
of the rows with tidegate alone, in at most 3 minutes, and judges lost calls. `--repeat` plays each run N times and
judges the medians. `--page` writes the table of all rows into docs/limiters.md. `--events` keeps the events of each run
with tidegate in a folder.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common import table
from conformance.limiters.catalogue import ROWS, Row
from conformance.limiters.ideals import latencies
from conformance.limiters.judging import SHORT, Outcome, middle, missed, outcome_of, refusals_in
from conformance.limiters.page import write
from conformance.limiters.servers import PROGRAMS, NotStartedError, Place, free_port, running
from conformance.limiters.stub import handler
from conformance.never_worse.stub import Stub
from conformance.programs import Finished, environment, finish

MODES = ("plain", "tidegate")

MOST_IDEALS, ALLOWANCE_SECONDS = 4.0, 60.0
"""A run is stopped after so many times the ideal, and a minute more: such a run misses its bar by far."""

HEADER = ("limiter", "", "answered", "of", "seconds", "of ideal", "refusals/call", "errors", "")


class Played(NamedTuple):
    """The runs of one row in one mode, or the reason why there are none."""

    row: Row
    mode: str
    outcomes: Sequence[Outcome]
    reasons: Sequence[str]

    @property
    def cells(self) -> list[str]:
        """Return the line of the table; the time of a run that lost calls is in brackets."""
        name, verdict = f"{self.row.name}", "; ".join(self.reasons) or ("ok" if self.mode != "plain" else "")
        if not self.outcomes:
            return [name, self.mode, "-", str(self.row.calls), "-", "-", "-", "-", "", verdict]
        outcome = middle(self.outcomes)
        ratio = f"{outcome.seconds / self.row.ideal_seconds:.2f}"
        errors = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.errors.items()))
        return [
            name,
            self.mode,
            str(outcome.answered),
            str(outcome.calls),
            f"{outcome.seconds:.1f}",
            f"({ratio})" if outcome.lost else ratio,
            f"{outcome.refusals / outcome.calls:.3f}",
            errors,
            verdict,
        ]


def play(row: Row, mode: str, seed: int = 0, events: Path | None = None) -> Outcome:
    """Send the calls of a row once against a newly started limiter. Raise `NotStartedError`."""
    # Workers of a limiter may run as another user, who has to enter the folder.
    with Stub(handler(latencies(seed))) as stub, tempfile.TemporaryDirectory(prefix="lim") as home:
        place = Place(Path(home), free_port(), stub.port)
        try:
            server = row.limiter(place)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotStartedError(f"{row.name} not installed: {error}") from error
        with running(server, place):
            ended = send(row, mode, place, events)
            if server.commands[1:]:
                time.sleep(1.0)  # the reader of a log is a second behind
        logs = "".join(path.read_text(errors="replace") for path in sorted(place.folder.glob(server.log)))
        return outcome_of(ended.output, ended.exit_code, row.calls, ended.seconds, refusals_in(logs, server.status))


def send(row: Row, mode: str, place: Place, events: Path | None) -> Finished:
    """Run the calling program to its end, or end it."""
    given = {
        "SERVER": f"http://127.0.0.1:{place.port}",
        "STUB": f"http://127.0.0.1:{place.upstream}",
        "CALLS": str(row.calls),
        "PERIOD": str(row.period),
        "OFFSET": str(row.offset),
        "GOVERNED": "1" if mode == "tidegate" else "0",
        "EVENTS": str((events / f"{row.name}.txt").absolute()) if events and mode == "tidegate" else "",
        "XDG_RUNTIME_DIR": str(place.folder),
        "HOME": str(place.folder),
        "NO_PROXY": "*",
    }
    command = [sys.executable, str(PROGRAMS / "caller.py")]
    ended = finish(command, environment(given), MOST_IDEALS * row.ideal_seconds + ALLOWANCE_SECONDS)
    if ended.exit_code:
        print(ended.complaints, file=sys.stderr)
    return ended


def compare(row: Row, modes: Sequence[str], repeat: int, short: bool, events: Path | None) -> list[Played]:
    """Play a row in each mode, and judge the runs with tidegate."""
    lines = []
    for mode in modes:
        began = time.monotonic()
        try:
            outcomes = [play(row, mode, seed, events) for seed in range(repeat)]
            bars = SHORT if short else row.bars
            reasons = missed(middle(outcomes), row.ideal_seconds, bars) if mode == "tidegate" else []
        except NotStartedError as error:
            outcomes, reasons = [], [str(error)]
        lines.append(Played(row, mode, outcomes, reasons))
        print(" | ".join(lines[-1].cells), f"({time.monotonic() - began:.0f} s)", flush=True)
        if not outcomes:
            break
    return lines


def main(arguments: Sequence[str]) -> int:
    """Play the rows that the arguments name."""
    parser = argparse.ArgumentParser(prog="limiters")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--events", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args(arguments)
    known = {row.name: row for row in ROWS}
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no such limiter: {', '.join(unknown)}")
    if given.page and (given.names or given.short):
        parser.error("--page needs all rows: a table of some would replace that of all")
    if given.events:
        given.events.mkdir(parents=True, exist_ok=True)
    rows = [known[name] for name in given.names] or [row for row in ROWS if row.short or not given.short]
    modes = MODES[1:] if given.short else MODES
    lines = [each for row in rows for each in compare(row, modes, max(1, given.repeat), given.short, given.events)]
    table("Rate limiters without tidegate and with it", HEADER, [each.cells for each in lines])
    bad = list(dict.fromkeys(each.row.name for each in lines if each.reasons))
    if given.page:
        write(HEADER, [each.cells for each in lines], rows, max(1, given.repeat))
    print(f"{len(rows)} limiters, {len(bad)} missed{': ' if bad else ''}{', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    # An exception ends the limiters, which have process groups beside that of the run: the signal alone leaves them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
