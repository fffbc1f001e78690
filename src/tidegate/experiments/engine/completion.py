"""Completion of one run: its open items, and the evaluations that only the database knows.

Theory of operation. Memory holds a bounded number of evaluations per evaluator. An evaluation that does not fit stays
in the database: its run is stored and lacks the annotation. A scan of such runs moves forward from a cursor. At its end
it begins again just before the first place that was rejected since its begin.
"""

from __future__ import annotations

from tidegate.experiments.engine.queues import TASK, Item, Place


class EvalBacklog:
    """Evaluations of one evaluator that only the database holds; `may_have_more` is True while there may be any.

    The next page of the scan begins after `cursor` (None: at the first row). `left_over` means that an earlier run may
    have left evaluations, so the scan begins at the first row.
    """

    __slots__ = ("_again", "cursor", "may_have_more")

    def __init__(self, left_over: bool) -> None:
        self.may_have_more = left_over
        self.cursor: Place | None = None
        self._again: Place | None = None

    def defer(self, place: Place) -> None:
        """Record an evaluation that did not fit into memory and whose run is durable, so a scan can find it."""
        before = Place(place.ordinal, -1)
        if not self.may_have_more:
            self.may_have_more = True
            self.cursor = before
        elif self._again is None or before < self._again:
            # The scan may be beyond it, or may just read a page without it.
            self._again = before

    def scanned(self, last: Place | None, at_end: bool) -> None:
        """Record a page that was read.

        `last` is its last place (None: the page was empty). `at_end` means that no other page follows now.
        """
        if last is not None:
            self.cursor = last
        if at_end and self._again is None:
            self.may_have_more = False
        elif at_end:
            self.cursor, self._again = self._again, None


Identity = tuple[int, int, int]


class CompletionTracker:
    """Tracker of every item in memory until its result is durable, and of the work that only the database knows.

    `left_over` means that an earlier run may have left evaluations. `retry_failed` also requests those that failed.
    """

    def __init__(self, evaluators: int, *, left_over: bool, retry_failed: bool) -> None:
        self.backlogs = [EvalBacklog(left_over) for _ in range(evaluators)]
        self.unwritten = 0
        self.tasks_exhausted = False
        self._live: set[Identity] = set()
        self._open = [0] * (evaluators + 1)
        self._closed_in_scan: set[Identity] | None = None
        self._deferred: dict[Place, list[int]] = {}
        self._retry_failed = [retry_failed and left_over] * evaluators
        self._failed: set[Identity] = set()

    def open(self, item: Item) -> None:
        """Track a new item, from the store or from its task's answer."""
        if item.identity not in self._live:
            self._live.add(item.identity)
            self._open[item.stage] += 1

    def is_live(self, item: Item) -> bool:
        """Return whether an item is open: its result is not durable yet."""
        return item.identity in self._live

    def has_task(self, ordinal: int, repetitions: int) -> bool:
        """Return whether a task of a row is open."""
        return any((ordinal, repetition, TASK) in self._live for repetition in range(1, repetitions + 1))

    def defer(self, place: Place, stage: int) -> None:
        """Record an evaluation that did not fit into memory; the database can return it once its answer is durable."""
        self._deferred.setdefault(place, []).append(stage)

    def close(self, item: Item, failed: bool) -> None:
        """Close an item whose result is durable, or that this run will not try again."""
        identity = item.identity
        if identity in self._live:
            self._live.remove(identity)
            self._open[item.stage] -= 1
        if self._closed_in_scan is not None:
            self._closed_in_scan.add(identity)
        if item.stage == TASK:
            for stage in self._deferred.pop(item.place, ()):
                self.backlogs[stage - 1].defer(item.place)
        elif failed and self._retry_failed[item.stage - 1]:
            self._failed.add(identity)

    def scan(self, stage: int) -> tuple[Place | None, bool]:
        """Begin to read a page of an evaluator's backlog; return its start place and the `retry_failed` flag."""
        self._closed_in_scan = set()
        return self.backlogs[stage - 1].cursor, self._retry_failed[stage - 1]

    def scanned(self, stage: int, found: list[Place], at_end: bool) -> list[Place]:
        """Record a page, and return its places that memory does not know yet."""
        closed_in_scan = self._closed_in_scan or set()
        self._closed_in_scan = None
        known = [(*place, stage) for place in found]
        new = [
            place
            for place, identity in zip(found, known, strict=True)
            if identity not in self._live and identity not in closed_in_scan and identity not in self._failed
        ]
        self._failed.difference_update(known)
        self.backlogs[stage - 1].scanned(found[-1] if found else None, at_end)
        if at_end:
            # A failure from now on belongs to this run; only the next run tries it again.
            self._retry_failed[stage - 1] = False
            self._failed = {each for each in self._failed if each[2] != stage}
        return new

    @property
    def may_have_more(self) -> bool:
        """Return whether the database may hold evaluations that memory lacks."""
        return any(backlog.may_have_more for backlog in self.backlogs)

    def has_work(self, stage: int) -> bool:
        more = not self.tasks_exhausted if stage == TASK else self.backlogs[stage - 1].may_have_more
        return more or self._open[stage] > 0

    @property
    def settled(self) -> bool:
        return self.tasks_exhausted and not self._live and not self.unwritten and not self.may_have_more
