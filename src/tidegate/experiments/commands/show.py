"""Commands `tidegate experiment show`, `stop` and `delete`, which work through the database."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import typer
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table

from tidegate.cli.console import UNBOUNDED
from tidegate.cli.errors import stop
from tidegate.core.safe_text import json_line
from tidegate.core.token_totals import TokenTotals, added, cost_text, token_facts
from tidegate.core.wait_text import wait_text
from tidegate.errors import CoolingDown
from tidegate.experiments.commands import display
from tidegate.experiments.commands.common import Code, after_cooldown, command, existing, found
from tidegate.experiments.commands.display import cut, printer, table
from tidegate.experiments.engine.claims import stop_and_delete
from tidegate.experiments.engine.progress import Summary
from tidegate.experiments.engine.replica import (
    STALE_SECONDS,
    actor,
    is_dead,
    owner,
    replica_tag,
    state_text,
    stopper,
)
from tidegate.experiments.storage import (
    BatchState,
    ExperimentRow,
    ExperimentSummary,
    Failure,
    LoggedLine,
    ResultStatus,
    Status,
    Store,
    Toggle,
)
from tidegate.experiments.storage.results import KEPT_LINES
from tidegate.launch.totals import KeyTotal, facts_of

NOT_SHOWN = frozenset({"type", "id", "stats", "answered_by", "warnings"})
"""Details of a log line that are shown in another form."""

MIN_WIDTH_WITH_REASON = 100
"""Columns of a terminal from which the list has a column for the reason. Raising it puts reasons on lines of their own
in wider terminals. Derived: the other columns take about 65 with a name of 15 characters."""

NUMBERS = frozenset({"answered", "failed", "parked", "cost"})
"""Columns of the list that hold numbers."""

DISPENSABLE = ("created", "cost", "parked", "failed")
"""Columns that a narrow list leaves out, the first one first, until the names fit."""


async def shown(name: str, url: str, as_json: bool, lines: int) -> None:
    """Print the state of an experiment."""
    async with existing(url, to_read=True) as store:
        row = await found(store, name)
        summary = await Summary.read(store, row)
        failures = await store.reports.failures(row.id)
        replicas = await _replicas(store, row)
        log = await store.reports.last_logs(row.id, max(lines, KEPT_LINES))
    by, stopped = owner(row, log) if row.status is Status.RUNNING else "", stopper(row, log)
    log = log[len(log) - lines :] if lines < len(log) else log
    keys = _keys(summary)
    if as_json:
        now = time.monotonic()
        waits = [facts_of(key, now) for key in keys]
        whose = {"run_by": by or None, "stopped_by": stopped or None, "replicas": replicas}
        told = {**display.facts(summary, failures), **whose, "keys": waits, "log": [_logged(each) for each in log]}
        typer.echo(json_line(told))
        return
    _print(summary, failures, keys, log, url, by, stopped, replicas)


def _print(
    summary: Summary,
    failures: list[Failure],
    keys: list[KeyTotal],
    log: list[LoggedLine],
    url: str,
    by: str,
    stopped: str,
    replicas: int,
) -> None:
    console = printer()
    console.print(summary.headline, markup=False, soft_wrap=True)
    row = summary.experiment
    console.print(f"dataset: {row.source}{'' if row.complete else ', not yet read to its end'}", markup=False)
    if row.status is Status.RUNNING:
        heartbeat = f", last heartbeat {row.quiet:.0f} s ago" if row.quiet is not None else ""
        if is_dead(row.claimed_by):
            heartbeat = f", whose process has ended: {command('run', row.name, url)} continues it"
        console.print(f"run by replica {row.claimed_by}{heartbeat}", markup=False, soft_wrap=True)
        console.print(f"  {by}", markup=False, soft_wrap=True)
        if replicas > 1:
            console.print(f"  {_others(replicas)}", markup=False)
        for line in _waits(keys, time.monotonic()):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if stopped:
        console.print(f"stopped by {stopped}", markup=False, soft_wrap=True)
    for each_table in display.tables(summary, failures):
        console.print(each_table)
    for each_line in display.calls(summary):
        console.print(each_line, markup=False, soft_wrap=True)
    parked = sum(each.count for each in failures if each.status is ResultStatus.PARKED)
    if parked and row.status is not Status.RUNNING:
        said = f"{parked} parked; {command('run', row.name, url)} tries them again"
        console.print(said, markup=False, soft_wrap=True)
    for each in log:
        console.print(_line(each), markup=False, soft_wrap=True)


async def _replicas(store: Store, row: ExperimentRow) -> int:
    """Return the number of replicas that answer rows of an experiment now."""
    if row.status is not Status.RUNNING:
        return 0
    if not row.spec.get("spread"):
        return 1
    # The owner may hold no chunk while it judges the last answers.
    return max(1, await store.chunks.workers(row.id, STALE_SECONDS))


def _others(replicas: int) -> str:
    return f"{replicas} replicas answer its rows"


def _keys(summary: Summary) -> list[KeyTotal]:
    """Return the keys of the process that runs the experiment, if it runs on this machine."""
    replica = summary.experiment.claimed_by
    if replica is None or os.name != "posix":
        return []
    from tidegate.launch.runs import keys_of

    return keys_of(replica_tag(replica))


def _waits(keys: list[KeyTotal], now: float) -> Iterator[str]:
    for key in keys:
        # Items for this key may wait outside its queue: state when the next one goes.
        head = key.head_wait(key.outlook(now))
        when = wait_text(*head) if head.gate else "next call now"
        yield f"{key.key}: {key.in_flight} of at most {key.slots} in flight, {when}"


def _line(line: LoggedLine) -> str:
    """Format a log line: its time, level and category, then the event and its details. A row's id stands for it."""
    kind = line.detail.get("type", "")
    facts = {name: value for name, value in line.detail.items() if name not in NOT_SHOWN}
    if "id" in line.detail:
        facts["row"] = line.detail["id"]
    details = [f"{name} {value}" for name, value in facts.items()]
    told = f"{kind} ({', '.join(details)})" if details else kind
    return f"{line.at.astimezone():%Y-%m-%d %H:%M:%S} {line.level} {line.category} {told}"


def _logged(line: LoggedLine) -> dict[str, Any]:
    return {
        "at": line.at.isoformat(),
        "level": line.level.value,
        "category": line.category.value,
        "detail": dict(line.detail),
    }


async def listed(url: str, as_json: bool) -> None:
    """Print the experiments, newest first."""
    async with existing(url, to_read=True) as store:
        summaries = await store.experiments.every()
        replicas = {each.experiment.id: await _replicas(store, each.experiment) for each in summaries}
        spends = await store.usages.spends([each.experiment.id for each in summaries])
        batches = await store.batches.counts()
    spent = {number: added(stages.values()) for number, stages in spends.items()}
    if as_json:
        for each in summaries:
            number = each.experiment.id
            more: dict[str, Any] = {"spend": token_facts(spent[number]), "cost": spent[number].cost}
            if number in batches:
                more["batches"] = batches[number]
            typer.echo(json_line({**facts(each), "replicas": replicas[number], **more}))
    elif summaries:
        printer().print(_table(summaries, replicas, spent, batches))
    else:
        typer.echo("no experiments in this database; `tidegate experiment run` adds one")


def facts(each: ExperimentSummary) -> dict[str, Any]:
    """Return one experiment as plain values."""
    row = each.experiment
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "runs": {status.value: count for status, count in each.runs.items()},
        "unjudged": {status.value: count for status, count in each.unjudged.items()},
        "claimed_by": row.claimed_by,
        "last_error": row.last_error,
        "created_at": row.created_on.isoformat(),
    }


class ExperimentTable(NamedTuple):
    """Table of experiments by column; the name and the state fit any terminal.

    A wide terminal has the reason as the last column. A narrow one has it below its experiment, and no column that has
    no room beside the names.
    """

    columns: Mapping[str, list[str]]
    reasons: list[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = dict(self.columns)
        if options.max_width >= MIN_WIDTH_WITH_REASON:
            yield self._table({**columns, "reason": self.reasons})
            return
        unlimited = options.update_width(UNBOUNDED)
        for name in DISPENSABLE:
            if Measurement.get(console, unlimited, self._table(columns)).maximum > options.max_width:
                columns.pop(name, None)
        lines = console.render_lines(self._table(columns), options, pad=False)
        head = len(lines) - len(self.reasons)
        for reason, line in zip([""] * head + self.reasons, lines, strict=True):
            yield from (*line, Segment.line())
            if reason:
                yield Padding(cut(reason), (0, 0, 0, 2))

    def _table(self, columns: Mapping[str, list[str]]) -> Table:
        numbers = tuple(name for name in columns if name in NUMBERS)
        made = table(*columns, right=numbers, whole=("state", "created"))
        for cells in zip(*columns.values(), strict=True):
            made.add_row(*map(cut, cells))
        return made


def _table(
    summaries: list[ExperimentSummary],
    replicas: dict[int, int],
    spent: Mapping[int, TokenTotals],
    batches: dict[int, dict[str, int]],
) -> ExperimentTable:
    rows = [each.experiment for each in summaries]
    costs = [cost_text(spent[row.id], least="≥ ") or display.NOTHING for row in rows]
    columns = {
        "experiment": [row.name for row in rows],
        "state": [state_text(row) for row in rows],
        "answered": [
            f"{each.runs.get(ResultStatus.OK, 0)}/{row.rows * row.repetitions}"
            for each, row in zip(summaries, rows, strict=True)
        ],
        "failed": [str(each.count(ResultStatus.ERROR, ResultStatus.INVALID)) for each in summaries],
        "parked": [str(each.count(ResultStatus.PARKED)) for each in summaries],
        **({"cost": costs} if any(tokens.priced for tokens in spent.values()) else {}),
        "created": [f"{row.created_on.astimezone():%Y-%m-%d %H:%M}" for row in rows],
    }
    return ExperimentTable(columns, [_why(row, replicas[row.id], batches.get(row.id, {})) for row in rows])


def _why(row: ExperimentRow, replicas: int, batches: dict[str, int]) -> str:
    if row.status is Status.RUNNING and is_dead(row.claimed_by):
        return "its process has ended: run continues it"
    if replicas > 1:
        return _others(replicas)
    left = sum(count for state, count in batches.items() if state != BatchState.FETCHED)
    return row.last_error or (f"{left} {'batch' if left == 1 else 'batches'} not fetched" if left else "")


async def stop_named(name: str, url: str) -> int:
    """Stop an experiment. Return exit code 0, also if it was not running."""
    async with existing(url) as store:
        row = await found(store, name)
        notice = f"{row.name} not stopped yet: it was started or resumed a moment ago; it is stopped"
        toggled = await after_cooldown(partial(_stopped, store, row), partial(typer.echo, err=True), notice)
        # The state may have changed during a cooldown.
        now = await found(store, name) if toggled is Toggle.ALREADY else row
    if toggled is Toggle.ALREADY:
        typer.echo(f"{row.name} not stopped: its state is {now.status}")
    elif row.status is Status.RUNNING:
        typer.echo(f"{row.name} stopped: replica {row.claimed_by} ends its run at the next heartbeat")
    else:
        typer.echo(f"{row.name} stopped")
    return Code.DONE


async def _stopped(store: Store, row: ExperimentRow) -> Toggle:
    toggled = await store.claims.stop(row.id, actor())
    if toggled is Toggle.COOLING:
        raise CoolingDown(row.name)
    return toggled


async def delete_named(name: str, url: str, *, yes: bool, force: bool) -> int:
    """Delete an experiment after a confirmation. Return the exit code."""
    say = partial(typer.echo, err=True)
    async with existing(url) as store:
        row = await found(store, name)
        counts = await store.reports.counts(row.id)
        answers = counts.runs.get(ResultStatus.OK, 0)
        held = f"{counts.rows} {'row' if counts.rows == 1 else 'rows'}, {answers} answered"
        if not yes:
            if not sys.stdin.isatty():
                confirmed = command("delete", row.name, url, "--yes")
                raise stop(f"{row.name} not deleted: it has {held}; {confirmed} deletes it", Code.UNUSABLE)
            if not typer.confirm(f"Delete {row.name} ({held})?"):
                say(f"{row.name} not deleted")
                return Code.FAILED
        if row.status is Status.RUNNING and not force and not is_dead(row.claimed_by):
            say(
                f"{row.name} not deleted yet: replica {row.claimed_by} runs it; its run is stopped, and waited for at "
                f"most {STALE_SECONDS:.0f} s"
            )
        notice = f"{row.name} not deleted yet: it was started or resumed a moment ago; it is stopped"
        deleting = partial(stop_and_delete, store, row, force=force, patience=STALE_SECONDS)
        await after_cooldown(deleting, say, notice)
    typer.echo(f"{row.name} deleted: {held}")
    return Code.DONE
