"""The open items of one running experiment, and the part that is wholly done: pure counting."""

from __future__ import annotations

from tidegate.runner.backlog import Backlog
from tidegate.runner.frontier import Frontier
from tidegate.runner.item import TASK, Item, Place

Identity = tuple[int, int, int]


class Books:
    """Every item that memory knows from its coming until its result is durable, and what only the database knows.

    With `left_over`, an earlier run may have left evaluations behind; with `again`, those that failed are wanted too.
    """

    def __init__(self, evaluators: int, *, left_over: bool, again: bool) -> None:
        self.rows = Frontier()
        self.tasks = Frontier()
        self.backlogs = [Backlog(left_over) for _ in range(evaluators)]
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

    def water(self) -> tuple[int, int]:
        """The first row that may still need something, and the first that may still need a run."""
        floors = [floor for backlog in self.backlogs if (floor := backlog.floor()) is not None]
        tasks = self.tasks.low_water()
        return min([self.rows.low_water(), tasks, *floors]), tasks

    def reached(self, ordinal: int) -> None:
        """Every row below it has been taken from the store in full."""
        self.rows.reached = self.tasks.reached = ordinal
