"""Open items of one run, and the watermark below which all of it is done.

The open items of one running experiment, and the part that is wholly done: pure counting.

The evaluations in the database only: those turned away from a full queue, or left by an earlier run.

Theory of operation. Memory holds a bounded number of evaluations per evaluator; what does not fit is left where it can
always be derived from: the runs that lack their annotation. A scan of those goes forward from a cursor. What is turned
away ahead of the cursor will be met by it; what is turned away behind it makes the scan begin again, just before it.

The mark below which a run is wholly done, written now and then: a resume begins there.

The part of an experiment that is wholly done: with it a run of a million rows is resumed at once.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from heapq import heappop, heappush

from tidegate.runner.background import retry_while_unavailable
from tidegate.runner.item import TASK, Item, Place
from tidegate.storage import Claim, Store


class OpenRows:
    """The rows that have something open, and the low water: every row below it needs nothing any more.

    Rows are known by their ordinals. `reached` is the first row that was not taken from the store in full.
    """

    __slots__ = ("_heap", "_open", "reached")

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached
        self._open: dict[int, int] = {}
        self._heap: list[int] = []

    def opened(self, ordinal: int) -> None:
        """One more item of that row is to be done."""
        count = self._open.get(ordinal)
        if count is None:
            self._open[ordinal] = 1
            heappush(self._heap, ordinal)
        else:
            self._open[ordinal] = count + 1

    def closed(self, ordinal: int) -> None:
        """One item of that row is durable."""
        count = self._open[ordinal] - 1
        if count:
            self._open[ordinal] = count
        else:
            del self._open[ordinal]

    def low_water(self) -> int:
        """The first row that may still need something."""
        heap = self._heap
        while heap and heap[0] not in self._open:
            heappop(heap)
        return min(self.reached, heap[0]) if heap else self.reached


class EvalBacklog:
    """One evaluator's evaluations that memory does not hold; `owing` while there may be any.

    `cursor` is the place after which the next page of the scan begins (None: at the first row). With `left_over` there
    is an earlier run to catch up with, from its beginning.
    """

    __slots__ = ("_behind", "_meanwhile", "cursor", "owing")

    def __init__(self, left_over: bool) -> None:
        self.owing = left_over
        self.cursor: Place | None = None
        self._behind: Place | None = None
        self._meanwhile: Place | None = None

    def turned_away(self, place: Place) -> None:
        """An evaluation of that place did not fit, and its run is durable: a scan can find it."""
        before = Place(place.ordinal, -1)
        self._meanwhile = _first(self._meanwhile, before)
        if not self.owing:
            self.owing = True
            self.cursor = before
        elif self.cursor is not None and place <= self.cursor:
            self._behind = _first(self._behind, before)

    def begin(self) -> Place | None:
        """A page is asked for: the place after which it begins."""
        self._meanwhile = None
        return self.cursor

    def scanned(self, last: Place | None, at_end: bool) -> None:
        """A page came; `last` is its last place (None: it was empty), and `at_end` says that no other follows now."""
        if last is not None:
            self.cursor = last
            if self._meanwhile is not None and self._meanwhile < last:
                # It became durable while the page was read: the page may have missed it.
                self._behind = _first(self._behind, self._meanwhile)
        if not at_end:
            return
        if self._behind is not None:
            self.cursor, self._behind = self._behind, None
        elif self._meanwhile is None:
            self.owing = False

    def shared(self) -> int | None:
        """The first row that may have an evaluation here; None where there is none."""
        if not self.owing:
            return None
        if self.cursor is None:
            return 0
        return self.cursor.ordinal if self._behind is None else min(self.cursor.ordinal, self._behind.ordinal)


def _first(one: Place | None, other: Place) -> Place:
    return other if one is None else min(one, other)


Identity = tuple[int, int, int]


class CompletionTracker:
    """Every item that memory knows from its coming until its result is durable, and what only the database knows.

    With `left_over`, an earlier run may have left evaluations behind; with `again`, those that failed are wanted too.
    """

    def __init__(self, evaluators: int, *, left_over: bool, again: bool) -> None:
        self.rows = OpenRows()
        self.tasks = OpenRows()
        self.backlogs = [EvalBacklog(left_over) for _ in range(evaluators)]
        self.unwritten = 0
        self.tasks_exhausted = False
        self._live: set[Identity] = set()
        self._open = [0] * (evaluators + 1)
        self._lately: set[Identity] | None = None
        self._turned_away: dict[Place, list[int]] = {}
        self._again = [again and left_over] * evaluators
        self._failed: set[Identity] = set()

    def open(self, item: Item) -> None:
        """An item has come: from the store, or from its task's answer."""
        if item.identity not in self._live:
            self._live.add(item.identity)
            self._open[item.stage] += 1
        self.rows.opened(item.place.ordinal)
        if item.stage == TASK:
            self.tasks.opened(item.place.ordinal)

    def turn_away(self, place: Place, stage: int) -> None:
        """An evaluation did not fit into memory; the database can tell of it when its answer is durable."""
        self._turned_away.setdefault(place, []).append(stage)

    def close(self, item: Item, failed: bool) -> None:
        """An item's result is durable, or nothing more will be done about it here."""
        identity = item.identity
        if identity in self._live:
            self._live.remove(identity)
            self._open[item.stage] -= 1
        if self._lately is not None:
            self._lately.add(identity)
        if item.stage == TASK:
            self.tasks.closed(item.place.ordinal)
            for stage in self._turned_away.pop(item.place, ()):
                self.backlogs[stage - 1].turned_away(item.place)
        elif failed and self._again[item.stage - 1]:
            self._failed.add(identity)
        self.rows.closed(item.place.ordinal)

    def scan(self, stage: int) -> tuple[Place | None, bool]:
        """A page of an evaluator's backlog is asked for: after which place, and whether failed ones are wanted."""
        self._lately = set()
        return self.backlogs[stage - 1].begin(), self._again[stage - 1]

    def scanned(self, stage: int, found: list[Place], at_end: bool) -> list[Place]:
        """A page has come; returns the places of it that memory does not know yet."""
        lately = self._lately or set()
        self._lately = None
        known = [(*place, stage) for place in found]
        new = [
            place
            for place, identity in zip(found, known, strict=True)
            if identity not in self._live and identity not in lately and identity not in self._failed
        ]
        self._failed.difference_update(known)
        self.backlogs[stage - 1].scanned(found[-1] if found else None, at_end)
        if at_end:
            # Whatever fails from now on has failed in this run: it is not tried again before the next.
            self._again[stage - 1] = False
            self._failed = {each for each in self._failed if each[2] != stage}
        return new

    @property
    def owes(self) -> bool:
        """Return whether the database may have evaluations that memory does not hold."""
        return any(backlog.owing for backlog in self.backlogs)

    def has_work(self, stage: int) -> bool:
        """Return whether anything of a stage is left to do, here or in the database."""
        more = not self.tasks_exhausted if stage == TASK else self.backlogs[stage - 1].owing
        return more or self._open[stage] > 0

    @property
    def settled(self) -> bool:
        """Return whether nothing is left to do, here or in the database."""
        return self.tasks_exhausted and not self._live and not self.unwritten and not self.owes

    def watermark(self) -> tuple[int, int]:
        """The first row that may still need something, and the first that may still need a run."""
        floors = [shared for backlog in self.backlogs if (shared := backlog.shared()) is not None]
        tasks = self.tasks.low_water()
        return min([self.rows.low_water(), tasks, *floors]), tasks

    def reached(self, ordinal: int) -> None:
        """Every row below it has been taken from the store in full."""
        self.rows.reached = self.tasks.reached = ordinal


logger = logging.getLogger("tidegate")

EVERY = 1000
"""Durable results after which it is written."""


class WatermarkWriter:
    """The water marks of one claim, as far as they are written. A mark that could not be written costs only time.

    `name` is the experiment's. Tasks of the writer run in copies of `context`.
    """

    def __init__(
        self,
        store: Store,
        claim: Claim,
        tracker: CompletionTracker,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        name: str,
    ) -> None:
        self._store = store
        self._claim = claim
        self._tracker = tracker
        self._loop = loop
        self._context = context
        self._name = name
        self._written = (claim.low_water, claim.task_water)
        self._settled = 0
        self._task: asyncio.Task[None] | None = None

    def rose(self) -> None:
        """Count one more durable result; write the marks now and then."""
        self._settled += 1
        if self._settled % EVERY == 0 and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self.write(), context=self._context.copy())

    async def end(self) -> None:
        """Write the last marks."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.write()

    async def write(self) -> None:
        """Write the marks, where they have risen."""
        low, tasks = self._tracker.watermark()
        if (low, tasks) <= self._written:
            return
        try:
            await retry_while_unavailable(lambda: self._store.advance(self._claim, low, tasks), "the low water")
        except Exception:
            logger.exception("experiment %s: how far it is could not be written", self._name)
        else:
            self._written = low, tasks
