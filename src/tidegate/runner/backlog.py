"""The evaluations in the database only: those turned away from a full queue, or left by an earlier run.

Theory of operation. Memory holds a bounded number of evaluations per evaluator; what does not fit is left where it can
always be derived from: the runs that lack their annotation. A scan of those goes forward from a cursor. What is turned
away ahead of the cursor will be met by it; what is turned away behind it makes the scan begin again, just before it.
"""

from __future__ import annotations

from tidegate.runner.item import Place


class Backlog:
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

    def floor(self) -> int | None:
        """The first row that may have an evaluation here; None where there is none."""
        if not self.owing:
            return None
        if self.cursor is None:
            return 0
        return self.cursor.ordinal if self._behind is None else min(self.cursor.ordinal, self._behind.ordinal)


def _first(one: Place | None, other: Place) -> Place:
    return other if one is None else min(one, other)
