"""The part of an experiment that is wholly done: with it a run of a million rows is resumed at once."""

from __future__ import annotations

from heapq import heappop, heappush


class Frontier:
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
