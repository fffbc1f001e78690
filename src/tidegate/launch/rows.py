"""The layout of a row of a sheet: the counts of one key in one process, for its writer and for its reader."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.display import printable

COUNTS = (
    "attempts",
    "answered",
    "refused",
    "failed",
    "abandoned",
    "ignored",
    "resent",
    "absorbed",
    "given_up",
    "unsent",
    "failed_calls",
    "replayed",
    "spared",
)
INTEGERS = (*COUNTS, "waiting", "slots")
PLACES = {name: place for place, name in enumerate(INTEGERS)}
"""Where each integer stands; the first ones are those of `tidegate.core.limiter_state.Counts`."""

INTEGER_CELLS = 16
QUOTA_CELLS = 8
QUOTAS = 4
DOUBLE_CELLS = QUOTA_CELLS * (1 + QUOTAS)
"""Cells of eight bytes: integers, then the instants and durations of the key itself, then those of each quota."""

CHANGED_AT, LOOKED_AT, PAUSED_UNTIL, BROKEN_UNTIL, LATENCY, PACE = range(6)
"""The cells of the key itself."""

CONTINUOUS = 0.0
"""Stands for the boundary of a quota that has none."""

DOUBLES_AT = 8 * INTEGER_CELLS
KEY_AT = DOUBLES_AT + 8 * DOUBLE_CELLS
KEY_BYTES = 256
NAME_BYTES = 32
ROW_BYTES = KEY_AT + KEY_BYTES + QUOTAS * NAME_BYTES

ROWS = 16
SUFFIX = ".sheet"


class QuotaRow(NamedTuple):
    """One quota as a process sees it: `used` units of it since `since` (monotonic seconds), when `stood` were left.

    When the key was last looked at, `level` were left, the next boundary was at `back_at` (`CONTINUOUS`: it has none),
    and one of those who waited was charged `amount` on average.
    """

    name: str
    limit: float
    window: float
    used: float
    since: float
    stood: float
    level: float = 0.0
    back_at: float = CONTINUOUS
    amount: float = 0.0


class KeyRow(NamedTuple):
    """One key in one process; `counts` has what `INTEGERS` names. Instants are monotonic seconds.

    `latency` is what an answer takes in seconds, 0 before the first; `pace` is in calls a second, 0 for none.
    """

    key: str
    counts: dict[str, int]
    changed_at: float
    quotas: tuple[QuotaRow, ...]
    looked_at: float = 0.0
    paused_until: float = 0.0
    broken_until: float = 0.0
    latency: float = 0.0
    pace: float = 0.0

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        ended = ("answered", "refused", "failed", "abandoned")
        return max(0, self.counts["attempts"] - sum(self.counts[name] for name in ended))


def integers(row: memoryview) -> memoryview[int]:
    """The integers of a row, to read and write."""
    return row[:DOUBLES_AT].cast("q")


def doubles(row: memoryview) -> memoryview[float]:
    """The doubles of a row, to read and write."""
    return row[DOUBLES_AT:KEY_AT].cast("d")


def name_key(row: memoryview, key: str) -> None:
    """Writes whose row it is: it counts from then on."""
    _write(row, KEY_AT, KEY_BYTES, key)


def name_quota(row: memoryview, number: int, name: str) -> None:
    """Writes the name of a quota of the row: it counts from then on."""
    _write(row, KEY_AT + KEY_BYTES + number * NAME_BYTES, NAME_BYTES, name)


def read(row: memoryview) -> KeyRow | None:
    """Return what a row says; None of one that nobody has."""
    # Whoever wrote it, it goes to a terminal.
    key = printable(_text(row, KEY_AT, KEY_BYTES))
    if not key:
        return None
    numbers, seconds = integers(row), doubles(row)
    quotas = []
    for number in range(QUOTAS):
        name = printable(_text(row, KEY_AT + KEY_BYTES + number * NAME_BYTES, NAME_BYTES))
        if name:
            at = QUOTA_CELLS * (number + 1)
            quotas.append(QuotaRow(name, *seconds[at : at + QUOTA_CELLS]))
    counts = {name: numbers[place] for name, place in PLACES.items()}
    return KeyRow(key, counts, seconds[CHANGED_AT], tuple(quotas), *seconds[LOOKED_AT : PACE + 1])


def _write(row: memoryview, at: int, size: int, text: str) -> None:
    cut = text.encode("utf-8", "replace")[: size - 1]
    row[at : at + len(cut)] = cut


def _text(row: memoryview, at: int, size: int) -> str:
    return bytes(row[at : at + size]).partition(b"\0")[0].decode("utf-8", "ignore")
