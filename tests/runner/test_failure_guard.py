"""The guard of a run: what counts as a workload that cannot succeed."""

from __future__ import annotations

from typing import Any

from tidegate.experiments.engine.job import Stage


async def never(item: Any) -> None:
    """No item is run."""


def failures(guard: Stage, *kinds: str) -> list[bool]:
    return [guard.failed(kind) for kind in kinds]


def test_it_trips_at_the_fifth_failure_of_one_kind_in_a_row() -> None:
    guard = Stage(0, "task", (), 1.0, never)
    assert failures(guard, *["auth"] * 7) == [False] * 4 + [True] + [False] * 2


def test_a_success_begins_the_count_anew() -> None:
    guard = Stage(0, "task", (), 1.0, never)
    failures(guard, *["auth"] * 4)
    guard.succeeded()
    assert failures(guard, *["auth"] * 4) == [False] * 4
    assert guard.failed("auth")


def test_failures_of_different_kinds_are_a_mixed_dataset_and_no_broken_workload() -> None:
    guard = Stage(0, "task", (), 1.0, never)
    assert failures(guard, *["invalid", "KeyError"] * 3, *["invalid"] * 4) == [False] * 10
    assert guard.failed("invalid")
