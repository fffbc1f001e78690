"""Layout of a row of a counter file: one key in one process, as numbers at fixed places.

A row holds integers, the doubles of the key, and those of its quotas. The names of the key and of its quotas follow.
Behind the names are the text of the last answer and the ring of changes.

To add a number: append its name to `INTEGERS`, or a field to `KeyRow` or `QuotaRow`, write it in `shared_counters`, and
raise `shared_file.VERSION`. The value 0 means unknown.

The ring has the newest changes of the key: one process writes it, any process may read it. A record is a line of
doubles. Its last cell gets the number of the record before the others are written, and its first cell after them. A
reader copies the memory from the first cell to the last. So it knows a record that is being written by two different
numbers, passes over it, and finds it whole at the next look.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.core.held_time import BINDING, QUOTA
from tidegate.core.safe_text import printable
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import INFINITY, Cause, Source
from tidegate.shared_file import UnreadableFile

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

KEPT_CHANGES = 64
"""Changes that are kept of one key. Chosen: as many as a person reads."""

CHANGE_DOUBLES = 9
"""Doubles of a record: its number, the seven of a `KeyChange`, and its number again."""

RING_BYTES = 8 * CHANGE_DOUBLES * KEPT_CHANGES


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
        cells, start = self._cells, self._number % KEPT_CHANGES * CHANGE_DOUBLES
        self._number += 1
        facts = (at, KINDS.index(kind), quota, before, after, CAUSE_CODES[cause], SOURCE_CODES[origin])
        cells[start + CHANGE_DOUBLES - 1] = self._number
        cells[start + 1 : start + CHANGE_DOUBLES - 1] = array("d", facts)
        cells[start] = self._number


def read_changes(ring: bytes) -> list[KeyChange]:
    """Return the whole changes of a copied ring, oldest first; those that cannot be read are left out."""
    cells = memoryview(ring).cast("d")
    return sorted(_read(cells))


def _read(cells: memoryview[float]) -> Iterator[KeyChange]:
    for start in range(0, len(cells), CHANGE_DOUBLES):
        first, at, kind, quota, before, after, cause, origin, last = cells[start : start + CHANGE_DOUBLES]
        if not first or first != last:
            continue
        try:
            facts = KINDS[int(kind)], int(quota), before, after, CAUSES[int(cause)], SOURCES[int(origin)]
        except (IndexError, ValueError, OverflowError):
            continue
        yield KeyChange(int(first), at, *facts)


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
    "left",
)
"""Counters of `tidegate.core.limiter_state.KeyCounts`."""

FATES = ("absorbed", "handed_back", "given_up")
"""Ends of a refusal: its call was sent again, the program got it, or the call was given up."""

GROUPS = ("rate", "overload", "elsewhere", "day", "money")
"""Causes of refusals as people ask for them. `elsewhere` is the capacity of others, or a model that is not ready."""

REFUSALS = tuple(f"{fate}_{group}" for fate in FATES for group in GROUPS)
"""Counters of refusals by fate and cause."""

TOKENS = TokenTotals._fields
"""Totals of `tidegate.core.token_totals.TokenTotals`."""

SUMS = (*COUNTS, *REFUSALS, *TOKENS)
"""Integers that only grow: those of several processes are added up."""

INTEGERS = (
    *COUNTS, *REFUSALS, "waiting", "slots", "members", "most_members", "breaker", "carrier", "rejected", *TOKENS,
)  # fmt: skip
"""Integers of a row. `breaker` and `carrier` are places in `BREAKER_STATES` and `CARRIERS`, `rejected` in
`CAUSES`, where 0 is for none."""

BREAKER_STATES = ("closed", "open", "half_open")
CARRIERS = ("", "file", "redis", "postgresql", "memory", "other", "ray")

KEPT_QUOTAS = 8
"""Quotas of one key that are kept: requests, tokens, input tokens and output tokens, and a ceiling of each."""

CONTINUOUS = 0.0
"""Value of `back_at` for a quota that refills continuously and has no boundary."""

KEY_BYTES = 256
"""Bytes of a key's name, with a final zero; a longer name is cut. Chosen: provider, host, digest and model fit."""

NAME_BYTES = 32
"""Bytes of a quota's name, with a final zero; a longer one is cut. Chosen: longer than those in the tables."""

CAUSE_BYTES = 192
"""Bytes of the text of the last failure, with a final zero; a longer text is cut. Chosen: the class of an error and the
words of the system fit."""

MOST_IN_FLIGHT = 1_000_000
"""Attempts in flight of one process from which on a row is damaged. Chosen: far above what a machine can have open."""


class QuotaRow(NamedTuple):
    """One quota as a process sees it: `used` units since `since` (monotonic seconds), when `stood` were left.

    At the last observation `level` units were left and the next boundary was at `back_at` (`CONTINUOUS`: none). A
    waiting call was then charged `amount` on average, and went when `margin` more were left. The limit is known from
    `origin`, last confirmed at `known_at` (0: never), its window from `window_origin`; both are places in
    `SOURCES`. The quota `held` the first waiting call for so many seconds.
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
    origin: float = 0.0
    known_at: float = 0.0
    window_origin: float = 0.0
    margin: float = 0.0
    held: float = 0.0


class KeyRow(NamedTuple):
    """One key in one process; `counts` holds the integers that `INTEGERS` names. Instants are monotonic seconds.

    `members` processes share the limits of the key now, this one included, and `most_members` did at one time. The
    limits and what is used of them are then those of all of them.

    `latency` is the mean seconds of an answer, 0 before the first, as its percentiles are; `pace` is in calls a second,
    0 where nothing paces, and the next call goes at `paced_until`. While the last refusal or failure holds calls back,
    `cause` says it in words. The provider asked for a pause of `stated` seconds, which ends at `stated_until`.
    `day_until` is the reset that it named for a spent quota of the day. All three are 0 where it named none.

    The concurrency limit is known from `slots_origin` (a place in `SOURCES`) since `slots_known_at` (0:
    nothing has confirmed it), the pace likewise. `ring` is a copy of the ring of changes.

    The key is in use since `began_at` (0: not yet). `gates` are the seconds for which each gate held the first waiting
    call, in the order of `BINDING`.
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
    stated: float = 0.0
    stated_until: float = 0.0
    day_until: float = 0.0
    latency_p50: float = 0.0
    latency_p99: float = 0.0
    slots_origin: float = 0.0
    slots_known_at: float = 0.0
    pace_origin: float = 0.0
    pace_known_at: float = 0.0
    paced_until: float = 0.0
    began_at: float = 0.0
    gates: tuple[float, ...] = (0.0,) * len(BINDING)
    cause: str = ""
    ring: bytes = b""

    @property
    def carrier(self) -> str:
        """Return by what the limits are or were shared, empty where they never were, or by an unnamed carrier."""
        number = self.counts["carrier"]
        name = CARRIERS[number] if 0 <= number < len(CARRIERS) else ""
        return "" if name == "other" else name

    @property
    def in_flight(self) -> int:
        ended = ("answered", "refused", "failed", "abandoned")
        return max(0, self.counts["attempts"] - sum(self.counts[name] for name in ended))

    @property
    def held(self) -> dict[str, float]:
        """Return the seconds for which each gate held the first waiting call, by gate."""
        seconds = dict(zip(BINDING, self.gates, strict=True)) | {QUOTA + each.name: each.held for each in self.quotas}
        return {gate: held for gate, held in seconds.items() if held > 0.0}

    @property
    def changes(self) -> list[KeyChange]:
        """Return the newest changes, oldest first."""
        return read_changes(self.ring)


DOUBLES = tuple(name for name in KeyRow._fields if name not in ("key", "counts", "quotas", "gates", "cause", "ring"))
"""Doubles of a key in a row. Those of `gates` follow them."""

QUOTA_DOUBLES = QuotaRow._fields[1:]
"""Doubles of a quota in a row."""

PLACES = {name: place for place, name in enumerate(INTEGERS)}
DOUBLE_PLACES = {name: place for place, name in enumerate(DOUBLES)}
GATES_PLACE = len(DOUBLES)
QUOTAS_PLACE = GATES_PLACE + len(BINDING)
QUOTA_PLACES = {name: place for place, name in enumerate(QUOTA_DOUBLES)}
"""Indexes of the numbers of a row, and of a quota's within its part."""

DOUBLES_AT = 8 * len(INTEGERS)
KEY_AT = DOUBLES_AT + 8 * (QUOTAS_PLACE + len(QUOTA_DOUBLES) * KEPT_QUOTAS)
NAMES_AT = KEY_AT + KEY_BYTES
CAUSE_AT = NAMES_AT + KEPT_QUOTAS * NAME_BYTES
RING_AT = CAUSE_AT + CAUSE_BYTES
ROW_BYTES = RING_AT + RING_BYTES


def source_of(code: float) -> Source:
    return SOURCES[int(code)] if 0.0 <= code < len(SOURCES) else Source.DEFAULT


def integers(row: memoryview) -> memoryview[int]:
    return row[:DOUBLES_AT].cast("q")


def doubles(row: memoryview) -> memoryview[float]:
    return row[DOUBLES_AT:KEY_AT].cast("d")


def ring(row: memoryview) -> memoryview[float]:
    return row[RING_AT:ROW_BYTES].cast("d")


def quota_at(number: int) -> int:
    """Return the index of the first double of a quota."""
    return QUOTAS_PLACE + len(QUOTA_DOUBLES) * number


def name_key(row: memoryview, key: str) -> None:
    """Write the key's name to the row; readers see the row from then on."""
    _write(row, KEY_AT, KEY_BYTES, key)


def name_quota(row: memoryview, number: int, name: str) -> None:
    """Write the name of a quota to the row; readers see the quota from then on."""
    _write(row, NAMES_AT + number * NAME_BYTES, NAME_BYTES, name)


def write_cause(row: memoryview, text: str) -> None:
    """Write what the key answered last; empty where nothing holds its calls back."""
    row[CAUSE_AT:RING_AT] = bytes(CAUSE_BYTES)
    _write(row, CAUSE_AT, CAUSE_BYTES, text)


def read(row: memoryview) -> KeyRow | None:
    """Return the content of a row, None for a row without a key; raise `UnreadableFile` for numbers that are none."""
    # The text may end up on a terminal, and any process may have written it.
    key = printable(_text(row, KEY_AT, KEY_BYTES))
    if not key:
        return None
    numbers, seconds = integers(row), doubles(row)
    quotas = []
    for number in range(KEPT_QUOTAS):
        name = printable(_text(row, NAMES_AT + number * NAME_BYTES, NAME_BYTES))
        if name:
            at = quota_at(number)
            quota = QuotaRow(name, *seconds[at : at + len(QUOTA_DOUBLES)])
            if not (0.0 < quota.limit < INFINITY and 0.0 < quota.window < INFINITY):
                raise UnreadableFile(f"it has a limit of {quota.limit:g} units per {quota.window:g} s")
            quotas.append(quota)
    counts = {name: numbers[place] for name, place in PLACES.items()}
    facts = {name: seconds[place] for name, place in DOUBLE_PLACES.items()}
    cause, gates = printable(_text(row, CAUSE_AT, CAUSE_BYTES)), tuple(seconds[GATES_PLACE:QUOTAS_PLACE])
    copied = bytes(row[RING_AT:ROW_BYTES])
    known = KeyRow(key, counts, quotas=tuple(quotas), gates=gates, cause=cause, ring=copied, **facts)
    if known.in_flight > MOST_IN_FLIGHT:
        raise UnreadableFile(f"it has {known.in_flight} attempts in flight")
    return known


def _write(row: memoryview, at: int, size: int, text: str) -> None:
    cut = text.encode("utf-8", "replace")[: size - 1]
    row[at : at + len(cut)] = cut


def _text(row: memoryview, at: int, size: int) -> str:
    return bytes(row[at : at + size]).partition(b"\0")[0].decode("utf-8", "ignore")
