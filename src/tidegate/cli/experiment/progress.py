"""What is seen of a run under way: bars on a terminal, a line now and then elsewhere. Both on standard error."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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


def waits(stages: Sequence[StageProgress], snapshot: RegistrySnapshot) -> list[str]:
    """What does not go, and why: what the runner holds back, and what waits inside its calls."""
    lines = []
    held: dict[tuple[str, str], list[str]] = {}
    soonest: dict[tuple[str, str], float] = {}
    for stage in stages:
        if stage.wait is not None:
            gate = (stage.wait.key, stage.wait.reason)
            held.setdefault(gate, []).append(stage.name)
            seconds = math.inf if stage.wait.seconds is None else stage.wait.seconds
            soonest[gate] = min(seconds, soonest.get(gate, math.inf))
    for (key, reason), names in held.items():
        seconds = soonest[key, reason]
        until = "" if math.isinf(seconds) or seconds < LEAST else f", next in {seconds:.1f} s"
        lines.append(f"{', '.join(names)}: {reason}{until}" + (f" · {key}" if key else ""))
    for state in snapshot.keys.values():
        if state.waiting:
            until = "" if state.eta is None else f", ETA {clock(state.eta)}"
            lines.append(f"{state.waiting} calls: {state.gate or state.eta_gate or 'their turn'}{until} · {state.key}")
    beyond = len(lines) - MOST_WAITS
    return lines[:MOST_WAITS] + ([f"{beyond} more"] if beyond > 0 else [])


def board(name: str, tally: Tally, waiting: Sequence[str], note: str) -> RenderableType:
    """The picture of a run."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("", "", "", "failed", "parked", "ETA"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    eta = "" if tally.eta is None else clock(tally.eta)
    failed = f"[red]{tally.failed}[/red]" if tally.failed else "0"
    table.add_row("tasks", _bar(tally.tasks), _part(tally.tasks), failed, str(tally.parked), eta)
    if tally.evaluators:
        table.add_row("evaluations", _bar(tally.evals), _part(tally.evals))
    lines = [Text(f"waiting  {each}", style="dim", no_wrap=True, overflow="ellipsis") for each in waiting]
    head = Text(name, style="bold")
    return Group(head.append(f"  {note}", style="yellow") if note else head, table, *lines)


def line(name: str, tally: Tally, waiting: Sequence[str], note: str) -> str:
    """The same as a line of plain text."""
    parts = [f"{_part(tally.tasks)} tasks"]
    if tally.evaluators:
        parts.append(f"{_part(tally.evals)} evaluations")
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts += [f"{tally.parked} parked"] if tally.parked else []
    parts += [f"ETA {clock(tally.eta)}"] if tally.eta else []
    parts += [f"waiting: {waiting[0]}"] if waiting else []
    return f"{name}: {', '.join(parts)}" + (f" ({note})" if note else "")


class Display:
    """Where a run is shown; `say` prints a line that stays, `note` is what is said beside the name from then on."""

    def __init__(self, name: str, console: Console) -> None:
        self.note = ""
        self._name = name
        self._console = console
        self._live: Live | None = None
        self._line_at: float | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows it for as long as the block lasts."""
        if not self._console.is_terminal:
            yield
            return
        # What the experiment prints stays on standard output; where both are one terminal, it goes above the picture.
        both = sys.stdout.isatty()
        with Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=both) as self._live:
            yield
        self._live = None

    def look(self, tally: Tally, waiting: Sequence[str], now: float) -> None:
        """Shows how far it is at `now` (monotonic seconds)."""
        if self._live is not None:
            self._live.update(board(self._name, tally, waiting, self.note), refresh=True)
            return
        if self._line_at is None:
            # What ends before the first line is due has none.
            self._line_at = now
        if now - self._line_at >= LINE_EVERY:
            self._line_at = now
            self.say(line(self._name, tally, waiting, self.note))

    def say(self, text: str) -> None:
        """Prints a line above the picture."""
        self._console.print(text, markup=False, soft_wrap=True)


def _bar(pace: Pace) -> ProgressBar:
    total, done = max(1, pace.total), min(pace.done, pace.total)
    return ProgressBar(total=total, completed=done, width=30, complete_style="cyan", finished_style="green")


def _part(pace: Pace) -> str:
    return f"{pace.done}/{pace.total}"
