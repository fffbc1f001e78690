"""Reorder buffer: rows end in any order, and come out in the order in which they were submitted."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

T = TypeVar("T")

OPEN: Any = object()
EVICTED: Any = object()


class ReorderBuffer(Generic[T]):
    """Buffer of rows between their submission and their turn; each operation takes constant time.

    A completed row stays until all rows before it are completed or evicted. None is a value like any other.
    """

    __slots__ = ("_evicted", "_next", "_rows", "_submitted")

    def __init__(self) -> None:
        self._submitted = self._next = self._evicted = 0
        self._rows: dict[int, T] = {}

    @property
    def pending(self) -> int:
        return self._submitted - self._next - self._evicted

    def submit(self) -> int:
        """Add a row; return its index, which counts from 0."""
        index = self._submitted
        self._submitted += 1
        self._rows[index] = OPEN
        return index

    def complete(self, index: int, value: T) -> None:
        """Record the value of a row. Raise `ValueError` if the row is not open."""
        self._close(index, value)

    def evict(self, index: int) -> None:
        """Drop an open row, so that later ones need not wait for it. Raise `ValueError` if the row is not open."""
        self._close(index, EVICTED)
        self._evicted += 1

    def ready(self) -> list[T]:
        """Return the values whose turn has come, each once, in the order of their rows."""
        given: list[T] = []
        rows = self._rows
        while (value := rows.get(self._next, OPEN)) is not OPEN:
            del rows[self._next]
            self._next += 1
            if value is EVICTED:
                self._evicted -= 1
            else:
                given.append(value)
        return given

    def _close(self, index: int, value: Any) -> None:
        if self._rows.get(index) is not OPEN:
            known = "it was never submitted" if not 0 <= index < self._submitted else "it was completed or evicted"
            raise ValueError(f"row {index} not completed: {known}")
        self._rows[index] = value
