"""Answers of the experiments view: plain values made from rows, tallies and logs of the store."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tidegate.core.safe_text import printable
from tidegate.core.token_totals import TokenTotals, added, token_facts
from tidegate.core.wait_text import wait_text
from tidegate.experiments.engine.progress import added_up
from tidegate.experiments.engine.replica import is_dead, owner, replica_tag, state_text, stopper
from tidegate.experiments.screens.source import ExperimentSource
from tidegate.experiments.storage import (
    BatchRecord,
    BatchState,
    ExperimentRow,
    LoggedLine,
    ResultStatus,
    Score,
    Status,
    Store,
    StoredRun,
)
from tidegate.experiments.storage.database import has_secret, parsed
from tidegate.experiments.storage.records import score_title
from tidegate.experiments.storage.row_pages import CELL_CHARACTERS, ROW_CHARACTERS, RowPage
from tidegate.experiments.storage.stage_sums import TASKS
from tidegate.experiments.storage.tally import OutputTally, StageTally, scores_of
from tidegate.launch.runs import keys_of
from tidegate.server.limit_history import shown_facts

SHOWN_LOG_LINES = 50
"""Log lines that are shown of an experiment."""

READ_LOG_LINES = 400
"""Log lines that are read to find who runs or has stopped an experiment."""

SHOWN_CHARACTERS = 100_000
"""Characters of a text that are shown of one row. Chosen: a person reads less, and a browser lays it out at once; the
export has the whole."""

SHOWN_ATTEMPTS = 100
"""Kept attempts that are shown of one row."""

KEPT_FACTS = ("stage", "waited", "latency", "status", "kind", "cause", "http_status", "key")
"""Columns of a kept attempt that are shown."""

SHOWN_BATCHES = 50
"""Batches that are shown one by one, of those that are not fetched. Chosen: a million rows are 20 full batches."""

Stages = Mapping[str, StageTally]


Spend = Mapping[str, TokenTotals]


def summary(row: ExperimentRow, stages: Stages, spend: Spend, source: ExperimentSource) -> dict[str, Any]:
    """Return one experiment of the list."""
    return {
        "id": row.id,
        "name": row.name,
        "status": row.status.value,
        "state": state_text(row).lower(),
        "why": _why(row),
        "dead": row.status is Status.RUNNING and is_dead(row.claimed_by),
        "quiet": row.quiet,
        "cooling": row.cooling,
        "created": row.created_on.timestamp(),
        "rows": row.rows,
        "rows_complete": row.complete,
        "repetitions": row.repetitions,
        "tokens": token_facts(added(spend.values())),
        "budget": row.spec.get("budget"),
        **_progress(row, stages, source),
    }


async def details(store: Store, row: ExperimentRow, stages: Stages, source: ExperimentSource) -> dict[str, Any]:
    spend = await store.usages.spend(row.id)
    log = await store.reports.last_logs(row.id, READ_LOG_LINES)
    claims = await store.reports.claim_stats(row.id)
    stats = added_up(claims)
    started = source.started.get(row.id)
    return {
        **summary(row, stages, spend, source),
        "source": row.source,
        "task": row.spec.get("task"),
        "model": _model(row),
        "runs": len(claims),
        "unusable": {} if find_spec("pyarrow") else {"parquet": "pyarrow not installed; run: pip install pyarrow"},
        "run_by": owner(row, log) if row.status is Status.RUNNING else "",
        "stopped_by": stopper(row, log),
        "keys": _keys(row),
        "stages": [_stage(name, stages, spend, row) for name in _names(row, stages)],
        "batches": _batches(await store.batches.of(row.id)),
        "log": [_line(each) for each in reversed(log[-SHOWN_LOG_LINES:])],
        "calls": stats.to_json() if stats.calls else None,
        "commands": {verb: command(verb, row.name, source.url) for verb in ("run", "stop", "show", "export")},
        "started": None
        if started is None
        else {"pid": started.process.pid, "code": started.code, "said": printable(started.said)},
    }


def _model(row: ExperimentRow) -> str:
    """Return the model of an experiment that is declared in a file; empty where its code names one."""
    declared = row.spec.get("declared")
    task = declared.get("task") if isinstance(declared, Mapping) else None
    return str(task.get("model") or "") if isinstance(task, Mapping) else ""


def _batches(records: Sequence[BatchRecord]) -> dict[str, Any] | None:
    """Return the batches at a provider's Batch API by state, and those that are not fetched; None without any."""
    if not records:
        return None
    counts = Counter(each.state for each in records)
    left = [each for each in records if each.state is not BatchState.FETCHED]
    return {
        "counts": {state.value: counts[state] for state in BatchState if counts[state]},
        "left": [_batch(each) for each in left[:SHOWN_BATCHES]],
        "rows": sum(each.count for each in left),
        "more": len(left) > SHOWN_BATCHES,
    }


def _batch(record: BatchRecord) -> dict[str, Any]:
    made = record.created_at
    return {**record.facts(), "detail": record.detail or "", "created": made.timestamp() if made is not None else None}


def page(found: RowPage) -> dict[str, Any]:
    return {
        "rows": [_result(row, judged) for row, judged in found.rows],
        "more": found.more,
        "searched": found.searched,
    }


async def one_row(store: Store, number: int, run: StoredRun) -> dict[str, Any]:
    """Return one row with its whole texts, as far as a person reads them."""
    after = (run.ordinal, run.repetition, "", -1, -1)
    kept = [
        each
        for each in await store.reports.attempts(number, after=after, limit=SHOWN_ATTEMPTS)
        if (each["ordinal"], each["repetition"]) == run.cursor
    ]
    return {
        "ordinal": run.ordinal,
        "repetition": run.repetition,
        "name": run.name,
        "status": run.status.value,
        "row": _whole(run.row),
        "output": _whole(run.output) if run.status is ResultStatus.OK else None,
        "error_kind": run.error_kind,
        "error": run.error,
        "attempts": run.attempts,
        "seconds": run.seconds,
        "finished": run.finished_on.timestamp(),
        "answered_by": [each._asdict() for each in run.answered_by],
        "usages": [
            {
                "stage": stage,
                **token_facts(usage.tokens),
                "model": usage.model,
                "finish_reason": usage.finish_reason,
                "request_id": usage.request_id,
                "waited": usage.waited,
            }
            for stage, usage in sorted(run.usages.items(), key=lambda each: (each[0] != TASKS, each[0]))
        ],
        "judgements": [
            {
                "evaluator": evaluator,
                "output": one.output,
                "status": one.status.value,
                "score": one.score,
                "label": one.label,
                "value": None if one.value is None else _whole(json.loads(one.value)),
                "error_kind": one.error_kind,
                "error": one.error,
            }
            for evaluator, one in run.annotations
        ],
        "kept_attempts": [
            {**{name: each[name] for name in KEPT_FACTS}, "at": each["started_at"].timestamp()} for each in kept
        ],
    }


def command(verb: str, name: str, url: str) -> str:
    """Return the command as it is typed in a shell; a URL with a password is replaced by `…`."""
    database = "…" if has_secret(parsed(url)) else shlex.quote(url)
    words = ["tidegate", "experiment", verb, *(["--"] if name.startswith("-") else []), name]
    return f"{' '.join(shlex.quote(word) for word in words)} --db {database}"


def readable(text: str | None, limit: int = CELL_CHARACTERS) -> str | None:
    """Return the beginning of a JSON text as people read it: a text without its quotation marks and escapes."""
    if text is None or not text.startswith('"'):
        return None if text is None else text[:limit] + ("…" if len(text) > limit else "")
    if len(text) <= limit and text.endswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            pass
    # The cut may be inside an escape, which has at most six characters, and twelve with its second half.
    last = min(len(text), limit)
    for end in range(last, max(0, last - 13), -1):
        try:
            return str(json.loads(text[:end] + '"')) + "…"
        except ValueError:
            continue
    return text[:limit] + "…"


def _evaluators(row: ExperimentRow) -> list[str]:
    asked = row.spec.get("evaluators")
    return list(asked) if isinstance(asked, Mapping) else []


def _names(row: ExperimentRow, stages: Stages) -> list[str]:
    """Return the stages: the tasks, the evaluators that the experiment has, then those that it had."""
    names = _evaluators(row)
    return [TASKS, *names, *sorted(name for name in stages if name != TASKS and name not in names)]


def _progress(row: ExperimentRow, stages: Stages, source: ExperimentSource) -> dict[str, Any]:
    tasks = stages.get(TASKS, StageTally())
    names = _evaluators(row)
    judges = [stages.get(name, StageTally()) for name in names]
    total = row.rows * row.repetitions
    expected = _to_judge(stages, total) * len(judges)
    judged = sum(each.items for each in judges)
    failed = sum(each.failed.get(status, 0) for each in (tasks, *judges) for status in ("error", "invalid"))
    etas = [source.eta(row.id, row.epoch, TASKS, tasks.items, total)]
    if judges:
        etas.append(source.eta(row.id, row.epoch, "", judged, expected))
    running = row.status is Status.RUNNING and row.complete
    return {
        "tasks": _part([tasks], total),
        "evaluations": _part(judges, expected) if judges else None,
        "failed": failed,
        "parked": sum(each.failed.get("parked", 0) for each in (tasks, *judges)),
        "invalid": tasks.failed.get("invalid", 0),
        "eta": max(eta for eta in etas if eta is not None) if running and None not in etas else None,
        "means": [
            {"title": score_title(name, output), "mean": one.mean, "n": one.scored}
            for name in names
            for output, one in (stages[name].outputs.items() if name in stages else ())
            if one.scored
        ],
    }


def _to_judge(stages: Stages, total: int) -> int:
    """Return the rows that an evaluator judges: those with an answer, and those not tried yet, which may get one."""
    tasks = stages.get(TASKS, StageTally())
    return max(0, max(total, tasks.items) - (tasks.items - tasks.counts.get("ok", 0)))


def _part(stages: Sequence[StageTally], total: int) -> dict[str, int]:
    """Return the items of stages together: all that are done, and those that are ok and parked."""
    done, ok, parked = sum(each.items for each in stages), _count(stages, "ok"), _count(stages, "parked")
    return {"done": done, "ok": ok, "parked": parked, "failed": done - ok - parked, "total": max(total, done)}


def _count(stages: Sequence[StageTally], status: str) -> int:
    return sum(each.counts.get(status, 0) for each in stages)


def _why(row: ExperimentRow) -> str:
    if row.status is Status.RUNNING and is_dead(row.claimed_by):
        return "its process has ended; run continues it"
    return row.last_error or ""


def _keys(row: ExperimentRow) -> list[dict[str, Any]]:
    """Return the keys of the process that runs the experiment, where that is one of this user on this machine."""
    if row.claimed_by is None or row.status is not Status.RUNNING or os.name != "posix":
        return []
    now = time.monotonic()
    return [_held(shown_facts(key, now)) for key in keys_of(replica_tag(row.claimed_by))]


def _held(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a key with the reason of a wait, also of rows that the runner keeps outside the queue."""
    gate = facts["gate"]
    blocked = facts["blocked"] or (wait_text(gate, facts["next_in"], facts["stated_wait"]) if gate else "")
    return {**facts, "blocked": blocked}


def _stage(name: str, stages: Stages, spend: Spend, row: ExperimentRow) -> dict[str, Any]:
    tally = stages.get(name, StageTally())
    asked = row.spec.get("evaluators")
    total = row.rows * row.repetitions
    return {
        "name": name,
        "former": name != TASKS and isinstance(asked, Mapping) and name not in asked,
        **_part([tally], total if name == TASKS else _to_judge(stages, total)),
        "counts": tally.counts,
        "attempts": tally.attempts,
        "seconds": tally.milliseconds / 1000 / tally.items if tally.items else None,
        "tokens": token_facts(spend.get(name, TokenTotals())),
        "more_outputs": tally.more_outputs,
        "outputs": [_output(tally.outputs[score.output], score) for score in scores_of({name: tally})],
        "failures": sorted(
            (
                {"status": status, "kind": kind, "count": each.count, "example": each.example}
                for (status, kind), each in tally.kinds.items()
            ),
            key=lambda each: -each["count"],
        ),
    }


def _output(one: OutputTally, score: Score) -> dict[str, Any]:
    histogram = one.histogram
    return {
        "output": score.output,
        "title": score.title,
        "ok": one.ok,
        "failed": score.failed,
        "n": one.scored,
        "mean": one.mean,
        "deviation": one.deviation,
        "low": one.low,
        "high": one.high,
        "width": histogram.width,
        "bins": sorted(histogram.bins.items()),
        "labels": None if one.labels is None else sorted(one.labels.items(), key=lambda each: (-each[1], each[0])),
        "labelled": one.labelled,
    }


def _line(line: LoggedLine) -> dict[str, Any]:
    kind = line.detail.get("type", "")
    # Experiments that ended before their database was upgraded have the last two in the line of their end.
    hidden = ("type", "stats", "answered_by", "warnings")
    told = (f"{name} {value}" for name, value in line.detail.items() if name not in hidden)
    return {
        "at": line.at.timestamp(),
        "level": line.level.value,
        "category": line.category.value,
        "event": str(kind).replace("_", " "),
        "text": ", ".join(told)[:500],
    }


def _result(one: Any, judged: Sequence[Any]) -> dict[str, Any]:
    return {
        "ordinal": one.ordinal,
        "repetition": one.repetition,
        "name": one.name[:CELL_CHARACTERS],
        "row": _row_text(one.row),
        "fields": _fields(one.row),
        "status": one.status,
        "output": readable(one.output),
        "error_kind": one.error_kind,
        "error": one.error and one.error[:CELL_CHARACTERS],
        "attempts": one.attempts,
        "seconds": one.seconds,
        "judgements": [
            {
                "title": score_title(each.evaluator, each.output),
                "status": each.status,
                "score": each.score,
                "label": readable(each.label),
                "value": readable(each.value),
                "error": each.error and each.error[:CELL_CHARACTERS],
            }
            for each in judged
        ],
    }


def _fields(text: str | None) -> dict[str, str] | None:
    """Return the beginnings of a row's fields; None for a row that is very long, or is no object."""
    try:
        row = json.loads(text) if text is not None and len(text) <= ROW_CHARACTERS else None
    except ValueError:
        row = None
    if not isinstance(row, dict):
        return None
    told = {name: each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for name, each in row.items()}
    return {name: _cut(each) for name, each in told.items()}


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"


def _row_text(text: str | None) -> str | None:
    """Return a row as `name: value`; one without fields stays the beginning of its JSON."""
    fields = _fields(text)
    return readable(text) if fields is None else _cut(" · ".join(f"{name}: {value}" for name, value in fields.items()))


def _whole(value: Any) -> dict[str, Any]:
    """Return a text, or another value as indented JSON, cut to `SHOWN_CHARACTERS` characters, with its whole length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    # A lone surrogate has no bytes in the answer.
    return {"text": text[:SHOWN_CHARACTERS].encode("utf-8", "backslashreplace").decode(), "length": len(text)}
