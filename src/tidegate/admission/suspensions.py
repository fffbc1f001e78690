"""Suspensions: models that workers are told not to start work for, shared by processes through one SQLite file.

Theory of operation. A target is `provider/model`, `provider/*` or a key. A suspension only ever becomes longer, and
ends by its time or by `resume`. The file is read at most once a second, and after each write of this process. Without a
file, or if it cannot be used, the suspensions of this process hold alone; they are written when it is usable. No lock
that guards the memory is held while the file is used. Times are of the wall clock.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from tidegate.admission.redaction import clean
from tidegate.core.display import printable
from tidegate.core.values import CUSTOM, Key, Kind, Outcome
from tidegate.errors import ConfigurationError, require
from tidegate.settings import Settings

if TYPE_CHECKING:
    import sqlite3

MAGIC = 0x74676174
"""`application_id` of the file: "tgat"."""

VERSION = 1
"""`user_version` of the file: the number of its newest migration."""

FRESH = 1.0
"""Seconds for which the file's content is taken as read. Raising it learns later of other processes. Source: the
specification of the suspensions."""

BUSY = 5.0
"""Seconds for which `suspend` and `resume` wait for a locked file. Raising it delays their caller longer. Source: as
above."""

BRIEF = 0.05
"""Seconds for which all others wait for it. Raising it stops an event loop longer. Chosen: a few writes of others."""

LATER = 0.1
"""Part of a suspension by which a refusal must move its end before that is written. Raising it leaves others with an
earlier end; lowering it writes more often. Chosen: the end is an estimate."""

ALL = "*"
"""Model of a target that stands for every model of its provider."""

_CREATE = (
    "CREATE TABLE suspensions ("
    "target TEXT PRIMARY KEY, until REAL NOT NULL, reason TEXT NOT NULL, window TEXT NOT NULL, since REAL NOT NULL)",
    f"PRAGMA application_id = {MAGIC}",
    f"PRAGMA user_version = {VERSION}",
)
_DELETE = "DELETE FROM suspensions WHERE target = ? RETURNING target"
_DELETE_ENDED = "DELETE FROM suspensions WHERE until <= ?"
_EXTEND = """
INSERT INTO suspensions VALUES (?, ?, ?, ?, ?) ON CONFLICT (target) DO UPDATE SET
    until = excluded.until, reason = excluded.reason, window = excluded.window, since = excluded.since
WHERE excluded.until > until
"""
_SELECT = "SELECT target, until, reason, window, since FROM suspensions"

MAX_REASON = 200
"""Characters of a reason that are kept. Raising it makes lines longer. Chosen: a sentence or two."""

LONGEST = 31_536_000.0
"""Seconds of the longest suspension: a year, as of `Settings.suspend_day`. Raising it trusts absurd waits."""

logger = logging.getLogger("tidegate")


class Suspension(NamedTuple):
    """Suspension of a `target`, from `since` `until` aware times, for a `reason`.

    `window` names the span of the quota, as in `Classification`.
    """

    target: str
    until: datetime
    reason: str
    window: str
    since: datetime


class Advice(NamedTuple):
    """Number of further `workers` to start for a target.

    If it is `throttled`, none may start for now: `reason` is the cause, `throttle_until` the aware time of its end, and
    `ready_in` the seconds until then. None stands for an unknown end.
    """

    workers: int
    throttled: bool = False
    throttle_until: datetime | None = None
    reason: str = ""
    ready_in: float | None = None

    def to_json(self) -> str:
        """Return the advice as one line of JSON; a time is in ISO 8601, an unknown one is an empty text."""
        until = self.throttle_until
        return json.dumps({**self._asdict(), "throttle_until": until.isoformat() if until is not None else ""})


def normalised(target: str | Key | None) -> str:
    """Return a target as `provider/model` in lower case; empty for one that names no provider or no model.

    A key without a model stands for every model of its provider, and a key of the caller's own for its name.
    """
    if isinstance(target, Key):
        target = f"{target.provider}/{target.scope or (target.base_url if target.provider == CUSTOM else '') or ALL}"
    provider, slash, model = (target if isinstance(target, str) else "").strip().lower().partition("/")
    return f"{provider.strip()}/{model.strip()}" if slash and provider.strip() and model.strip() else ""


def names_same(one: str, other: str) -> bool:
    """Return whether two normalised targets name one model: as a whole, or one by the last part of its name.

    The name of a program's own key counts as a whole only.
    """
    provider, _, model = one.partition("/")
    other_provider, _, other_model = other.partition("/")
    if provider != other_provider:
        return False
    is_short = provider != CUSTOM and ("/" in model) != ("/" in other_model)
    return model == other_model or (is_short and model.rpartition("/")[2] == other_model.rpartition("/")[2])


def covers(target: str, other: str | Key) -> bool:
    """Return whether a normalised target names a key, or another normalised target."""
    name = normalised(other) if isinstance(other, Key) else other
    provider, _, model = target.partition("/")
    return (model == ALL and name.partition("/")[0] == provider) or names_same(target, name)


class SuspensionTable:
    """Suspensions of this process, and those in the file of `settings`; `calendar` returns the aware current time."""

    def __init__(self, settings: Settings, calendar: Callable[[], datetime]) -> None:
        self._settings = settings
        self._path = settings.suspensions
        self._calendar = calendar
        self._allowed = frozenset(each.strip().lower() for each in settings.suspend_models)
        self._rows: dict[str, Suspension] = {}
        # What the file does not have so far: suspensions, and None for a target that was resumed.
        self._changes: dict[str, Suspension | None] = {}
        self._read_at = float("-inf")
        self._warned = False
        self.renew_locks()

    def renew_locks(self) -> None:
        """Make new locks: after a fork, a thread that the child does not have may hold the old ones."""
        self._lock = threading.Lock()
        self._file_lock = threading.Lock()

    def suspend(
        self, target: str | Key, until: datetime, reason: str, window: str = "", *, patience: float = BUSY
    ) -> Suspension | None:
        """Suspend a target; return the suspension that holds now.

        An earlier suspension that lasts longer stays. Wait for a locked file for `patience` seconds. Return None for a
        target without a provider or a model.
        """
        name, now = normalised(target), self._calendar()
        if not name:
            return None
        row = Suspension(name, until, clean(reason, MAX_REASON), window, now)
        with self._lock:
            self._rows[name] = _longer(self._rows.get(name), row)
            if self._path is not None:
                self._changes[name] = _longer(self._changes.get(name), row)
        self._exchange(now.timestamp(), patience)
        with self._lock:
            return self._rows.get(name)

    def note_refusal(self, target: str | Key, outcome: Outcome, window: str = "") -> Suspension | None:
        """Suspend a target for other workers after a lack of capacity, where `Settings.suspend_models` names it.

        The time is the one that the provider names, else that of the settings. Return None where nothing is suspended.
        """
        name, given = normalised(target), self._settings
        if not name or not any(each == ALL or covers(each, name) for each in self._allowed):
            return None
        seconds = given.suspend_default
        if outcome.kind is Kind.DAILY_LIMIT or window == "day":
            seconds = given.suspend_day
        elif outcome.kind is Kind.RATE_LIMIT:
            seconds = given.suspend_rate
        seconds = min(outcome.retry_after or seconds, LONGEST)
        now = self._calendar()
        least = now + timedelta(seconds=seconds * (1.0 - LATER))
        known = self._rows.get(name)
        if known is not None and known.until >= least:
            self._refresh(now.timestamp())
            known = self._rows.get(name)
            if known is not None and known.until >= least:
                return known
        until, reason = now + timedelta(seconds=seconds), f"{outcome.kind}: {outcome.cause}"
        return self.suspend(name, until, reason, window, patience=BRIEF)

    def resume(self, target: str | Key) -> bool:
        """End the suspension of a target; return whether there was one."""
        name, now = normalised(target), self._calendar()
        if not name:
            return False
        # The file may have the model under another form of its name.
        self._exchange(now.timestamp(), BRIEF)
        with self._lock:
            names = {name, *(each for each in self._rows if names_same(each, name))}
            found = [row for row in (self._rows.pop(each, None) for each in names) if row is not None]
            unwritten = [row for row in map(self._changes.get, names) if row is not None]
            if self._path is not None:
                self._changes.update(dict.fromkeys(names))
        deleted = self._exchange(now.timestamp(), BUSY)
        if deleted is not None:
            if not names.isdisjoint(deleted):
                return True
            found = unwritten
        return any(row.until > now for row in found)

    def of(self, target: str | Key) -> Suspension | None:
        """Return the longest suspension that holds for a target now: its own, or that of its whole provider."""
        name = normalised(target)
        found = [each for each in self.all() if covers(each.target, name)]
        return max(found, key=lambda each: each.until, default=None)

    def all(self) -> list[Suspension]:
        """Return the suspensions that hold now, by target."""
        now = self._calendar()
        self._refresh(now.timestamp())
        with self._lock:
            return [row for _, row in sorted(self._rows.items()) if row.until > now]

    def _refresh(self, now: float) -> None:
        if not now - FRESH < self._read_at <= now:
            self._exchange(now, BRIEF)

    def _exchange(self, now: float, patience: float) -> set[str] | None:
        """Write the changes of this process and read the file; return the targets that were deleted.

        Return None if that fails: the changes are kept for the next time.
        """
        lock = self._file_lock
        if self._path is None or not lock.acquire(timeout=patience):
            return None
        try:
            with self._lock:
                changes = dict(self._changes)
            found = self._run(changes, now, patience)
            self._read_at = now
            if found is None:
                return None
            with self._lock:
                # Other threads may have made changes during the exchange.
                left = {name: row for name, row in self._changes.items() if changes.get(name, self) is not row}
                # The file is the truth: another process may have resumed a target.
                rows, self._changes = found.rows, left
                for name, row in left.items():
                    if row is not None:
                        rows[name] = _longer(rows.get(name), row)
                    else:
                        rows.pop(name, None)
                self._rows = rows
            return found.deleted
        finally:
            lock.release()

    def _run(self, changes: dict[str, Suspension | None], now: float, patience: float) -> _Content | None:
        """Write `changes` and return the content of the file; None without a usable file, which is logged once."""
        import sqlite3

        try:
            with closing(sqlite3.connect(str(self._path), timeout=patience, isolation_level=None)) as file:
                _prepare(file)
                deleted: set[str] = set()
                if changes:
                    file.execute("BEGIN IMMEDIATE")
                    file.execute(_DELETE_ENDED, (now,))
                    for name, row in changes.items():
                        if row is None:
                            deleted.update(each for (each,) in file.execute(_DELETE, (name,)).fetchall())
                        else:
                            until, since = row.until.timestamp(), row.since.timestamp()
                            file.execute(_EXTEND, (name, until, row.reason, row.window, since))
                    file.execute("COMMIT")
                rows = [
                    Suspension(target, _aware(until), reason, window, _aware(since))
                    for target, until, reason, window, since in file.execute(_SELECT).fetchall()
                ]
                return _Content(deleted, {row.target: row for row in rows})
        except (sqlite3.Error, OSError, ValueError, OverflowError, TypeError) as error:
            # The last three are of rows that another program wrote.
            if not self._warned:
                self._warned = True
                logger.warning(
                    "suspensions in %s not usable: %s; those of this process hold alone, and are written later",
                    self._path,
                    printable(str(error)),
                )
            return None


class _Content(NamedTuple):
    deleted: set[str]
    rows: dict[str, Suspension]


def _longer(known: Suspension | None, row: Suspension) -> Suspension:
    return row if known is None or known.until < row.until else known


def _prepare(file: sqlite3.Connection) -> None:
    """Make the tables of a new file; raise `sqlite3.DatabaseError` for a file of another kind or version."""
    import sqlite3

    # Several processes may find the file new at once: each reads it as a whole, and only the first makes the tables.
    for begin in ("BEGIN", "BEGIN IMMEDIATE"):
        file.execute(begin)
        is_known = _is_known(file)
        if not is_known and begin == "BEGIN IMMEDIATE":
            for statement in _CREATE:
                file.execute(statement)
        file.execute("COMMIT")
        if is_known:
            break
    # While other processes use a new file, it keeps its journal; a later exchange tries again.
    with suppress(sqlite3.OperationalError):
        file.execute("PRAGMA journal_mode = WAL")


def _is_known(file: sqlite3.Connection) -> bool:
    """Return whether a file has the tables; raise `sqlite3.DatabaseError` where they are of another kind or version."""
    import sqlite3

    version = file.execute("PRAGMA user_version").fetchone()[0]
    magic = file.execute("PRAGMA application_id").fetchone()[0]
    if (magic, version) == (MAGIC, VERSION):
        return True
    if magic == MAGIC or file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError(f"it is no file of suspensions of version {VERSION}")
    return False


def _aware(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def checked_end(seconds: float | None, until: datetime | None, now: datetime) -> datetime:
    """Return the aware end of a suspension; raise `ConfigurationError` unless exactly one usable time is given."""
    if (seconds is None) == (until is None):
        raise ConfigurationError("seconds", seconds, "either `seconds` or `until` must be given")
    if until is not None:
        require(isinstance(until, datetime) and until.tzinfo is not None, "until", until, "an aware datetime")
        latest = now + timedelta(seconds=LONGEST)
        require(until <= latest, "until", until, f"a time at most {LONGEST:g} seconds ahead")
        return until
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    require(number and 0 < (seconds or 0) <= LONGEST, "seconds", seconds, f"a number above 0, at most {LONGEST:g}")
    return now + timedelta(seconds=seconds or 0)


def checked_count(field: str, count: int) -> int:
    """Return a number of workers; raise `ConfigurationError` unless it is whole and not negative."""
    whole = isinstance(count, int) and not isinstance(count, bool)
    require(whole and count >= 0, field, count, "a whole number, 0 or more")
    return count
