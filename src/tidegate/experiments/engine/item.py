"""Unit of work: the task of one row and repetition, or one evaluator's judgement of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegate.experiments.storage import AttemptRecord, ItemUsage

TASK = 0
"""Stage number of tasks; the evaluators of an experiment are stages 1, 2, …, in their order."""


TASK_STAGE = "task"
"""Name of the stage of tasks beside the names of the evaluators; no evaluator may have it."""


class Place(NamedTuple):
    """Position of an item in its dataset: rows count from 0, repetitions from 1."""

    ordinal: int
    repetition: int


class Item:
    """One unit of work and its cost so far; a job runs it and keeps no state.

    `attempts` counts spent attempts; refusals for lack of capacity spend none. `seconds` is the run time of its
    function. `refused_at` is its first refusal for lack of capacity (monotonic seconds, None: never). `closed_before`
    is the total time that its gate (the key that it waits for) had been closed until a known reset by then. `elsewhere`
    counts refusals at another key than the one asked for it. `ready_at` is the time since when it could be dispatched
    (monotonic seconds). `size` is the stored size of its row and answer in characters. `slow`: a call of it took all
    its time, though the provider answered others.

    For the audit, `calls` counts the attempts under this claim, and `audit` has those that are not written yet.
    `queued_at` is when its last job began or ended (None: it was never dispatched), and `waited` the seconds until its
    last dispatch. `usage` is what its governed calls have cost under this claim, None without any. It is `released`
    when it has a result.
    """

    __slots__ = (
        "attempts",
        "audit",
        "body",
        "calls",
        "closed_before",
        "elsewhere",
        "output",
        "place",
        "queued_at",
        "ready_at",
        "refused_at",
        "released",
        "seconds",
        "size",
        "slow",
        "stage",
        "usage",
        "waited",
    )

    def __init__(self, stage: int, place: Place, body: Any, output: Any = None, size: int = 0) -> None:
        self.stage = stage
        self.place = place
        self.body = body
        self.output = output
        self.size = size
        self.attempts = 0
        self.seconds = 0.0
        self.ready_at = 0.0
        self.refused_at: float | None = None
        self.closed_before = 0.0
        self.elsewhere = 0
        self.slow = False
        self.audit: list[AttemptRecord] = []
        self.calls = 0
        self.queued_at: float | None = None
        self.waited = 0.0
        self.usage: ItemUsage | None = None
        self.released = False

    @property
    def identity(self) -> tuple[int, int, int]:
        """Return the row, the repetition and the stage; at most one item with this identity is in flight."""
        return (*self.place, self.stage)

    def release(self) -> None:
        """Drop the row, the answer and the attempts: only its result, which has these, must become durable."""
        self.body = self.output = None
        self.usage = None
        self.released = True
        if self.audit:
            self.audit = []

    def __repr__(self) -> str:
        return f"Item(stage={self.stage}, row={self.place.ordinal}, repetition={self.place.repetition})"


def own_id(body: Any) -> str:
    """Return the `id` of a row; empty if it has none. Raise `ValueError` for a number that is too long for a text."""
    name = body.get("id") if isinstance(body, Mapping) else None
    return str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""


def copied(value: Any) -> Any:
    """Return a copy of JSON that its receiver may change; a retry or the next evaluator gets the original row."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value
