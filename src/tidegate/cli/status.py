"""`tidegate status`: the programs under way, once or as a picture (`--watch`).

The picture imports rich late, and `tidegate status` begins 50 ms sooner.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.common import UNBOUNDED_COLUMNS, stop
from tidegate.cli.status_list import ListedLine, ListedRun, folded, is_idle, lines_of, listed, unreadable
from tidegate.cli.status_row import drawable
from tidegate.core.safe_text import json_line

if TYPE_CHECKING:
    from rich.console import RenderableType

PICTURE_SECONDS = 1.0
"""Seconds between two pictures. Chosen: that of the live page (`server.limit_history.SAMPLE_SECONDS`)."""


def picture(look: Callable[[], Iterable[ListedLine]]) -> None:
    """Draw the lines that `look` returns until Ctrl-C, and how many more there are where they do not fit.

    A separate screen keeps the terminal as it was.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def drawn() -> RenderableType:
        title = ListedLine(f"tidegate status · {time.strftime('%H:%M:%S')} · Ctrl-C ends", "dim")
        shown = [part for line in (title, *look()) for part in folded(line, console.width)]
        beyond = len(shown) - console.height
        if beyond > 0:
            more = ListedLine(f"… {beyond + 1} more lines: `tidegate status NAME` shows less", "dim")
            shown[console.height - 1 :] = [more]
        return Group(*(Text(line.text, line.style, no_wrap=True) for line in shown))

    try:
        with Live(drawn(), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(PICTURE_SECONDS)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        return


STDOUT = 1

NOTHING = (
    "no active program found: one is shown from its first call on, `tidegate run` from its start; TIDEGATE_STATUS=off "
    "and TIDEGATE_LOG=off hide them"
)


def status(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|PID|MODEL]",
            help="Show only the program of this process; or programs and keys with this text in their name.",
        ),
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Show idle keys, too: those without a call in the last minute.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per key and line, idle ones included.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw it again each second, until Ctrl-C.")] = False,
) -> None:
    """Show your active programs and experiments: for each key, why its calls wait, until when, and how many.

    The program and the key in most trouble are first.
    """
    if os.name != "posix":
        raise stop("status not available: it reads the counts of `tidegate run`, which needs a POSIX system")
    from tidegate.launch.runs import live_runs

    def look(now: float) -> list[ListedRun]:
        return listed(live_runs(), now, wanted, everything=everything or as_json)

    def shown(*, with_outcomes: bool) -> Iterable[ListedLine]:
        now = time.monotonic()
        found = look(now)
        nothing = f"no active program or key has {wanted!r} in its name" if wanted else NOTHING
        return lines_of(found, now, with_outcomes=with_outcomes) if found else [ListedLine(nothing)]

    if watch:
        if as_json:
            raise stop("--watch and --json cannot be combined: a picture is for people; leave one of them out")
        if not drawable(STDOUT, os.environ):
            raise stop("status not watched: the output is no terminal; `tidegate status` prints it once")
        picture(partial(shown, with_outcomes=True))
    elif as_json:
        _print_json(look)
    else:
        columns = shutil.get_terminal_size((UNBOUNDED_COLUMNS, 0)).columns
        for line in shown(with_outcomes=False):
            for part in folded(line, columns):
                typer.echo(part.text)


def _print_json(look: Callable[[float], list[ListedRun]]) -> None:
    from tidegate.launch.totals import facts_of

    now = time.monotonic()
    for run, keys, _ in look(now):
        for key in keys:
            known = {"pid": run.pid, "command": run.command, "elapsed": run.elapsed, "idle": is_idle(key, now)}
            typer.echo(json_line({**known, **facts_of(key, now)}))
        for line in unreadable(run):
            typer.echo(line, err=True)
