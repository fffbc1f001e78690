"""Suspensions and requeue rules for workers of job queues of the caller's own.

Theory of operation. A suspension says that no worker is to start for a model until a time. The processes of a queue
share suspensions through one SQLite file, which every operation reads or writes: nothing is kept in memory. A
suspension is advice: it ends no worker, and holds back no call. `after_failure` says what becomes of a failed job. A
lack of capacity never costs an attempt, and suspends the model where the program allows that. A passing failure costs
one attempt. A failure that another attempt cannot change ends the job at once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any, NamedTuple

import tidegate.admission.log_redaction  # noqa: F401  # its filter precedes every record
from tidegate.admission.redaction import clean
from tidegate.core.safe_text import printable
from tidegate.core.values import CONSEQUENCES, Action, Kind
from tidegate.errors import require
from tidegate.providers.classification import Classification, classify

MAGIC = 0x74676174
"""`application_id` of the file: "tgat"."""

VERSION = 2
"""`user_version` of the file: the number of its layout."""

BUSY_SECONDS = 5.0
"""Seconds for which an operation waits for a locked file. Raising it delays a worker longer. Source: the default of
Python's sqlite3."""

DAY_SECONDS = 86_400.0
RATE_SECONDS = 60.0
OTHER_SECONDS = 900.0
"""Seconds of a suspension after a refusal that names no time: at a spent daily quota, at a rate limit, and at any other
lack of capacity. Raising one leaves workers idle for longer; lowering it lets more of them be refused. Source: the
back-offs of FlatAgents."""

LONGEST_SECONDS = 31_536_000.0
"""Seconds of the longest suspension: a year. Raising it trusts absurd waits. Chosen: no quota has a longer window."""

MAX_REASON_CHARACTERS = 200
"""Characters of a reason that are kept. Raising it makes lines longer. Chosen: a sentence or two."""

ALL = "*"
"""Model of a target that stands for every model of its provider."""

_CREATE = (
    "CREATE TABLE suspensions (target TEXT PRIMARY KEY, until REAL NOT NULL, reason TEXT NOT NULL)",
    f"PRAGMA application_id = {MAGIC}",
    f"PRAGMA user_version = {VERSION}",
)
_EXTEND = """
INSERT INTO suspensions VALUES (?, ?, ?) ON CONFLICT (target) DO UPDATE SET
    until = max(until, excluded.until), reason = iif(excluded.until > until, excluded.reason, reason)
RETURNING target, until, reason
"""
_DELETE = "DELETE FROM suspensions WHERE target = ? RETURNING target, until, reason"
_HELD = "SELECT target, until, reason FROM suspensions WHERE until > ? AND target IN (?, ?) ORDER BY until DESC LIMIT 1"
_ALL_HELD = "SELECT target, until, reason FROM suspensions WHERE until > ? ORDER BY target"

logger = logging.getLogger("tidegate")


class Suspension(NamedTuple):
    """Suspension of a `target` until the aware time `until`, for a `reason`."""

    target: str
    until: datetime
    reason: str


class Decision(NamedTuple):
    """Action for a job, with its new count of `attempts`; write both to the job's record.

    `REQUEUE`: pending again, its error cleared, not claimed before the aware time `not_before` (None: at once).
    `RETRY`: pending again, its error kept. `POISON`: failed for good. `reason` states the cause in one line.
    `suspension` is that of the target, where the failure suspended it.
    """

    action: Action
    attempts: int
    not_before: datetime | None
    reason: str
    suspension: Suspension | None = None


def _now() -> datetime:
    return datetime.now(UTC)


class Suspensions:
    """Models that workers are not to start for, in the SQLite file `path`, which processes share.

    A target is `provider/model`, or `provider/*` for all models of a provider; case does not matter. `models` lists the
    targets that `after_failure` may suspend, also as a text with commas or spaces; `*` stands for all, an empty text
    for none. `calendar` returns the aware current time. A file that cannot be used is logged once, and then no model
    counts as suspended. Raise `ConfigurationError` for an unusable `path` or target.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        models: str | Iterable[str] = ALL,
        calendar: Callable[[], datetime] = _now,
    ) -> None:
        require(isinstance(path, str | PathLike) and bool(fspath(path)), "path", path, "the path of a file")
        self._path = fspath(path)
        given = models.replace(",", " ").split() if isinstance(models, str) else models
        self._models = frozenset(each if each == ALL else _normalised(each) for each in given)
        require("" not in self._models, "models", models, "targets provider/model, provider/* or *")
        self._calendar = calendar
        self._warned = False

    def suspend(self, target: str, *, seconds: float, reason: str = "") -> Suspension | None:
        """Suspend a target for `seconds`; return the suspension that holds now.

        An earlier suspension that lasts longer stays. Return None for a target without a provider or a model. Raise
        `ConfigurationError` for a time that is not above 0, or above a year, and a reason that is no text.
        """
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        bound = f"a number above 0, at most {LONGEST_SECONDS:g}"
        require(number and 0 < seconds <= LONGEST_SECONDS, "seconds", seconds, bound)
        require(isinstance(reason, str), "reason", reason, "a text")
        name = _normalised(target)
        if not name:
            return None
        row = Suspension(name, self._calendar() + timedelta(seconds=seconds), clean(reason, MAX_REASON_CHARACTERS))
        (held,) = self._run(_EXTEND, name, row.until.timestamp(), row.reason) or (row,)
        because, until = printable(held.reason) or "no reason given", held.until.isoformat(timespec="seconds")
        logger.info("%s suspended: %s; no worker is to start before %s", name, because, until)
        return held

    def suspend_after(self, target: str, failure: Classification) -> Suspension | None:
        """Suspend a target after a lack of capacity, where `models` names it; return the suspension, or None.

        It lasts for the time that the provider names, else for the one of the kind of the failure.
        """
        name = _normalised(target)
        if not self._models.intersection((ALL, name, _whole_provider(name))):
            return None
        seconds = OTHER_SECONDS
        if failure.kind is Kind.DAILY_LIMIT or failure.window == "day":
            seconds = DAY_SECONDS
        elif failure.kind is Kind.RATE_LIMIT:
            seconds = RATE_SECONDS
        seconds = min(failure.retry_after or seconds, LONGEST_SECONDS)
        return self.suspend(name, seconds=seconds, reason=f"{failure.kind}: {failure.cause}")

    def resume(self, target: str) -> bool:
        """End the suspension of a target; return whether there was one."""
        return any(row.until > self._calendar() for row in self._run(_DELETE, _normalised(target)))

    def suspended(self, target: str) -> Suspension | None:
        """Return the longest suspension that holds for a target now: its own, or that of its whole provider."""
        name = _normalised(target)
        found = self._run(_HELD, self._calendar().timestamp(), name, _whole_provider(name))
        return found[0] if found else None

    def all(self) -> list[Suspension]:
        """Return the suspensions that hold now, by target."""
        return self._run(_ALL_HELD, self._calendar().timestamp())

    def workers_to_start(self, target: str, *, wanted: int, active: int = 0, most: int | None = None) -> int:
        """Return the number of further workers to start for a target, where `active` run and `wanted` are to run.

        It is 0 while the target is suspended, and leaves room for `most` workers in all. Raise `ConfigurationError` for
        a number that is negative or not whole.
        """
        most = wanted if most is None else most
        for field, count in (("wanted", wanted), ("active", active), ("most", most)):
            _require_count(field, count, 0)
        return 0 if self.suspended(target) is not None else max(0, min(wanted, most) - active)

    def _run(self, statement: str, *values: Any) -> list[Suspension]:
        """Run one statement, which is one transaction; return its rows, none without a usable file."""
        try:
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as file:
                _prepare(file)
                rows = file.execute(statement, values).fetchall()
            return [Suspension(target, datetime.fromtimestamp(until, UTC), reason) for target, until, reason in rows]
        except (sqlite3.Error, OSError, ValueError, OverflowError, TypeError) as error:
            # The last three are of rows that another program wrote.
            if not self._warned:
                self._warned = True
                text = "suspensions in %s not usable: %s; workers start as if no model was suspended"
                logger.warning(text, printable(self._path), printable(str(error)))
            return []


def after_failure(
    error: object,
    *,
    attempts: int,
    max_attempts: int = 3,
    target: str = "",
    suspensions: Suspensions | None = None,
    status: int | None = None,
    provider: str | None = None,
) -> Decision:
    """Return the action for a job that failed with `error` (see `classify`) after `attempts` counted attempts.

    With `suspensions`, a lack of capacity suspends `target` there for other workers, if its `models` name it. Raise
    `ConfigurationError` for `attempts` below 0, `max_attempts` below 1, and what is no `Suspensions`.
    """
    _require_count("attempts", attempts, 0)
    _require_count("max_attempts", max_attempts, 1)
    known = suspensions is None or isinstance(suspensions, Suspensions)
    require(known, "suspensions", suspensions, "a tidegate.Suspensions")
    found = classify(error, status=status, provider=provider)
    action = CONSEQUENCES[found.kind].job
    if action is Action.REQUEUE:
        suspension = suspensions.suspend_after(target, found) if suspensions is not None else None
        return Decision(action, attempts, _not_before(found), _reason(found), suspension)
    if action is Action.POISON:
        return Decision(action, attempts, None, _reason(found))
    attempts += 1
    ended = attempts >= max_attempts
    reason = f"{_reason(found)}; attempt {attempts} of {max_attempts}"
    return Decision(Action.POISON if ended else action, attempts, None, reason)


def _not_before(found: Classification) -> datetime | None:
    now = _now()
    if found.retry_after:
        return now + timedelta(seconds=found.retry_after)
    if found.kind is not Kind.DAILY_LIMIT:
        return None
    # Without a named time: the next day of the calendar, in UTC.
    return now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def _reason(found: Classification) -> str:
    span = f" ({found.window})" if found.window else ""
    return f"{found.kind}: {found.cause}{span}, read from {found.evidence}"


def _require_count(field: str, count: int, least: int) -> None:
    whole = isinstance(count, int) and not isinstance(count, bool)
    require(whole and count >= least, field, count, f"a whole number, {least} or more")


def _normalised(target: str) -> str:
    """Return a target as `provider/model` in lower case; empty for one that names no provider or no model."""
    provider, slash, model = (target if isinstance(target, str) else "").strip().lower().partition("/")
    return f"{provider.strip()}/{model.strip()}" if slash and provider.strip() and model.strip() else ""


def _whole_provider(name: str) -> str:
    return f"{name.partition('/')[0]}/{ALL}"


def _prepare(file: sqlite3.Connection) -> None:
    """Make the table of a new file; raise `sqlite3.DatabaseError` for a file of another kind or version."""
    if _layout(file) == (MAGIC, VERSION):
        return
    # Several processes may find the file new at once: only the first makes the table.
    file.execute("BEGIN IMMEDIATE")
    if not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in _CREATE:
            file.execute(statement)
    elif _layout(file) != (MAGIC, VERSION):
        raise sqlite3.DatabaseError(f"it is no file of suspensions of version {VERSION}")
    file.execute("COMMIT")


def _layout(file: sqlite3.Connection) -> tuple[int, int]:
    magic = file.execute("PRAGMA application_id").fetchone()[0]
    return magic, file.execute("PRAGMA user_version").fetchone()[0]
