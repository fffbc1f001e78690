"""Rate-limit headers as quota readings.

Theory of operation. `gather` finds the headers that a provider's table names in one pass. `read_found` then turns them
into readings; `_fields` reads those that describe themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import count

from tidegate.core.values import QuotaReading
from tidegate.providers import _values
from tidegate.providers._fields import MAX_NAME, UNNAMED, StatedReset, from_instant, place_of, read_fields
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

_MAX_NAMES = 512
"""Header names that are kept for one provider. Chosen: a table has 20 to 120, an answer about as many."""

Found = dict[int, list[bytes | None]]
"""Raw values by row number and place. Rows below 0 do not belong to a quota (`_schema.SPECIAL`)."""

_PLACEHOLDERS = (b"x-ratelimit", b"anthropic-ratelimit")
"""Values that repeat a header's name, as scrubbed recordings have them (openai-200-scrubbed-values)."""

_ROUNDED_LIMIT = 10_000.0
"""Limit below which values count as exact, not as rounded to `HeaderRow.quantum`. Derived from the rounding to
thousands: it would hide more than a tenth of a smaller limit."""

_MAX_WINDOW = 400 * 86400.0
"""Seconds above which a stated period is rejected as garbage. Chosen: above a year, the longest period in use."""


class HeaderPlaces(dict[bytes, tuple[int, int] | None]):
    """Row and place of a header by its name as it was sent, in any case; None for a header that no row names.

    A server sends the same names again and again, so each one is put in lower case only once. `rows` are those of the
    table by number, and those that names without a row describe (`_fields`).
    """

    __slots__ = ("_described", "_numbers", "_places", "rows")

    def __init__(self, places: dict[bytes, tuple[int, int]], rows: tuple[HeaderRow, ...] = ()) -> None:
        super().__init__(places)
        self._places = places
        self._numbers = count(len(rows))
        self._described: dict[str, int] = {}
        self.rows = dict(enumerate(rows))

    def __missing__(self, name: bytes) -> tuple[int, int] | None:
        lower = name.lower()
        place = self._places.get(lower)
        if len(self) < _MAX_NAMES and len(name) <= MAX_NAME:
            if place is None and b"limit" in lower and lower.isascii():
                place = self._describe(lower.decode("ascii"))
            self[name] = place
        return place

    def _describe(self, name: str) -> tuple[int, int] | None:
        found = place_of(name)
        if found is None:
            return None
        if found.row is None:
            return SPECIAL, found.place
        number = self._described.setdefault(found.row.name, next(self._numbers))
        self.rows.setdefault(number, found.row)
        return number, found.place


@lru_cache(maxsize=256)
def _places_of(provider: Provider) -> HeaderPlaces:
    return HeaderPlaces(provider.places, provider.headers)


def row_at(provider: Provider, number: int) -> HeaderRow:
    """Return the row of a number in `Found`."""
    return _places_of(provider).rows[number]


def gather(provider: Provider, headers: Iterable[tuple[bytes, bytes]], found: Found | None = None) -> Found:
    """Add to `found` the raw values of the headers that the table names, by row and place; return it."""
    found = {} if found is None else found
    places = _places_of(provider)
    for name, value in headers:
        place = places[name]
        if place is not None:
            row, cell = place
            cells = found.get(row)
            if cells is None:
                cells = found[row] = [None] * CELLS
            before = cells[cell]
            cells[cell] = value if before is None or before == value else before + b", " + value
    return found


def noted(provider: Provider, found: Found, name: str) -> bytes | None:
    """Return the value of a header that a row of errors or a plan names; None if it was not sent."""
    cells = found.get(provider.noted[name])
    return cells[0] if cells is not None else None


def origin(found: Found, now_on: datetime) -> tuple[float, float]:
    """Return the time of the response in seconds since 1970 (`date` header, else local clock), and its rounding."""
    cells = found.get(SPECIAL)
    date = cells[DATE] if cells is not None else None
    made = _values.http_date(date) if date is not None else None
    return (made, 1.0) if made is not None else (now_on.timestamp(), 0.0)


def read_found(provider: Provider, found: Found, now_on: datetime) -> tuple[list[QuotaReading], int]:
    """Return the readings, and the number of unusable values; return no reading for a scrubbed recording."""
    readings: list[QuotaReading] = []
    ignored = 0
    scrubbed = False
    rows = _places_of(provider).rows
    own = len(provider.headers)
    for index, cells in found.items():
        if index < 0:
            continue
        row = rows[index]
        if row.dialect == "ietf":
            fields = (cells[LIMIT], cells[REMAINING], cells[RESET], cells[COMBINED], cells[POLICY])
            several, bad = read_fields(*fields, origin(found, now_on))
            readings += several
        else:
            reading, bad = _read_row(row, cells, provider, found, now_on)
            if reading is not None and (index < own or _is_whole(reading)):
                readings.append(reading)
        ignored += bad
        if bad and any(cell is not None and cell[:24].lower().startswith(_PLACEHOLDERS) for cell in cells):
            scrubbed = True
    return ([] if scrubbed else _merged(readings)), ignored


def states_zero(found: Found) -> bool:
    """Return whether limit and remaining are 0 without a reset; with one: no limit (provider-facts.md rule 8)."""
    quotas = [cells for number, cells in found.items() if number >= 0]
    return any(cells[LIMIT] == cells[REMAINING] == b"0" and cells[RESET] is None for cells in quotas)


def _is_whole(reading: QuotaReading) -> bool:
    """Return whether a described quota is stated by more than its reset, and counts more than fractions (of money)."""
    return reading.remaining is not None if reading.limit is None else reading.limit >= 1


def _merged(readings: list[QuotaReading]) -> list[QuotaReading]:
    """Return the readings without those that state another one again, without its window.

    Kong repeats its quota in the draft's fields, which hold the reset. A reset alone belongs to the only quota without
    one.
    """
    again = next((reading for reading in readings if reading.name == UNNAMED and reading.window is None), None)
    if again is None:
        return readings
    facts = (again.unit, again.limit, again.remaining)
    if again.limit is None and again.remaining is None:
        same = [r for r in readings if r.window is not None and r.reset_after is None]
    else:
        same = [r for r in readings if r.window is not None and (r.unit, r.limit, r.remaining) == facts]
    if len(same) != 1:
        return readings
    whole = same[0]
    if whole.reset_after is None:
        whole = whole._replace(
            reset_after=again.reset_after,
            resolution=again.resolution,
            from_receipt=again.from_receipt,
            instant=again.instant,
        )
    return [whole if reading is same[0] else reading for reading in readings if reading is not again]


def _read_row(
    row: HeaderRow, cells: list[bytes | None], provider: Provider, found: Found, now_on: datetime
) -> tuple[QuotaReading | None, int]:
    """Return one quota's reading. An unusable limit (`-1`, `0`, text) makes the whole row unusable."""
    limit = remaining = None
    bad = 0
    raw = cells[LIMIT]
    if raw is not None:
        limit = _values.amount(raw)
        if limit is None or limit <= 0:
            return None, sum(cell is not None for cell in cells)
    raw = cells[REMAINING]
    if raw is not None:
        remaining = _values.amount(raw)
        if remaining is None:
            bad += 1
        elif limit is not None and remaining > limit and not row.overfull:
            remaining = limit
            bad += 1
    window, refill = row.window, row.refill
    if cells[PERIOD] is not None:
        period = _values.amount(cells[PERIOD])
        if period is None or not 0 < period <= _MAX_WINDOW:
            bad += 1
        else:
            window = period
            refill = row.period_refill or refill
    reset = StatedReset(resolution=1e-3)
    raw = cells[RESET]
    if raw is not None:
        stated = _read_reset(row, raw, limit, remaining, window or provider.default_window, found, now_on)
        if stated is None:
            bad += 1
        else:
            reset = stated
    after, resolution, from_receipt, instant = reset
    if limit is None and remaining is None and after is None:
        return None, bad
    name = row.name
    if row.ceiling is not None and remaining is not None and remaining > row.ceiling:
        name, window = row.unit, None
    quantum = row.quantum if row.quantum == 1.0 or _is_rounded(limit, remaining, row.quantum) else 1.0
    reading = QuotaReading(
        name, row.unit, refill, limit, remaining, after, window, resolution, quantum, from_receipt, instant
    )
    return reading, bad


def _read_reset(
    row: HeaderRow,
    raw: bytes,
    limit: float | None,
    remaining: float | None,
    period: float,
    found: Found,
    now_on: datetime,
) -> StatedReset | None:
    """Return the reset that a field states, an instant from the response's own time; None if it is unusable."""
    time = _values.time(raw)
    if time is None:
        return None
    form, seconds, resolution = time
    reset = StatedReset(seconds, resolution)
    if form == "instant":
        reset = from_instant(time, origin(found, now_on))
    elif form == "bare" and row.bare == "fit":
        fitted = _values.fit(seconds, limit, remaining, period)
        return StatedReset(*fitted) if fitted is not None else None
    return reset if reset.after is not None and reset.after <= _values.MAX_SECONDS else None


def _is_rounded(limit: float | None, remaining: float | None, quantum: float) -> bool:
    return (
        limit is not None
        and remaining is not None
        and limit >= _ROUNDED_LIMIT
        and limit % quantum == 0
        and remaining % quantum == 0
    )
