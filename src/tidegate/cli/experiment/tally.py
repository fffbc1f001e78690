"""The progress of a run, its recent speed, and the estimate of its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidegate.runner import StageProgress
from tidegate.storage import ResultStatus

SPAN = 60.0
"""Seconds over which the rate is read off that an ETA is told by: a minute's quota shows its true rate."""

FAILED = (ResultStatus.ERROR, ResultStatus.INVALID)


class Pace:
    """Tasks, or all evaluations together: how many of `total` are done, and how fast they were of late."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, done: int, total: int, now: float) -> None:
        """Notes how far it is at `now` (monotonic seconds)."""
        self.done, self.total = done, total
        self._looks.append((now, done))
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPAN:
            self._looks.popleft()

    @property
    def eta(self) -> float | None:
        """Seconds until all are done, if they go on as of late; None where there is no rate yet."""
        if self.done >= self.total:
            return 0.0 if self.total else None
        if not self._looks:
            return None
        (then, before), (now, after) = self._looks[0], self._looks[-1]
        return (self.total - self.done) * (now - then) / (after - before) if after > before else None


class Tally:
    """The counts of one run of one experiment, as its runner tells them. What was tried again counts as not done."""

    def __init__(self) -> None:
        self.tasks, self.evals = Pace(), Pace()
        self.evaluators = self.failed = self.parked = 0
        self.all_rows = True

    def look(self, stages: Sequence[StageProgress], now: float, all_rows: bool = True) -> None:
        """Takes in how far the stages are at `now` (monotonic seconds), tasks first, and whether all rows are read."""
        self.all_rows = all_rows
        tasks, judges = stages[0], stages[1:]
        unanswered = tasks.finished - tasks.done.get(ResultStatus.OK, 0)
        self.evaluators = len(judges)
        self.tasks.look(tasks.finished, tasks.total, now)
        # What has no answer is not judged; what is not tried yet is taken to be answered.
        expected = (tasks.total - unanswered) * len(judges)
        self.evals.look(sum(each.finished for each in judges), expected, now)
        self.failed = sum(each.done.get(status, 0) for each in stages for status in FAILED)
        self.parked = sum(each.done.get(ResultStatus.PARKED, 0) for each in stages)

    @property
    def eta(self) -> float | None:
        """Seconds until the last of them is done; None where nobody knows yet."""
        if not self.all_rows:
            return None
        stages = (self.tasks, self.evals) if self.evaluators and self.evals.total else (self.tasks,)
        etas = [stage.eta for stage in stages]
        return None if None in etas else max(eta for eta in etas if eta is not None)
