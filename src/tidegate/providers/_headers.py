"""Rate-limit headers as quota readings.

Theory of operation. `gather` finds the headers that a provider's table names in one pass. `read_found` then turns them
into readings.

`read_fields` reads the IETF's RateLimit fields of drafts 03-06, 07, and 08 and later. One function reads all drafts,
because servers mix them. A member is a list of strings and a set of parameters, and the parameters show the draft.
Source: draft-ietf-httpapi-ratelimit-headers, read 2026-11-20 (provider-facts.md section 0), and the Hugging Face Hub's
actual fields (capture hf-hub-200-ietf: two strings before the parameters).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from tidegate.core.values import QuotaReading, ResetInstant, Unit
from tidegate.providers import _values
from tidegate.providers._header_names import place_of, plain_name
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
from tidegate.providers._values import window_name

_MAX_FIELD = 1024

"""Bytes of an IETF field above which it is ignored. Chosen: longer than any field of `_MAX_MEMBERS` usual policies."""

_MAX_MEMBERS = 16

"""Policies of one IETF field that are read; further ones are ignored. Chosen: providers state two to four quotas."""

_MAX_NAME = 64
"""Characters that are kept of a policy's name, and of the longest header's name that is kept. Chosen: names are words
such as `requests`."""

_PART = re.compile(r'"(?:[^"\\]|\\.){0,256}"|[^",;]|[,;]|"')

_MAX_NAMES = 512
"""Header names that are kept for one provider. Chosen: a table has 20 to 120, an answer about as many."""

UNNAMED = "ratelimit"
"""Name of a quota that neither a policy nor a window names."""

_WINDOW_KEYS = frozenset({"w", "window"})
"""Parameters that state a policy's window: the draft's, and the one in the collected answer whoop-200-windows."""

_UNITS: dict[str, Unit] = {
    "requests": "requests",
    "request": "requests",
    "tokens": "tokens",
    "concurrent-requests": "concurrent_requests",
}
"""Units by the value of `qu`, or of Helicone's `u`; other values (`content-bytes`, `cents`) are dropped."""


class _Member(NamedTuple):
    names: tuple[str, ...]
    parameters: dict[str, str]


class StatedReset(NamedTuple):
    """Reset of a quota as a header states it: as in `QuotaReading`, which describes each field."""

    after: float | None = None
    resolution: float = 1.0
    from_receipt: bool = False
    instant: ResetInstant | None = None


UNSTATED = StatedReset()
"""Reset of an answer that states none."""


class _Policy(NamedTuple):
    names: tuple[str, ...]
    limit: float
    window: float | None
    unit: Unit


def read_fields(
    limit: bytes | None,
    remaining: bytes | None,
    reset: bytes | None,
    combined: bytes | None,
    policy: bytes | None,
    answered: tuple[float, float],
) -> tuple[list[QuotaReading], int]:
    """Return the readings of the RateLimit fields, and the number of unusable values.

    `combined` is the field RateLimit. `answered` is the time of the response as `origin` returns it, for servers whose
    reset is an instant.
    """
    policies, bad = _policies(_members(policy))
    if combined is not None:
        readings, worse = _items(_members(combined), policies, answered)
    elif not policies and not bad and _members(policy):
        readings, worse = [], 0  # the fields count in a unit that is not read
    else:
        readings, worse = _triplet(_members(limit), policies, remaining, reset, answered)
    return readings, bad + worse + sum(_unreadable(field) for field in (limit, combined, policy))


def _unreadable(field: bytes | None) -> bool:
    return field is not None and not _members(field)


def _members(field: bytes | None) -> list[_Member]:
    if field is None or len(field) > _MAX_FIELD or not field.isascii():
        return []
    members: list[_Member] = []
    for text in _split(field.decode("ascii"), ",")[:_MAX_MEMBERS]:
        names: list[str] = []
        parameters: dict[str, str] = {}
        for part in _split(text, ";"):
            key, equals, value = part.partition("=")
            if part.startswith('"') or not equals:
                names.append(part.strip('"')[:_MAX_NAME])
            else:
                parameters[key.strip().lower()] = value.strip().strip('"')
        members.append(_Member(tuple(name for name in names if name), parameters))
    return [member for member in members if member.names or member.parameters]


def _split(text: str, separator: str) -> list[str]:
    parts = [""]
    for token in _PART.findall(text):
        if token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _policies(members: list[_Member]) -> tuple[list[_Policy], int]:
    """Return the policies of any draft: `100;w=10`, and `"name";q=100;w=60;qu="requests"`."""
    policies: list[_Policy] = []
    bad = 0
    for names, parameters in members:
        bare = names[0] if names and "q" not in parameters else None
        limit = _number(parameters.get("q", bare))
        window = _number(parameters.get("w", parameters.get("window")))
        unit = _UNITS.get(parameters.get("qu") or parameters.get("u", "requests"))
        if unit is None:
            continue
        if limit is None or limit <= 0 or (not window and not parameters.keys().isdisjoint(_WINDOW_KEYS)):
            bad += 1
            continue
        policies.append(_Policy(() if bare is not None else names, limit, window, unit))
    return policies, bad


def _items(
    members: list[_Member], policies: list[_Policy], answered: tuple[float, float]
) -> tuple[list[QuotaReading], int]:
    """Read RateLimit of draft 07 (`limit=100, remaining=50, reset=5`) or of draft 08 and later (`"name";r=50;t=30`)."""
    merged = {key: value for member in members for key, value in member.parameters.items()}
    if "r" not in merged and ("remaining" in merged or "limit" in merged):
        limits = _members(merged["limit"].encode("ascii")) if "limit" in merged else []
        values = [merged[key].encode("ascii") if key in merged else None for key in ("remaining", "reset")]
        return _triplet(limits, policies, values[0], values[1], answered)
    left = list(policies)
    readings: list[QuotaReading] = []
    bad = 0
    for names, parameters in members:
        remaining = _number(parameters.get("r"))
        reset = _reset(parameters.get("t"), answered)
        bad += (remaining is None and "r" in parameters) + (reset.after is None and "t" in parameters)
        if remaining is None and reset.after is None:
            continue
        policy = next((p for p in left if set(p.names) & set(names)), None)
        if policy is not None:
            left.remove(policy)
            readings.append(_reading(policy, remaining, reset))
        else:
            name = plain_name(names[-1], UNNAMED) if names else UNNAMED
            readings.append(_quota(name, None, remaining, reset))
    return readings + [_reading(policy) for policy in left], bad


def _triplet(
    limits: list[_Member],
    policies: list[_Policy],
    remaining: bytes | None,
    reset: bytes | None,
    answered: tuple[float, float],
) -> tuple[list[QuotaReading], int]:
    """Read the three fields of drafts 03-06. Remaining and reset belong to the first member of the limit."""
    first = _number(limits[0].names[0]) if limits and limits[0].names else None
    others, bad = _policies(limits[1:])
    listed = [field.split(b",") if field is not None else [] for field in (remaining, reset)]
    if len(policies) > 1 and len(listed[0]) == len(policies):
        resets = listed[1] if len(listed[1]) == len(policies) else [b""] * len(policies)
        return [
            _reading(policy, _values.amount(left), _reset(after.decode("ascii", "replace").strip(), answered))
            for policy, left, after in zip(policies, listed[0], resets, strict=True)
        ], bad
    policies = policies + others
    left = _values.amount(remaining)
    stated = _reset(reset.decode("ascii", "replace") if reset is not None else None, answered)
    bad += (left is None and remaining is not None) + (stated.after is None and reset is not None)
    if limits and (first is None or first <= 0):
        return [_reading(policy) for policy in policies], bad + 1
    current = next((policy for policy in policies if policy.limit == first), None)
    if current is None and len(policies) == 1 and first is None:
        current = policies[0]
    if current is None:
        known = not (first is None and left is None and stated.after is None)
        own = [_quota(UNNAMED, first, left, stated)] if known else []
        return own + [_reading(policy) for policy in policies], bad
    return [_reading(policy, left, stated) if policy is current else _reading(policy) for policy in policies], bad


def _reading(policy: _Policy, remaining: float | None = None, reset: StatedReset = UNSTATED) -> QuotaReading:
    window = f"-{window_name(policy.window)}" if policy.window else ""
    unnamed = f"{policy.unit}{window}"
    name = plain_name(policy.names[-1], unnamed) if policy.names else unnamed
    return _quota(name, policy.limit, remaining, reset, policy.unit, policy.window or None)


def _quota(
    name: str,
    limit: float | None,
    remaining: float | None,
    reset: StatedReset,
    unit: Unit = "requests",
    window: float | None = None,
) -> QuotaReading:
    left = remaining if remaining is None or limit is None else min(remaining, limit)
    after, resolution, from_receipt, instant = reset
    return QuotaReading(name, unit, "fixed", limit, left, after, window, resolution, 1.0, from_receipt, instant)


def _number(text: str | None) -> float | None:
    return _values.amount(text.encode("ascii", "replace")) if text is not None else None


def _reset(text: str | None, answered: tuple[float, float]) -> StatedReset:
    """Return the reset of the drafts, in delta seconds; some servers send an instant."""
    when = _values.time(text.encode("ascii", "replace")) if text is not None else None
    if when is None:
        return UNSTATED
    reset = _from_instant(when, answered) if when.form == "instant" else StatedReset(when.seconds)
    return reset if reset.after is not None and reset.after <= _values.MAX_SECONDS else UNSTATED


def _from_instant(when: _values.Time, answered: tuple[float, float]) -> StatedReset:
    """Return the reset that an instant states, counted from the time of the response (`origin`)."""
    at, rounding = answered
    instant = ResetInstant(when.seconds, when.resolution, at) if rounding else None
    return StatedReset(max(0.0, when.seconds - at), max(when.resolution, rounding), True, instant)


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
    table by number, and those that names without a row describe (`_header_names`).
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
        if len(self) < _MAX_NAMES and len(name) <= _MAX_NAME:
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
        reset = _from_instant(time, origin(found, now_on))
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
