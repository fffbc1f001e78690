"""`tidegate demo`: the same rows through the real SDKs, plain and wrapped, against two simulated providers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from tidegate.cli.console import unbounded
from tidegate.cli.errors import stop

if TYPE_CHECKING:
    from tidegate.testing.demo import DemoRun, Look, Phase

NEEDED = ("openai", "anthropic")

LOOKS_PER_LINE = 20
"""Looks between two printed lines. Derived from `testing.demo.LOOK_SECONDS`: a line every 5 s."""


def demo(
    rows: Annotated[
        int | None,
        typer.Option(help="Ask this many rows in total, half per provider (default: all; few fit below the limits)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Set the seed for the choice of rows and the latencies.")] = 0,
    plain: Annotated[bool, typer.Option(help="Run without tidegate first, for comparison.")] = True,
) -> None:
    """Send a few hundred questions to two simulated providers, without tidegate and with it, and compare."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise stop(f"demo not started: {' and '.join(missing)} not installed; run pip install 'tidegate[demo]'")
    # Imported late: these import the SDKs.
    from tidegate.cli.demo_board import results, verdict
    from tidegate.testing.demo import run, tracks

    console = unbounded(Console(highlight=False))
    phases: tuple[Phase, ...] = ("plain", "wrapped") if plain else ("wrapped",)
    with _display(console) as on_look:
        runs = run(tracks(rows, seed), phases, on_look)
    console.print(results(runs))
    console.print(verdict(runs), markup=False)
    if plain and not any(run.lost for run in runs):
        console.print("No difference: so few rows fit below the limits; leave out --rows to see one")
    if not all(each.is_complete for each in runs if each.phase == "wrapped"):
        raise stop("demo failed: the wrapped phase lost rows; the line above names the errors")


@contextlib.contextmanager
def _display(console: Console) -> Iterator[Look]:
    """Yield the callback for each look (progress sample). It updates a board on a terminal, elsewhere prints lines."""
    from tidegate.cli.demo_board import HEADLINES, board, line

    phase: Phase | None = None
    looks = 0

    def print_lines(runs: Sequence[DemoRun]) -> None:
        nonlocal phase, looks
        if runs[0].phase != phase:
            phase, looks = runs[0].phase, 0
            console.print(HEADLINES[phase], markup=False)
        elif looks % LOOKS_PER_LINE == 0 or all(run.done == run.rows for run in runs):
            for run in runs:
                console.print("  " + line(run), markup=False, soft_wrap=True)
        looks += 1

    if not console.is_terminal:
        yield print_lines
        return

    with Live(console=console, auto_refresh=False) as live:

        def show(runs: Sequence[DemoRun]) -> None:
            nonlocal phase
            if phase not in (None, runs[0].phase):
                # The board of an ended phase stays above the next one.
                live.console.print(live.renderable)
            phase = runs[0].phase
            live.update(board(runs), refresh=True)

        yield show
