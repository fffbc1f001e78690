"""Why what failed has failed, by kind; and the last lines of a log."""

from __future__ import annotations

import pytest

from tidegate.experiments.storage import (
    Annotation,
    AnnotationResult,
    Category,
    Failure,
    LogLevel,
    LogLine,
    NewRow,
    ResultStatus,
    RunResult,
    Store,
)

pytestmark = pytest.mark.anyio

OK, ERROR, PARKED, INVALID = ResultStatus.OK, ResultStatus.ERROR, ResultStatus.PARKED, ResultStatus.INVALID


async def run_of(store: Store, rows: int) -> tuple[int, int]:
    made = await store.experiments.create("one", {}, 1, "list")
    await store.datasets.add_rows(
        made.dataset_id, [NewRow(number, str(number), {"n": number}) for number in range(rows)]
    )
    claim = await store.claims.claim(made.id, "me", 60.0)
    assert claim is not None
    return made.id, claim.epoch


async def test_failures_are_counted_by_stage_and_kind_the_most_frequent_first(store: Store) -> None:
    number, epoch = await run_of(store, 8)
    await store.write(
        [
            *(RunResult(number, epoch, row, 1, OK, "1") for row in range(4)),
            RunResult(number, epoch, 4, 1, INVALID, error_kind="invalid_row"),
            RunResult(number, epoch, 5, 1, ERROR, error_kind="timeout"),
            RunResult(number, epoch, 6, 1, ERROR, error_kind="timeout"),
            RunResult(number, epoch, 7, 1, PARKED, error_kind="rate"),
        ]
    )
    failed = tuple(Annotation(output, ERROR, error_kind="KeyError") for output in ("a", "b", "c"))
    await store.write(
        [
            AnnotationResult(number, epoch, 0, 1, "judge", failed),
            AnnotationResult(number, epoch, 1, 1, "judge", (Annotation("a", OK, 1.0),)),
            AnnotationResult(number, epoch, 2, 1, "judge", (Annotation("a", PARKED),)),
        ]
    )
    assert await store.reports.failures(number) == [
        Failure(None, ERROR, "timeout", 2),
        Failure(None, INVALID, "invalid_row", 1),
        Failure(None, PARKED, "rate", 1),
        # Three outputs of one evaluation are one failure.
        Failure("judge", PARKED, "", 1),
        Failure("judge", ERROR, "KeyError", 1),
    ]


async def test_kinds_beyond_those_that_are_counted_are_failures_of_their_status(store: Store) -> None:
    number, epoch = await run_of(store, 130)
    kinds = [f"Error{row % 65}" for row in range(120)] + ["busy"] * 10
    ends = [ERROR] * 120 + [PARKED] * 10
    results = zip(range(130), ends, kinds, strict=True)
    await store.write([RunResult(number, epoch, row, 1, end, error_kind=kind) for row, end, kind in results])
    found = await store.reports.failures(number)
    assert sum(each.count for each in found if each.status is ERROR) == 120
    assert sum(each.count for each in found if each.status is PARKED) == 10


async def test_the_last_lines_of_a_log_come_in_their_order(store: Store) -> None:
    number, epoch = await run_of(store, 1)
    lines = [LogLine(number, epoch, LogLevel.INFO, Category.EXPERIMENT, {"n": count}) for count in range(7)]
    await store.write(lines)
    assert [each.detail for each in await store.reports.last_logs(number, 3)] == [{"n": 4}, {"n": 5}, {"n": 6}]
    assert len(await store.reports.last_logs(number, 100)) == 7
