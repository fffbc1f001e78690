"""Text of the row that `tidegate run` shows while its command runs; `status_row` draws it on a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from tidegate.core.wait_text import (
    CLOSED,
    amount,
    awaited,
    clock,
    counted,
    shared_by,
    sized,
    wait_text,
)
from tidegate.launch.totals import KeyTotal, Totals

RATE_SPAN_SECONDS = (2.0, 60.0)
"""Shortest and longest period over which a rate is measured, in seconds. Between them, it is the quota's window.
Chosen: several updates of the line, and a minute, which is the usual window."""

UNCUT_COLUMNS = 10_000
"""Columns of a line that nothing cuts. Chosen: wider than any line."""


class Part(NamedTuple):
    """Part of the line. The parts with the highest `rank` are dropped first where the line is too long."""

    rank: int
    text: str


class StatusText:
    """Builder of the line while the command runs. It keeps recent totals, from which it measures rates."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Totals]] = deque()

    def line(self, totals: Totals, now: float, columns: int = UNCUT_COLUMNS) -> str:
        """Return the state of the busiest key in at most `columns` characters; empty before the first call.

        `now` is in monotonic seconds. A line that is too long loses the parts that explain least.
        """
        self._looks.append((now, totals))
        while len(self._looks) > 2 and self._looks[1][0] <= now - RATE_SPAN_SECONDS[1]:
            self._looks.popleft()
        key = totals.busiest
        if key is None or not (key.calls or key.waiting):
            return ""
        others = sum(1 for each in totals.keys.values() if each is not key and each.in_flight + each.waiting)
        parts = list(self._parts(key, now))
        if others:
            parts.append(Part(6, counted(others, "more key")))
        return _fitting(parts, key.key, columns)

    def _parts(self, key: KeyTotal, now: float) -> Iterator[Part]:
        outlook = key.outlook(now)
        head, ahead = key.head_wait(outlook), key.eta(outlook)
        closed = head.gate in CLOSED
        if closed:
            yield Part(0, wait_text(*head))
        yield Part(3, self._rate(key, now))
        yield Part(5, f"{key.in_flight} in flight")
        behind = f" for {awaited(head.gate)}" if key.waiting and not closed else ""
        yield Part(1, f"{key.waiting} waiting{behind}")
        if key.waiting and ahead.seconds is not None:
            yield Part(2, f"ETA {clock(ahead.seconds)}{without_others(key)}")
        if key.members > 1:
            yield Part(7, shared_by(key.members, key.carrier))

    def _rate(self, key: KeyTotal, now: float) -> str:
        quota = key.binding
        if quota is None:
            past = self._before(key, now, RATE_SPAN_SECONDS[1])
            return f"{key.counts['answered'] - (past.counts['answered'] if past else 0)} answered/min"
        span = min(RATE_SPAN_SECONDS[1], max(RATE_SPAN_SECONDS[0], quota.window))
        past = self._before(key, now, span)
        used = quota.used - (past.quotas[quota.name].used if past and quota.name in past.quotas else 0.0)
        # A burst that the provider allows beyond its rate is still all of the limit.
        rate = min(quota.limit, max(0.0, used) * quota.window / span)
        return f"{amount(rate)} of {sized(quota.name, quota.limit, quota.window)}"

    def _before(self, key: KeyTotal, now: float, span: float) -> KeyTotal | None:
        """Return the key's totals of `span` seconds ago, or of the first look."""
        past = next(totals for at, totals in self._looks if at >= now - span)
        return past.keys.get(key.key)


def _fitting(parts: list[Part], key: str, columns: int) -> str:
    """Return the parts and the key, without those of the highest ranks where they do not fit.

    The key is last; it is cut to its model before anything else is dropped.
    """
    names = key.split(" · ")
    kept = [*parts, Part(4, key)]
    if len(names) > 3:
        short = [*parts, Part(4, names[2])]
        kept = kept if cell_len(_joined(kept)) <= columns else short
    while len(kept) > 1 and cell_len(_joined(kept)) > columns:
        kept.remove(max(kept))
    return set_cell_size(_joined(kept), columns).rstrip() if cell_len(_joined(kept)) > columns else _joined(kept)


def _joined(parts: list[Part]) -> str:
    return "tidegate  " + " · ".join(part.text for part in parts)


def without_others(key: KeyTotal) -> str:
    """Return how many processes that share a key an ETA leaves out, since their waiting calls are not known."""
    unseen = key.unseen_members
    return f" without {counted(unseen, 'other process')}" if unseen else ""
