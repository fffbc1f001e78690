"""One unit of work: a task of one row and repetition, or one evaluator's turn at what the task answered."""

from __future__ import annotations

from typing import Any, NamedTuple

TASK = 0
"""The stage of tasks; the evaluators of an experiment are its stages 1, 2, …, in their order."""


class Place(NamedTuple):
    """Where an item stands in its dataset: rows are counted from 0, repetitions from 1."""

    ordinal: int
    repetition: int


class Item:
    """A thing to be done once, and its cost so far; a job runs it, and keeps nothing.

    `attempts` counts those that were spent (refusals for want of capacity spend none), `seconds` the time that its
    function has run. `refused_at` is when it first came back for want of capacity (monotonic seconds, None: never),
    `closed_before` how long its gate had been closed with a known reset until then, and `elsewhere` how often it was
    refused at another key than the one that is asked for it. `ready_at` is since when it could have gone (monotonic
    seconds). `size` is how many characters its row and its answer are stored with.
    """

    __slots__ = (
        "attempts",
        "body",
        "closed_before",
        "elsewhere",
        "output",
        "place",
        "ready_at",
        "refused_at",
        "seconds",
        "size",
        "stage",
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

    @property
    def identity(self) -> tuple[int, int, int]:
        """The row, the repetition and the stage: at most one of these is under way at a time."""
        return (*self.place, self.stage)

    def release(self) -> None:
        """Forget the row and the answer: it is not run any more, and waits only for its result to be durable."""
        self.body = self.output = None

    def __repr__(self) -> str:
        return f"Item(stage={self.stage}, row={self.place.ordinal}, repetition={self.place.repetition})"


def copied(value: Any) -> Any:
    """JSON that its receiver may change: a retry, or the next evaluator, gets the row as it was."""
    if isinstance(value, dict):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value
