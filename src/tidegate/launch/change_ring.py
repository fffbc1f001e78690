"""Ring of the newest changes of one key, in a row of a counter file: one process writes it, any process may read it.

Theory of operation. A record is a line of doubles. Its last cell gets the number of the record before the others are
written, and its first cell after them. A reader copies the memory from the first cell to the last. So it knows a record
that is being written by two different numbers, passes over it, and finds it whole at the next look.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.core.provenance import Source
from tidegate.core.values import Cause

KINDS = (
    "limit",
    "concurrency",
    "pace",
    "cooldown",
    "breaker_opened",
    "breaker_closed",
    "rejected",
    "accepted",
    "members",
)
"""Kinds of changes; a record has the place of its kind. A new one goes to the end, so that older records stay right."""

CAUSES = tuple(Cause)
SOURCES = tuple(Source)
"""Causes and origins by their place in a record."""

CAUSE_CODES = {cause: code for code, cause in enumerate(CAUSES)}
SOURCE_CODES = {source: code for code, source in enumerate(SOURCES)}

RECORDS = 64
"""Changes that are kept of one key. Chosen: as many as a person reads."""

CELLS = 9
"""Doubles of a record: its number, the seven of a `KeyChange`, and its number again."""

RING_BYTES = 8 * CELLS * RECORDS


class KeyChange(NamedTuple):
    """Change of a key at the instant `at`, in monotonic seconds; `number` counts the changes of one process from 1.

    `quota` is the place of the quota that changed its limit. `before` and `after` are the values: units of a limit,
    slots, calls a second, processes. A cooldown has the seconds that the provider asked for (0: it named none), and
    those that it lasts; the opening of a breaker has its seconds in `after`. `cause` is that of the last refusal, if it
    explains the change, and `origin` says where the value is known from.
    """

    number: int
    at: float
    kind: str
    quota: int = 0
    before: float = 0.0
    after: float = 0.0
    cause: Cause = Cause.NONE
    origin: Source = Source.DEFAULT


class ChangeRing:
    """Writer of the ring in the memory of a row."""

    __slots__ = ("_cells", "_number")

    def __init__(self, cells: memoryview[float]) -> None:
        self._cells = cells
        self._number = 0

    def add(
        self,
        at: float,
        kind: str,
        before: float,
        after: float,
        cause: Cause = Cause.NONE,
        origin: Source = Source.DEFAULT,
        quota: int = 0,
    ) -> None:
        cells, start = self._cells, self._number % RECORDS * CELLS
        self._number += 1
        facts = (at, KINDS.index(kind), quota, before, after, CAUSE_CODES[cause], SOURCE_CODES[origin])
        cells[start + CELLS - 1] = self._number
        cells[start + 1 : start + CELLS - 1] = array("d", facts)
        cells[start] = self._number


def read_changes(ring: bytes) -> list[KeyChange]:
    """Return the whole changes of a copied ring, oldest first; those that cannot be read are left out."""
    cells = memoryview(ring).cast("d")
    return sorted(_read(cells))


def _read(cells: memoryview[float]) -> Iterator[KeyChange]:
    for start in range(0, len(cells), CELLS):
        first, at, kind, quota, before, after, cause, origin, last = cells[start : start + CELLS]
        if not first or first != last:
            continue
        try:
            facts = KINDS[int(kind)], int(quota), before, after, CAUSES[int(cause)], SOURCES[int(origin)]
        except (IndexError, ValueError, OverflowError):
            continue
        yield KeyChange(int(first), at, *facts)
