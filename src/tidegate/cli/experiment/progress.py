"""The display of a run under way: bars on a terminal, a line now and then elsewhere. Both on standard error."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.cli.experiment.tables import bad
from tidegate.cli.experiment.tally import Pace, Tally
from tidegate.cli.run_lines import clock
from tidegate.core.snapshot import RegistrySnapshot
from tidegate.runner import StageProgress

LOOK_EVERY = 0.25
"""Seconds between two looks at a run."""

LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal (pip, docker: the order of what a log bears)."""

LEAST = 0.05
"""Seconds that are told of: less is gone before it is read."""

MOST_WAITS = 6
"""Keys that are told at once: the others are counted."""


BAR, LEAST_BAR, BESIDE = 30, 8, 44
"""Columns of a bar, at the most and at the least, and of what stands beside it: narrower terminals have no bar."""


ECHOED = 4
"""Columns that stay free: what a terminal echoes of a Ctrl-C, or two, must not begin a new row under the picture."""


def nothing(_key: str) -> str:
    """No trouble is known of any key."""
    return ""


def waits(
    stages: Sequence[StageProgress], snapshot: RegistrySnapshot, trouble: Callable[[str], str] = nothing
) -> list[str]:
    """Return what does not go, and why: what the runner holds back, and what waits inside its calls.

    `trouble(key)` says how the last attempt failed there: that is what a breaker is about.
    """
    lines = []
    held: dict[tuple[str, str], list[str]] = {}
    soonest: dict[tuple[str, str], float] = {}
    for stage in stages:
        if stage.wait is not None:
            gate = (stage.wait.key, stage.wait.reason)
            held.setdefault(gate, []).append(stage.name)
            seconds = math.inf if stage.wait.seconds is None else stage.wait.seconds
            soonest[gate] = min(seconds, soonest.get(gate, math.inf))
    for stage in stages:
        if stage.closed:
            lines.append(f"{stage.name} closed: {stage.closed}; its rows are parked")
    for (key, reason), names in held.items():
        seconds = soonest[key, reason]
        until = "" if math.isinf(seconds) or seconds < LEAST else f", next in {seconds:.1f} s"
        why = _why(reason, trouble(key))
        lines.append(f"{', '.join(names)}: {why}{until}" + (f" · {key}" if key else ""))
    for state in snapshot.keys.values():
        if state.waiting:
            until = "" if state.eta is None else f", ETA {clock(state.eta)}"
            why = _why(state.gate or state.eta_gate or "their turn", trouble(str(state.key)))
            lines.append(f"{state.waiting} calls: {why}{until} · {state.key}")
    beyond = len(lines) - MOST_WAITS
    return lines[:MOST_WAITS] + ([f"{beyond} more"] if beyond > 0 else [])


def _why(gate: str, trouble: str) -> str:
    if gate == "concurrency":
        return "as much is under way as may be (max_concurrency)"
    return f"{gate} ({trouble})" if gate == "breaker" and trouble else gate


class Board(NamedTuple):
    """The picture of a run, as wide as there is room: a narrow terminal has no bars."""

    name: str
    tally: Tally
    waiting: Sequence[str]
    note: str
    ending: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - ECHOED)
        head = Text(self.name, style="bold", overflow="fold")
        yield Constrain(head.append(f"  {self.note}", style="yellow") if self.note else head, width)
        yield Constrain(self._table(width - BESIDE), width)
        for each in self.waiting:
            yield Constrain(Text(f"waiting  {each}", style="dim", no_wrap=True, overflow="ellipsis"), width)

    def _table(self, room: int) -> Table:
        tally, bars = self.tally, room >= LEAST_BAR
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        # What is told of everything is told once, beside the tasks.
        more = {"failed": bad(tally.failed), "parked": str(tally.parked), "ETA": self._eta}
        if not bars and not tally.parked:
            del more["parked"]
        for column in ("", *([""] if bars else []), "", *more):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name, pace in (("tasks", tally.tasks), ("evaluations", tally.evals))[: 2 if tally.evaluators else 1]:
            bar = [_bar(pace, min(room, BAR))] if bars else []
            table.add_row(name, *bar, _part(pace), *(more.values() if pace is tally.tasks else ()))
        return table

    @property
    def _eta(self) -> str:
        return "" if self.ending or self.tally.eta is None else clock(self.tally.eta)


def line(name: str, tally: Tally, waiting: Sequence[str], note: str) -> str:
    """The same as a line of plain text."""
    parts = [f"{_part(tally.tasks)} tasks"]
    if tally.evaluators:
        parts.append(f"{_part(tally.evals)} evaluations")
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts += [f"{tally.parked} parked"] if tally.parked else []
    parts += [f"ETA {clock(tally.eta)}"] if tally.eta and not note else []
    parts += [f"waiting: {waiting[0]}"] if waiting else []
    return f"{name}: {', '.join(parts)}" + (f" ({note})" if note else "")


class Display:
    """Where a run is shown; `say` prints a line that stays, `note` is what is said beside the name from then on."""

    def __init__(self, name: str, console: Console) -> None:
        self.note = ""
        self._ending = False
        self._name = name
        self._console = console
        self._live: Live | None = None
        self._line_at: float | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows it for as long as the block lasts."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        # What the experiment prints stays on standard output; where both are one terminal, it goes above the picture.
        both = sys.stdout.isatty()
        live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=both)
        with contextlib.suppress(OSError):
            live.start()
        self._live = live
        try:
            yield
        finally:
            self._live = None
            with contextlib.suppress(OSError):
                live.stop()

    def end(self, note: str) -> None:
        """Says that the run is about to end, and how: in the picture, or where there is none as a line."""
        self._ending = True
        self.note = note
        if self._live is None:
            self.say(f"{self._name}: {note}")

    def look(self, tally: Tally, waiting: Sequence[str], now: float) -> None:
        """Shows how far it is at `now` (monotonic seconds)."""
        if self._live is not None:
            # A terminal that is closed has nobody who looks; the run hears of that by SIGHUP.
            with contextlib.suppress(OSError):
                self._live.update(Board(self._name, tally, waiting, self.note, self._ending), refresh=True)
            return
        if self._line_at is None:
            # What ends before the first line is due has none.
            self._line_at = now
        if now - self._line_at >= LINE_EVERY:
            self._line_at = now
            self.say(line(self._name, tally, waiting, self.note))

    def say(self, text: str) -> None:
        """Prints a line above the picture."""
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, soft_wrap=True)


def _bar(pace: Pace, width: int) -> ProgressBar:
    total, done = max(1, pace.total), min(pace.done, pace.total)
    return ProgressBar(total=total, completed=done, width=width, complete_style="cyan", finished_style="green")


def _part(pace: Pace) -> str:
    return f"{pace.done}/{pace.total}"
