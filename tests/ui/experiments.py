"""A database of experiments for the tests of the page: one of many outcomes, one of hostile texts, and one to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    BatchRecord,
    BatchState,
    Category,
    Claim,
    LogLevel,
    LogLine,
    NewRow,
    ResultStatus,
    RunResult,
    Status,
    Store,
    encoded,
)
from tidegate.experiments.storage.records import ItemUsage

ROWS = 350
"""Rows of `capitals`: three full pages of the table and a part of one."""

FAILED, PARKED, INVALID = (7, 107, 207, 307), (20, 21), (33,)
AGAIN = 40
"""Rows of `capitals-2`."""

BUDGET = {"usd": 0.25, "tokens": 2_000_000}
LONG = "x" * 5_000_000
HOSTILE = (
    "<script>document.title = 'broken'</script><img src=x onerror=\"document.title = 'broken'\">",
    "abc\u202egnp.exe \u2066isolated",
    LONG,
    "half \ud800 a pair, \u0000 and \u001b[31mred",
    "[link](javascript:alert(1)) {{constructor.constructor('alert(1)')()}}",
)

BATCHES = (
    BatchRecord(0, "openai", BatchState.FETCHED, "5f", ((1, 0, 3),), 3, "file-1", "batch_1", "completed"),
    BatchRecord(0, "openai", BatchState.SUBMITTED, "60", ((1, 3, 5),), 2, "file-2", "batch_2", "<b>paused</b>\u202e"),
    BatchRecord(0, "openai", BatchState.INTENT, "61", ((1, 2, 3),), 1),
)
"""Batches of `hostile`."""

CODE = """
import os, time
from tidegate.experiments import Experiment

def answer(row):
    while not os.path.exists("go"):
        time.sleep(0.02)
    return row["n"]

experiment = Experiment("counted", [{"n": n} for n in range(30)], answer, max_concurrency=1)
"""


def spent(n: int, stage: str) -> ItemUsage:
    """Return the usage of row `n` in a stage: 0.02 cents for a task, 0.01 for a judgement."""
    tokens = TokenTotals(1, 1000, 50, 200, 0, 10, 1, 200_000 if stage == "task" else 100_000)
    return ItemUsage(tokens, f"model-of-{stage}", "stop", f"req_{stage}_{n}", 2.5)


async def made(url: str) -> None:
    """Make the experiments `capitals` and `hostile`."""
    store = await Store.open(url)
    try:
        await _capitals(store)
        await _hostile(store)
    finally:
        await store.close()


async def made_again(url: str) -> None:
    """Make the experiment `capitals-2`: rows of `capitals` that are scored in another way, without tokens."""
    store = await Store.open(url)
    try:
        rows = [NewRow(n, f"q{n}", {"id": f"q{n}", "again": True}) for n in range(AGAIN)]
        claim = await _claimed(store, "capitals-2", ["correct"], rows)
        batch: list[Any] = []
        for n in range(AGAIN):
            batch.append(RunResult(claim.experiment_id, claim.epoch, n, 1, ResultStatus.OK, encoded(f"again {n}")))
            scored = (Annotation("correct", score=float(n % 5 > 0)),)
            batch.append(AnnotationResult(claim.experiment_id, claim.epoch, n, 1, "correct", scored))
        await store.write(batch)
        await store.claims.release(claim, Status.COMPLETED)
    finally:
        await store.close()


async def _claimed(store: Store, name: str, evaluators: list[str], rows: list[NewRow], **more: Any) -> Claim:
    spec: dict[str, Any] = {"name": name, "task": "answer", "evaluators": {each: [] for each in evaluators}, **more}
    experiment = await store.experiments.create(name, spec, 1, f"{name}.jsonl")
    await store.datasets.add_rows(experiment.dataset_id, rows)
    await store.datasets.complete(experiment.dataset_id, len(rows))
    claim = await store.claims.claim(experiment.id, "elsewhere", 60.0)
    assert claim is not None
    return claim


async def _capitals(store: Store) -> None:
    rows = [
        NewRow(n, f"q{n}", {"id": f"q{n}", "question": f"What is the capital of country {n}?"})
        if n not in INVALID
        else NewRow(n, f"line {n + 1}", invalid="Expecting value: line 1 column 1", line=n + 1)
        for n in range(ROWS)
    ]
    claim = await _claimed(store, "capitals", ["correct", "judge"], rows, budget=BUDGET)
    number, epoch = claim.experiment_id, claim.epoch
    batch: list[Any] = [
        LogLine(
            number, epoch, LogLevel.INFO, Category.EXPERIMENT, {"type": "started", "epoch": 1, "pid": 1, "host": "h"}
        ),
        # As a version before stored it.
        LogLine(
            number,
            epoch,
            LogLevel.INFO,
            Category.EXPERIMENT,
            {"type": "ended", "reason": "stopped", "answered_by": [], "warnings": []},
        ),
    ]
    for n in range(ROWS):
        if n in FAILED:
            batch.append(
                RunResult(number, epoch, n, 1, ResultStatus.ERROR, None, "BadRequestError",
                          "BadRequestError: 400 the prompt is too long", 3, 1.5)
            )  # fmt: skip
        elif n in PARKED:
            batch.append(RunResult(number, epoch, n, 1, ResultStatus.PARKED, None, "outage", "no answer for an hour"))
        elif n in INVALID:
            batch.append(RunResult(number, epoch, n, 1, ResultStatus.INVALID, None, "invalid", "line 34 is no JSON"))
        else:
            text = encoded(f"The capital of country {n} is City {n}, as far as anybody knows.")
            batch.append(RunResult(number, epoch, n, 1, ResultStatus.OK, text, attempts=1, seconds=0.8,
                                   usage=spent(n, "task")))  # fmt: skip
            batch.append(
                AnnotationResult(
                    number, epoch, n, 1, "correct", (Annotation("correct", score=float(n % 4 > 0)),), 1, 0.0
                )
            )
            verdict = (
                (Annotation("score", score=(n % 21) / 20), Annotation("label", label=("good", "fair", "poor")[n % 3]))
                if n % 50 != 11
                else (Annotation("score", ResultStatus.ERROR, error_kind="Timeout", error="the judge took too long"),)
            )
            batch.append(AnnotationResult(number, epoch, n, 1, "judge", verdict, 1, 1.1, usage=spent(n, "judge")))
    await store.write(batch)
    await store.claims.release(
        claim, Status.STOPPED, "no answer of openai for an hour; resume tries the parked rows again"
    )


async def _hostile(store: Store) -> None:
    rows = [NewRow(n, f"<b>{n}</b>\u202e", {"text": text}) for n, text in enumerate(HOSTILE)]
    claim = await _claimed(store, "<i>hostile</i>\u202eeman", ["<b>judge</b>"], rows)
    batch: list[Any] = []
    for n, text in enumerate(HOSTILE):
        batch.append(RunResult(claim.experiment_id, claim.epoch, n, 1, ResultStatus.OK, encoded(text), attempts=1))
        batch.append(
            AnnotationResult(
                claim.experiment_id, claim.epoch, n, 1, "<b>judge</b>",
                (Annotation("label", label=HOSTILE[n % 2]), Annotation("why", value=encoded(text[:1000]))), 1, 0.1
            )
        )  # fmt: skip
    await store.write(batch)
    for record in BATCHES:
        await store.batches.save(claim, record)
    await store.claims.release(claim, Status.COMPLETED)


def counted(folder: Path) -> None:
    """Write the code of `counted`, which waits for the file `go` in the working directory."""
    (folder / "counted.py").write_text(CODE)
