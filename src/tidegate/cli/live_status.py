"""Picture of `tidegate status --watch`: all active programs and their keys, drawn again on the terminal each second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.core.snapshot import QueueForecast
from tidegate.core.wait_text import amount, sized
from tidegate.launch.totals import KeyTotal

if TYPE_CHECKING:
    from tidegate.launch.runs import ProgramRun

PERIOD = 1.0
"""Seconds between two pictures. Raising it saves work and shows changes later. Chosen: that of the live page
(`ui.limit_history.PERIOD`)."""

BAR = 24
"""Columns of a bar. Raising it shows smaller shares and needs a wider terminal. Chosen: with the longest usual text
beside it, a line fits into 80 columns."""


def watch(
    look: Callable[[], Sequence[ProgramRun]],
    head: Callable[[ProgramRun], str],
    lines: Callable[[KeyTotal, float], Iterable[str]],
    nothing: str,
    console: Console,
) -> None:
    """Draw all programs that `look` returns until Ctrl-C; `head` and `lines` give the texts of a program and a key.

    The picture has a screen of its own, so that the terminal is as before at the end.
    """

    def drawn() -> RenderableType:
        now = time.monotonic()
        runs = look()
        return Group(
            _title(), *(part for run in runs for part in _program(run, head, lines, now)), *_empty(runs, nothing)
        )

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(PERIOD)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return


def _title() -> Text:
    return Text(f"tidegate status · {time.strftime('%H:%M:%S')} · Ctrl-C ends", style="dim")


def _empty(runs: Sequence[ProgramRun], nothing: str) -> Iterable[RenderableType]:
    if not runs:
        yield Text(nothing)


def _program(
    run: ProgramRun,
    head: Callable[[ProgramRun], str],
    lines: Callable[[KeyTotal, float], Iterable[str]],
    now: float,
) -> Iterable[RenderableType]:
    yield Text(head(run), style="bold")
    for key in sorted(run.totals.keys.values(), key=lambda each: (-each.waiting, each.key)):
        for line in lines(key, now):
            yield Text(line)
        yield _bars(key, key.outlook(now))
        yield Text(f"    {_outcomes(key)}", style="red" if key.counts["given_up"] else "")
    for pid, why in run.totals.unreadable.items():
        yield Text(f"  counts of process {pid} unreadable: {why}; they are not shown", style="red")


def _bars(key: KeyTotal, seen: QueueForecast) -> Table:
    """Return a bar for the calls in flight, and one for the used part of each quota."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=BAR)
    table.add_column()
    table.add_row("", _bar(key.in_flight, key.slots), Text("in flight"))
    for quota in seen.quotas:
        left = quota.usable
        text = f"{amount(left)} of {sized(quota.name, quota.limit, quota.window)} left"
        table.add_row("", _bar(quota.limit - left, quota.limit), Text(text))
    return table


def _bar(used: float, limit: float) -> ProgressBar:
    return ProgressBar(total=max(limit, 1e-9), completed=used, width=BAR, complete_style="cyan", finished_style="cyan")


def _outcomes(key: KeyTotal) -> str:
    """Return the calls by outcome; those that did not occur are left out, except the answered ones."""
    counts = key.counts
    parts = [f"{counts['answered']} of {key.calls} call{'' if key.calls == 1 else 's'} answered"]
    if counts["refused"]:
        parts.append(f"{counts['refused']} refused, {counts['absorbed']} tried again")
    for number, text in (
        (counts["given_up"], "given up"),
        (counts["failed_calls"], "failed"),
        (key.abandoned, "abandoned"),
    ):
        if number:
            parts.append(f"{number} {text}")
    return " · ".join(parts)
