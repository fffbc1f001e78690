"""Commands `tidegate experiment show`, `stop` and `delete`, which work through the database."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from tidegate.cli.common import stop
from tidegate.core.safe_text import json_line, printable
from tidegate.core.token_totals import TokenTotals, added, cost_text, token_facts
from tidegate.core.wait_text import wait_text
from tidegate.errors import CoolingDown
from tidegate.experiments.commands import display
from tidegate.experiments.commands.common import Code, after_cooldown, command, existing, found
from tidegate.experiments.commands.display import cut, printer, table
from tidegate.experiments.engine.claims import stop_and_delete
from tidegate.experiments.engine.loader import lacking
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
    Failure,
    LoggedLine,
    ResultStatus,
    Score,
    Status,
    Store,
    Toggle,
)
from tidegate.experiments.storage.results import KEPT_LINES
from tidegate.experiments.storage.stage_sums import TASKS
from tidegate.experiments.storage.tally import StageTally
from tidegate.launch.totals import KeyTotal, facts_of

NOT_SHOWN = frozenset({"type", "id", "stats", "answered_by", "warnings"})
"""Details of a log line that are shown in another form; an older line of an end has the last two."""


NARROW_COLUMNS = 60
"""Columns of a terminal below which the list counts failed and parked items beside the reason. Chosen: a name of 15
characters has room."""

WIDE_COLUMNS = 100
"""Columns of a terminal from which the list has one for the reason. Derived: the others take about 65 with a name of 15
characters."""


async def shown(name: str, url: str, as_json: bool, lines: int) -> None:
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
        told = {**summary_facts(summary, failures), **whose, "keys": waits, "log": [_logged(each) for each in log]}
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
    credentials: Any = row.spec.get("credentials") or ()
    missing = lacking(credentials)
    if missing and missing != row.last_error and row.status is not Status.RUNNING and not summary.complete:
        console.print(f"not to be continued here: {missing}", markup=False, soft_wrap=True)
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
    async with existing(url, to_read=True) as store:
        rows = await store.experiments.every()
        numbers = [row.id for row in rows]
        tallies, spends = await store.tallies.of(numbers), await store.usages.spends(numbers)
        replicas = {row.id: await _replicas(store, row) for row in rows}
        batches = await store.batches.counts()
    spent = {number: added(stages.values()) for number, stages in spends.items()}
    if as_json:
        for row in rows:
            more: dict[str, Any] = {"spend": token_facts(spent[row.id]), "cost": spent[row.id].cost}
            if row.id in batches:
                more["batches"] = batches[row.id]
            typer.echo(json_line({**facts(row, tallies[row.id]), "replicas": replicas[row.id], **more}))
    elif rows:
        reasons = [_why(row, replicas[row.id], batches.get(row.id, {})) for row in rows]
        console = printer()
        wide, narrow = console.width >= WIDE_COLUMNS, console.width < NARROW_COLUMNS
        if narrow:
            reasons = [_with_failures(tallies[row.id], reason) for row, reason in zip(rows, reasons, strict=True)]
        console.print(_table(rows, tallies, spent, reasons if wide else None, narrow=narrow))
        for row, reason in zip(rows, reasons, strict=True):
            if reason and not wide:
                console.print(Text(" ".join(printable(f"{row.name}: {reason}").split())))
    else:
        typer.echo("no experiments in this database; `tidegate experiment run` adds one")


def facts(row: ExperimentRow, stages: Mapping[str, StageTally]) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "runs": _of_tasks(stages).counts,
        "unjudged": dict(_unjudged(stages)),
        "claimed_by": row.claimed_by,
        "last_error": row.last_error,
        "created_at": row.created_on.isoformat(),
    }


def _of_tasks(stages: Mapping[str, StageTally]) -> StageTally:
    return stages.get(TASKS, StageTally())


def _unjudged(stages: Mapping[str, StageTally]) -> Counter[str]:
    return sum((Counter(each.failed) for name, each in stages.items() if name != TASKS), Counter())


def _failures(stages: Mapping[str, StageTally]) -> tuple[int, int]:
    """Return the number of failed and of parked items of all stages."""
    counts = Counter(_of_tasks(stages).failed) + _unjudged(stages)
    return counts[ResultStatus.ERROR] + counts[ResultStatus.INVALID], counts[ResultStatus.PARKED]


def _with_failures(stages: Mapping[str, StageTally], reason: str) -> str:
    failed, parked = _failures(stages)
    counted = [f"{count} {word}" for count, word in ((failed, "failed"), (parked, "parked")) if count]
    return ", ".join([*counted, *([reason] if reason else [])])


def _table(
    rows: list[ExperimentRow],
    tallies: Mapping[int, Mapping[str, StageTally]],
    spent: Mapping[int, TokenTotals],
    reasons: list[str] | None,
    *,
    narrow: bool,
) -> Table:
    """Return the table of experiments; a `narrow` one counts only the answers."""
    cost = ["cost"] if any(tokens.priced for tokens in spent.values()) and not narrow else []
    numbers = ("answered", *(() if narrow else ("failed", "parked")), *cost)
    more = () if reasons is None else ("created", "reason")
    made = table("experiment", "state", *numbers, *more, right=numbers, whole=("state", "created"))
    for place, row in enumerate(rows):
        tasks = _of_tasks(tallies[row.id])
        failed, parked = _failures(tallies[row.id])
        cells = [
            state_text(row),
            f"{tasks.counts.get('ok', 0)}/{row.rows * row.repetitions}",
            *(() if narrow else (str(failed), str(parked))),
            *([cost_text(spent[row.id], least="≥ ") or display.NOTHING] if cost else []),
            *([] if reasons is None else [f"{row.created_on.astimezone():%Y-%m-%d %H:%M}", reasons[place]]),
        ]
        made.add_row(Text(printable(row.name)), *map(cut, cells))
    return made


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
        typer.echo(f"{row.name} does not run: its state is {now.status}")
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


def summary_facts(summary: Summary, failures: Sequence[Failure]) -> dict[str, Any]:
    """Return an experiment as plain values. A mean is over `n` scored answers; a failure is no score."""
    row = summary.experiment
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "last_error": row.last_error,
        "dataset": row.source,
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "claimed_by": row.claimed_by,
        "quiet": row.quiet,
        "runs": {status.value: summary.counts.runs.get(status, 0) for status in ResultStatus},
        "untried": summary.untried,
        "evaluations": {
            name: {status.value: counts.get(status, 0) for status in ResultStatus}
            for name, counts in summary.counts.annotations.items()
        },
        "scores": [_score_facts(each) for each in summary.scores],
        "stats": summary.stats.to_json(),
        "attempts": dict(summary.attempts),
        "answered_by": summary.answered_by,
        "warnings": list(summary.warnings),
        "failures": [_failure_facts(each) for each in failures],
        "spend": {stage: token_facts(tokens) for stage, tokens in summary.spend.items()},
        "cost": summary.tokens.cost,
        "batches": [each.facts() for each in summary.batches],
    }


def _score_facts(score: Score) -> dict[str, Any]:
    return {
        "evaluator": score.evaluator,
        "output": score.output,
        "n": score.scored,
        "mean": score.mean,
        "ok": score.ok,
        "failed": score.failed,
        "labels": dict(score.labels),
    }


def _failure_facts(failure: Failure) -> dict[str, Any]:
    return {
        "stage": failure.evaluator or "task",
        "status": failure.status.value,
        "kind": failure.kind,
        "count": failure.count,
        "example": failure.example,
    }
