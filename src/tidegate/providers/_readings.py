"""A response's headers as readings: one pass to find them, one to read what was found."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from tidegate.core.values import Reading
from tidegate.providers import _parse, _structured
from tidegate.providers._schema import (
    CELLS,
    COMBINED,
    DATE,
    LIMIT,
    PERIOD,
    POLICY,
    REMAINING,
    RESET,
    SPECIAL,
    HeaderRow,
    Provider,
)

Found = dict[int, list[bytes | None]]
"""Raw values by row number and place; rows below 0 belong to no quota (`_schema.SPECIAL`)."""

_PLACEHOLDERS = (b"x-ratelimit", b"anthropic-ratelimit")
"""Values that repeat a header's name: a scrubbed recording, nothing in it is real (openai-200-scrubbed-values)."""

_ROUNDED_LIMIT = 10_000.0
_MAX_WINDOW = 400 * 86400.0


def gather(provider: Provider, headers: Iterable[tuple[bytes, bytes]], found: Found | None = None) -> Found:
    """The raw values of the headers that the table names, by row and place, added to `found`.

    A header sent twice becomes a list.
    """
    found = {} if found is None else found
    places = provider.places
    for name, value in headers:
        place = places.get(name.lower())
        if place is not None:
            row, cell = place
            cells = found.get(row)
            if cells is None:
                cells = found[row] = [None] * CELLS
            before = cells[cell]
            cells[cell] = value if before is None or before == value else before + b", " + value
    return found


def origin(found: Found, now_on: datetime) -> float:
    """When the response was made, in seconds since 1970: by its own `date` header, else by our clock."""
    cells = found.get(SPECIAL)
    date = cells[DATE] if cells is not None else None
    made = _parse.http_date(date) if date is not None else None
    return made if made is not None else now_on.timestamp()


def read_found(provider: Provider, found: Found, now_on: datetime) -> tuple[list[Reading], int]:
    """The readings of what was found, and how many values were unusable; none at all from a scrubbed recording."""
    readings: list[Reading] = []
    ignored = 0
    scrubbed = False
    rows = provider.headers
    for index, cells in found.items():
        if index < 0:
            continue
        row = rows[index]
        if row.dialect == "ietf":
            fields = (cells[LIMIT], cells[REMAINING], cells[RESET], cells[COMBINED], cells[POLICY])
            several, bad = _structured.read_fields(*fields, origin(found, now_on))
            readings += several
        else:
            reading, bad = _read_row(row, cells, provider, found, now_on)
            if reading is not None:
                readings.append(reading)
        ignored += bad
        if bad and any(cell is not None and cell[:24].lower().startswith(_PLACEHOLDERS) for cell in cells):
            scrubbed = True
    return ([] if scrubbed else readings), ignored


def _read_row(
    row: HeaderRow, cells: list[bytes | None], provider: Provider, found: Found, now_on: datetime
) -> tuple[Reading | None, int]:
    """One quota's reading. A limit that is there but unusable (`-1`, `0`, text) makes the whole row unusable."""
    limit = remaining = None
    bad = 0
    raw = cells[LIMIT]
    if raw is not None:
        limit = _parse.amount(raw)
        if limit is None or limit <= 0:
            return None, sum(cell is not None for cell in cells)
    raw = cells[REMAINING]
    if raw is not None:
        remaining = _parse.amount(raw)
        if remaining is None:
            bad += 1
        elif limit is not None and remaining > limit and not row.overfull:
            remaining = limit
            bad += 1
    window, refill = row.window, row.refill
    if cells[PERIOD] is not None:
        period = _parse.amount(cells[PERIOD])
        if period is None or not 0 < period <= _MAX_WINDOW:
            bad += 1
        else:
            window = period
            refill = row.period_refill or refill
    reset, resolution = None, 1e-3
    raw = cells[RESET]
    if raw is not None:
        time = _read_reset(row, raw, limit, remaining, window or provider.default_window, found, now_on)
        if time is None:
            bad += 1
        else:
            reset, resolution = time
    if limit is None and remaining is None and reset is None:
        return None, bad
    name = row.name
    if row.ceiling is not None and remaining is not None and remaining > row.ceiling:
        name, window = row.unit, None
    quantum = row.quantum if row.quantum == 1.0 or _is_rounded(limit, remaining, row.quantum) else 1.0
    return Reading(name, row.unit, refill, limit, remaining, reset, window, resolution, quantum), bad


def _read_reset(
    row: HeaderRow,
    raw: bytes,
    limit: float | None,
    remaining: float | None,
    period: float,
    found: Found,
    now_on: datetime,
) -> tuple[float, float] | None:
    """The reset as seconds from the response and its resolution, or None where it cannot be trusted."""
    time = _parse.time(raw)
    if time is None:
        return None
    form, seconds, resolution = time
    if form == "instant":
        seconds = max(0.0, seconds - origin(found, now_on))
    elif form == "bare" and row.bare == "fit":
        return _parse.fit(seconds, limit, remaining, period)
    return (seconds, resolution) if seconds <= _parse.MAX_SECONDS else None


def _is_rounded(limit: float | None, remaining: float | None, quantum: float) -> bool:
    return (
        limit is not None
        and remaining is not None
        and limit >= _ROUNDED_LIMIT
        and limit % quantum == 0
        and remaining % quantum == 0
    )
