"""`tidegate demo`: the same rows through the real SDKs, plain and wrapped, against two simulated providers.

A live board on a terminal, plain lines elsewhere, and the table of results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidegate.cli.common import print_table, stop, unbounded
from tidegate.core.snapshot import QuotaSnapshot

if TYPE_CHECKING:
    from tidegate.testing import Limit
    from tidegate.testing.demo import DemoRun, Look, Phase


NAMES = {"openai": "OpenAI", "anthropic": "Anthropic"}
HEADLINES: dict[Phase, str] = {
    "plain": "1. Plain: asyncio.gather over all rows, the SDK as it is",
    "wrapped": "2. Wrapped: the same code after registry.wrap(client)",
}
NOTHING = "–"


def board(runs: Sequence[DemoRun]) -> RenderableType:
    """Return the live picture of one phase: its progress and, once wrapped, the learned next to the true limits."""
    parts: list[RenderableType] = [Text(HEADLINES[runs[0].phase], style="bold"), _progress(runs)]
    if runs[0].phase == "wrapped":
        parts.append(_limits(runs))
    return Group(*parts)


def _progress(runs: Sequence[DemoRun]) -> Table:
    table = _table("", "", "rows", "lost", "in flight", "waiting", "429s", "ETA")
    for run in runs:
        waiting = str(run.key.waiting) if run.key is not None else NOTHING
        table.add_row(
            NAMES[run.track.sdk],
            ProgressBar(total=run.rows, completed=run.done, width=20, complete_style="cyan", finished_style="green"),
            f"{run.done}/{run.rows}",
            _bad(run.lost.total()),
            str(run.counts.in_flight),
            waiting,
            _bad(run.counts.refusals),
            _seconds(run.eta, ".0f"),
        )
    return table


def _limits(runs: Sequence[DemoRun]) -> Table:
    table = _table("", "quota", "learned limit", "true limit", "estimated rest")
    for run in runs:
        learnt = {quota.unit: quota for quota in run.key.quotas} if run.key is not None else {}
        for limit in run.track.scenario.limiters:
            quota = learnt.get(limit.unit)
            left = f"{max(0.0, quota.level):.0f}" if quota is not None else NOTHING
            name = limit.unit.replace("_", " ")
            table.add_row(NAMES[run.track.sdk], name, amount(quota), amount(limit), left)
    return table


def amount(quota: QuotaSnapshot | Limit | None) -> str:
    """Return an amount per time as text, e.g. `60 / 6 s`."""
    return f"{quota.limit:,.0f} / {quota.window:.3g} s" if quota is not None else "unknown"


def line(run: DemoRun) -> str:
    waiting = f", {run.key.waiting} waiting" if run.key is not None else ""
    return (
        f"{NAMES[run.track.sdk]}, {run.phase}: {run.done}/{run.rows} rows, {run.lost.total()} lost, "
        f"{run.counts.in_flight} in flight{waiting}, {run.counts.refusals} x 429"
    )


CAPTION = "best time: of a client that knew every limit from the start; sent per answer: requests for one answer"


def results(runs: Sequence[DemoRun]) -> Table:
    """Return a table with one row for each provider and phase; a caption explains the columns."""
    # Without padding, 80 columns are enough.
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("", no_wrap=True)
    columns: dict[str, Callable[[DemoRun], str]] = {
        "answered": lambda run: str(run.answered),
        "lost": lambda run: _bad(run.lost.total()),
        "429s": lambda run: _bad(run.counts.refusals),
        "sent per\nanswer": lambda run: NOTHING if run.sent_per_answer is None else f"{run.sent_per_answer:.2f}",
        "time": lambda run: _seconds(run.seconds, ".1f"),
        "best\ntime": lambda run: _seconds(run.track.ideal, ".1f"),
        "time /\nbest": lambda run: NOTHING if run.ratio is None else f"{run.ratio:.2f}",
        "right\nanswers": lambda run: score([run]),
    }
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.caption, table.caption_justify = CAPTION, "left"
    for run in runs:
        table.add_row(f"{NAMES[run.track.sdk]} {run.phase}", *(cell(run) for cell in columns.values()))
    return table


def verdict(runs: Sequence[DemoRun]) -> str:
    """Return one line for each phase: its score, and the reasons for lost rows."""
    lines = []
    for phase in HEADLINES:
        ended = [run for run in runs if run.phase == phase]
        if not ended:
            continue
        reasons = sum((run.lost for run in ended), start=type(ended[0].lost)())
        lost = ", ".join(f"{number} x {name}" for name, number in reasons.items())
        lines.append(f"Score {phase}: {score(ended)}" + (f"; rows lost to {lost}" if lost else "; no row lost"))
    return "\n".join(lines)


def score(runs: Sequence[DemoRun]) -> str:
    """Return the share of rows with the right answer, in percent. A row without an answer counts as wrong."""
    return f"{sum(run.right for run in runs) / sum(run.rows for run in runs):.1%}"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in ("", "quota") else "right", no_wrap=True)
    return table


def _bad(number: int) -> str:
    return f"[red]{number}[/red]" if number else "0"


def _seconds(seconds: float | None, form: str) -> str:
    return NOTHING if seconds is None else f"{seconds:{form}} s"


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
    from tidegate.testing.demo import run, tracks

    console = unbounded(Console(highlight=False))
    phases: tuple[Phase, ...] = ("plain", "wrapped") if plain else ("wrapped",)
    with _display(console) as on_look:
        runs = run(tracks(rows, seed), phases, on_look)
    print_table(console, results(runs))
    console.print(verdict(runs), markup=False)
    if plain and not any(run.lost for run in runs):
        console.print("No difference: so few rows fit below the limits; leave out --rows to see one")
    if not all(each.is_complete for each in runs if each.phase == "wrapped"):
        raise stop("demo failed: the wrapped phase lost rows; the line above names the errors")


@contextlib.contextmanager
def _display(console: Console) -> Iterator[Look]:
    """Yield the callback for each look (progress sample). It updates a board on a terminal, elsewhere prints lines."""
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
