"""Output of the experiment commands: progress, scores, counts and tables.

An active run shows bars on a terminal, or a line from time to time elsewhere, both on standard error. Results are
tables for people and plain values for programs. Tables are as wide as the terminal, or as wide as needed without one.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tidegate.cli.common import unbounded
from tidegate.core.safe_text import printable
from tidegate.core.snapshot import KeySnapshot, RegistrySnapshot
from tidegate.core.token_totals import TokenTotals, tokens_text
from tidegate.core.wait_text import RecentRate, clock, counted, wait_text
from tidegate.experiments import StageProgress
from tidegate.experiments.engine.progress import Summary, choice_lines
from tidegate.experiments.storage import BatchRecord, BatchState, Failure, ResultStatus, Score

FAILED = (ResultStatus.ERROR, ResultStatus.INVALID)


class ShownRate:
    """Progress and recent speed of the tasks, or of all evaluations together."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._rate = RecentRate()

    def update(self, done: int, total: int, now: float) -> None:
        """Record the progress at `now` (monotonic seconds)."""
        if not self.total:
            # Results of earlier runs are counted once the rows are known: they are no work of this run.
            self._rate.clear()
        self.done, self.total = done, total
        self._rate.note(done, now)

    @property
    def eta(self) -> float | None:
        """Return the seconds until all are done at the recent speed; None without a rate."""
        if self.done >= self.total:
            return 0.0 if self.total else None
        return self._rate.seconds(self.total - self.done)


class ShownCounts:
    """Counts of one run of one experiment, from its runner. A result that is tried again counts as not done."""

    def __init__(self) -> None:
        self.tasks, self.evals = ShownRate(), ShownRate()
        self.evaluators = self.failed = self.parked = 0
        self.all_rows = True
        self.spent = ""
        self._held = False
        self._rest: float | None = None

    def update(
        self, stages: Sequence[StageProgress], now: float, all_rows: bool = True, rest: float | None = None
    ) -> None:
        """Record the stages' progress at `now` (monotonic seconds), tasks first, and whether all rows are read.

        By the limits of the keys, all is done in `rest` seconds (None: they foretell nothing).
        """
        self.all_rows = all_rows
        self._rest = rest
        self._held = any(stage.wait is not None and stage.wait.key for stage in stages)
        tasks, judges = stages[0], stages[1:]
        unanswered = tasks.finished - tasks.done.get(ResultStatus.OK, 0)
        self.evaluators = len(judges)
        self.tasks.update(tasks.finished, tasks.total, now)
        # A row without an answer is not judged; a row that is not tried yet is expected to get one.
        expected = (tasks.total - unanswered) * len(judges)
        self.evals.update(sum(each.finished for each in judges), expected, now)
        self.failed = sum(each.done.get(status, 0) for each in stages for status in FAILED)
        self.parked = sum(each.done.get(ResultStatus.PARKED, 0) for each in stages)

    @property
    def eta(self) -> float | None:
        """Return the seconds until the last stage is done; None while that is unknown.

        While a key's limit holds the work back, the limit tells the end. Else the work itself may be slower.
        """
        if not self.all_rows:
            return None
        speed = self._by_speed
        if self._rest is None or speed == 0.0:
            return speed
        return self._rest if self._held or speed is None else max(self._rest, speed)

    @property
    def _by_speed(self) -> float | None:
        stages = (self.tasks, self.evals) if self.evaluators and self.evals.total else (self.tasks,)
        etas = [stage.eta for stage in stages]
        return None if None in etas else max(eta for eta in etas if eta is not None)


class Printer(Console):
    """Console for people. A reader that has closed the pipe, such as `head`, does not change how a command ends."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts with their line breaks and control characters escaped."""
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render tables and pictures, with the control characters of their cells escaped."""
        for each in super().render(renderable, options):
            plain = each.control is not None or each.text == printable(each.text, lines=True)
            yield each if plain else Segment(printable(each.text, lines=True), each.style)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


def printer(*, stderr: bool = False) -> Console:
    return unbounded(Printer(highlight=False, stderr=stderr))


def table(*names: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Return an empty table. Columns in `right` hold numbers; these and the ones in `whole` never shrink.

    The widest of the others shrinks first: it folds, also within a word. A cell made by `cut` ends in an ellipsis.
    """
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        is_number = name in right
        justify: Literal["left", "right"] = "right" if is_number else "left"
        made.add_column(name, justify=justify, no_wrap=is_number or name in whole, overflow="fold")
    return made


def cut(text: str) -> Text:
    """Return a text as one line, which ends in an ellipsis where it does not fit."""
    return Text(" ".join(printable(text).split()), no_wrap=True, overflow="ellipsis")


def bad(number: int) -> str:
    """Return a count of failures in rich's markup: red unless it is 0."""
    return f"[red]{number}[/red]" if number else "0"


NOTHING = "–"

LARGE_MEAN = 1e9
"""Mean from which its digits are counted by a power of ten. Chosen: no usual score is near it."""

LABEL_CHARACTERS = 60
"""Characters of a label that a table shows. Chosen: five of them are some lines of a terminal."""

MAX_SHOWN_LABELS = 5
"""Most labels of one output that a table shows, the most frequent first. Chosen: they fit one cell; an output may have
up to 100 (`experiments.storage.tally.MAX_LABELS`)."""


def tables(summary: Summary, failures: Sequence[Failure]) -> Iterator[RenderableType]:
    """Yield the means of every evaluator's outputs, and the failures by kind. Omit empty tables."""
    if summary.scores:
        yield _scores(summary.scores)
    if failures:
        yield _failures(failures)


def calls(summary: Summary) -> Iterator[str]:
    """Yield the lines of the calls of an experiment: their statistics, the attempts kept, the choices of fallbacks."""
    if summary.stats.calls:
        yield f"all runs: {summary.stats}"
    if summary.attempts:
        kept = ", ".join(f"{count} {status}" for status, count in summary.attempts.items())
        yield f"attempts kept: {kept}"
    yield from spend_lines(summary)
    yield from batch_lines(summary.batches)
    yield from choice_lines(summary.choices)
    yield from (f"warning: {each}" for each in summary.warnings)


def batch_lines(batches: Sequence[BatchRecord]) -> Iterator[str]:
    """Yield the number of batches by state, and below it each batch that is not fetched."""
    if not batches:
        return
    counts = Counter(each.state.value for each in batches)
    yield "batches: " + ", ".join(f"{counts[state.value]} {state.value}" for state in BatchState if counts[state.value])
    for each in batches:
        if each.state is not BatchState.FETCHED:
            name = each.provider_id or "not submitted"
            detail = f": {each.detail}" if each.detail else ""
            yield f"  {each.number}: {each.state.value}, {each.count} rows, {each.provider} {name}{detail}"


def spend_lines(summary: Summary) -> Iterator[str]:
    """Yield the tokens and the cost of an experiment, and below them those of each stage where there are several."""
    if not (text := tokens_text(summary.tokens)):
        return
    yield f"spent: {text}"
    if len(summary.spend) > 1:
        for stage, tokens in summary.spend.items():
            if part := tokens_text(tokens):
                yield f"  {stage}: {part}"


def spent_text(tokens: TokenTotals, budget: str) -> str:
    """Return what a run has spent so far, and its budget; empty without a metered answer and without a budget."""
    told = tokens_text(tokens)
    if not budget:
        return told
    return f"{told or 'nothing yet'} (budget {budget})"


def refusals(refused: int, summary: Summary) -> str:
    """Return the number of refusals for lack of capacity; they were all retried if every row was answered."""
    return counted(refused, "refusal") + (" retried" if summary.complete else "")


def bounds(snapshot: RegistrySnapshot) -> Iterator[str]:
    """Yield what bound the calls of the keys that were used longest, a line each."""
    longest = sorted(snapshot.keys.values(), key=lambda each: -each.elapsed)[:MAX_SHOWN_WAITS]
    yield from (f"{text} · {state.key}" for state in longest if (text := state.binding_text))


def _scores(scores: Sequence[Score]) -> Table:
    made = table("evaluator", "mean", "n", "failed", "labels", right=("mean", "n", "failed"))
    for each in scores:
        mean = (
            NOTHING if each.mean is None else f"{each.mean:.3f}" if abs(each.mean) < LARGE_MEAN else f"{each.mean:.3e}"
        )
        # Labels and values without a score have no mean, and yet are counted.
        number = each.scored or each.ok
        labels = _labels(each) or ("" if number or each.failed else "no values yet")
        made.add_row(Text(each.title), mean, str(number), bad(each.failed), Text(labels))
    return made


def _failures(failures: Sequence[Failure]) -> Table:
    made = table("failures", "kind", "count", "example", right=("count",))
    for each in failures:
        stage = each.evaluator or "task"
        made.add_row(
            Text(f"{stage} {each.status}"), Text(each.kind or NOTHING), bad(each.count), cut(each.example or "")
        )
    return made


def _shortened(label: str) -> str:
    return label if len(label) <= LABEL_CHARACTERS else label[: LABEL_CHARACTERS - 1] + "…"


def _labels(score: Score) -> str:
    most = sorted(score.labels.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{_shortened(printable(label))} {count}" for label, count in most[:MAX_SHOWN_LABELS]]
    return ", ".join(shown + (["…"] if len(most) > MAX_SHOWN_LABELS else []))


LOOK_SECONDS = 0.25
"""Seconds between two updates of the display. Chosen: a person sees changes as they happen."""

LINE_SECONDS = 10.0
"""Seconds between two lines without a terminal. Precedent: the order of pip and docker, which a log can hold."""

MIN_SHOWN_WAIT_SECONDS = 0.05
"""Seconds of the shortest wait that is shown. Chosen: a shorter wait is over before it is read."""

MAX_SHOWN_WAITS = 6
"""Most lines about waits that are shown at once; the others are counted. Chosen: the display stays small below the
table of stages."""


BAR_COLUMNS, LEAST_BAR_COLUMNS, BESIDE_COLUMNS = 30, 8, 44
"""Columns of a progress bar: `BAR_COLUMNS` is the longest one, `LEAST_BAR_COLUMNS` the shortest one, and
`BESIDE_COLUMNS` is kept for the text beside it. Chosen: `BAR_COLUMNS`, `BESIDE_COLUMNS` and `ECHO_COLUMNS` fit in 80
columns."""


ECHO_COLUMNS = 4
"""Columns that stay free. Derived from the echo of one or two Ctrl-C (`^C` each), which must start no new row under the
picture."""


def waits(
    stages: Sequence[StageProgress], snapshot: RegistrySnapshot, trouble: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return why work waits: the stages that the runner holds back, then the calls in the queues of keys.

    `trouble` describes the last failed attempt of each key, which is the reason for an open circuit breaker. A gate
    is a limiter of a key that holds calls back.
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
    states = {str(key): state for key, state in snapshot.keys.items()}
    for (key, reason), names in held.items():
        seconds = soonest[key, reason]
        if key:
            shown = None if math.isinf(seconds) else seconds if seconds >= MIN_SHOWN_WAIT_SECONDS else 0.0
            lines.append(f"{', '.join(names)}: {_why(reason, shown, trouble.get(key), states.get(key))} · {key}")
        else:
            until = "" if math.isinf(seconds) or seconds < MIN_SHOWN_WAIT_SECONDS else f", next in {seconds:.1f} s"
            lines.append(f"{', '.join(names)}: {_HELD.get(reason, reason)}{until}")
    for name, state in states.items():
        if state.waiting:
            until = "" if state.eta is None else f", ETA {clock(state.eta)}"
            shown = None if math.isinf(state.ready_in) else state.ready_in
            closed = state.gate or state.eta_gate
            calls = "1 call" if state.waiting == 1 else f"{state.waiting} calls"
            lines.append(f"{calls}: {_why(closed, shown, trouble.get(name), state)}{until} · {name}")
    beyond = len(lines) - MAX_SHOWN_WAITS
    return lines[:MAX_SHOWN_WAITS] + ([f"{beyond} more waits"] if beyond > 0 else [])


_HELD = {
    "concurrency": "the maximum of functions is in flight (max_concurrency)",
    "own work": "functions are busy outside of calls; more of them would not end sooner",
    "memory": "the rows in flight fill the memory that they may use",
    "descriptors": "this process may open no more connections (ulimit -n)",
    "functions": "this machine carries no more functions at once",
}
"""Texts for limits of the runner itself, by the reason of a `Wait` without a key."""


def _why(gate: str, seconds: float | None, trouble: str | None, state: KeySnapshot | None) -> str:
    """Return why a key holds calls back and when the next one goes, in `seconds` (None: unknown)."""
    if state is not None and gate == "concurrency" and state.pool and state.limit >= state.pool:
        return f"all {state.pool} connections of the client's pool are taken; a client with more goes faster"
    stated = state.stated_wait if state is not None else 0.0
    return wait_text(gate, seconds, stated, (trouble or "") if gate == "breaker" else "")


class ProgressBoard(NamedTuple):
    """Picture of a run, as wide as the terminal allows. A narrow terminal has no bars."""

    name: str
    tally: ShownCounts
    waiting: Sequence[str]
    note: str
    ending: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - ECHO_COLUMNS)
        head = Text(self.name, style="bold", overflow="fold")
        yield Constrain(head.append(f"  {self.note}", style="yellow") if self.note else head, width)
        yield Constrain(self._table(width - BESIDE_COLUMNS), width)
        if self.tally.spent:
            yield Constrain(Text(f"spent  {self.tally.spent}", style="dim", no_wrap=True, overflow="ellipsis"), width)
        for each in self.waiting:
            yield Constrain(Text(f"waiting  {each}", style="dim", no_wrap=True, overflow="ellipsis"), width)

    def _table(self, room: int) -> Table:
        tally, bars = self.tally, room >= LEAST_BAR_COLUMNS
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        # Counts of tasks and evaluations together are shown once, in the row of the tasks.
        more = {"failed": bad(tally.failed), "parked": str(tally.parked), "ETA": self._eta}
        if not bars and not tally.parked:
            del more["parked"]
        for column in ("", *([""] if bars else []), "", *more):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name, pace in (("tasks", tally.tasks), ("evaluations", tally.evals))[: 2 if tally.evaluators else 1]:
            bar = [_bar(pace, min(room, BAR_COLUMNS))] if bars else []
            table.add_row(name, *bar, _part(pace), *(more.values() if pace is tally.tasks else ()))
        return table

    @property
    def _eta(self) -> str:
        return "" if self.ending or self.tally.eta is None else clock(self.tally.eta)


def line(name: str, tally: ShownCounts, waiting: Sequence[str], note: str) -> str:
    parts = [f"{_part(tally.tasks)} tasks"]
    if tally.evaluators:
        parts.append(f"{_part(tally.evals)} evaluations")
    parts += [f"{tally.failed} failed"] if tally.failed else []
    parts += [f"{tally.parked} parked"] if tally.parked else []
    parts += [f"ETA {clock(tally.eta)}"] if tally.eta and not note else []
    parts += [tally.spent] if tally.spent else []
    parts += [f"waiting: {waiting[0]}"] if waiting else []
    return f"{name}: {', '.join(parts)}" + (f" ({note})" if note else "")


class Display:
    """Display of one run on a console. `say` prints a lasting line; `note` is a text next to the name."""

    def __init__(self, name: str, console: Console) -> None:
        self.note = ""
        self._ending = False
        self._name = name
        self._console = console
        self._live: Live | None = None
        self._line_at: float | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        # The experiment prints on standard output; if both are one terminal, its output goes above the picture.
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
        """Announce how the run is about to end: in the picture, or as a line without one."""
        self._ending = True
        self.note = note
        if self._live is None:
            self.say(f"{self._name}: {note}")

    def update(self, tally: ShownCounts, waiting: Sequence[str], now: float) -> None:
        """Show the progress at `now` (monotonic seconds)."""
        if self._live is not None:
            # A closed terminal has no reader; the run receives SIGHUP then.
            with contextlib.suppress(OSError):
                self._live.update(ProgressBoard(self._name, tally, waiting, self.note, self._ending), refresh=True)
            return
        if self._line_at is None:
            # A run that ends before the first line is due prints none.
            self._line_at = now
        if now - self._line_at >= LINE_SECONDS:
            self._line_at = now
            self.say(line(self._name, tally, waiting, self.note))

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, soft_wrap=True)


def _bar(pace: ShownRate, width: int) -> ProgressBar:
    total, done = max(1, pace.total), min(pace.done, pace.total)
    return ProgressBar(total=total, completed=done, width=width, complete_style="cyan", finished_style="green")


def _part(pace: ShownRate) -> str:
    return f"{pace.done}/{pace.total}"
