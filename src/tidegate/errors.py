"""Errors that tidegate itself raises, as one small tree.

    Error
    ├ ConfigurationError (ValueError)     a setting or table row is wrong: names the field, the value and the bound.
    ├ NotAdmitted                         a call was not admitted.
    │ ├ DeadlineExceeded (TimeoutError)   it would have waited past its deadline.
    │ │ └ PoolDeadlineExceeded            the deadline of its pool passed before its row had ended.
    │ └ CapacityTimeout (TimeoutError)    a row of a pool found no capacity in time.
    ├ PermitMisuse (RuntimeError)         a permit was settled twice.
    ├ UnusableAnswer                      an answer cannot be used, but another one may be.
    ├ StoreError                          the database failed; the driver's error is its cause.
    │ ├ ClaimLost                         another process has claimed the experiment since.
    │ ├ SchemaMismatch                    the database is of another version.
    │ ├ DatabaseFileLost                  the SQLite file was deleted, moved or replaced.
    │ ├ DuplicateRow                      two rows of a dataset have one name.
    │ ├ DatasetChanged                    a dataset was read again and differs.
    │ └ NotStorable (ValueError)          JSON cannot represent a value.
    └ ExperimentError                     an experiment cannot be run, and why.
      ├ CannotLoad (ImportError)          its code, or a requirement of its code, is not there.
      ├ CannotRead                        its dataset is not there, or cannot be read.
      ├ UnknownExperiment (LookupError)   the database has none of that name or number.
      ├ ClaimedElsewhere                  another replica runs it.
      ├ StoppedElsewhere                  a user stopped it while its start waited for another replica.
      └ CoolingDown                       it was stopped or resumed a moment ago.

None of these is ever raised below an SDK: there the answer is a response of the client's own HTTP library. They are
raised by `registry.execute`, `registry.aexecute`, by the pool, the store, the runner and by constructors.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def add_note(error: BaseException, text: str) -> None:
    """Add a note to `error`; an error that takes none, such as a frozen dataclass, stays as it is."""
    with suppress(Exception):
        error.add_note(text)


class Error(Exception):
    """Base of the tree; never raised itself."""


class ConfigurationError(Error, ValueError):
    """Error of a setting or a table row that cannot be used: `field` was given `value`, and `bound` states the rule.

    `bound` describes the accepted values ("a number above 0"), or is a sentence about the fault ("it is missing").
    """

    def __init__(self, field: str, value: object, bound: str) -> None:
        self.field = field
        self.value = value
        self.bound = bound
        super().__init__(f"{field}: {value!r} is not usable: {bound}")


class NotAdmitted(Error):
    """Error of a call that was not admitted; `key` identifies its queue."""

    def __init__(self, message: str, *, key: object) -> None:
        self.key = key
        super().__init__(message)


class DeadlineExceeded(NotAdmitted, TimeoutError):
    """Error of a call whose deadline passed first. `waited` and `max_wait` are in seconds, `gate` is the closed gate.

    A gate is one limiter of a key that may hold a call back. If it is known to open only after the deadline, the call
    does not wait; `opens_in` is then the seconds until it opens.
    """

    def __init__(
        self, *, key: object, waited: float, max_wait: float, gate: str, opens_in: float | None = None
    ) -> None:
        self.waited = waited
        self.max_wait = max_wait
        self.gate = gate
        self.opens_in = opens_in
        until = "" if opens_in is None else f"; it opens in {opens_in:.1f} s"
        limits = f"gate {gate or 'queue'} was closed after {waited:.1f} s (max_wait {max_wait:g} s)"
        super().__init__(f"call to {key} not admitted: {limits}{until}", key=key)


class PoolDeadlineExceeded(DeadlineExceeded):
    """Error of a row that had not ended at the deadline of its pool; `index` is None for the rows not pulled by then.

    `max_wait` is that deadline, and `waited` the time for which the row waited, in seconds. `key` is None if the row
    has asked no key.
    """

    def __init__(self, *, index: int | None, key: object, waited: float, deadline: float) -> None:
        self.index = index
        self.waited = waited
        self.max_wait = deadline
        self.gate = "deadline"
        self.opens_in = None
        rows = "rows after the last one not read" if index is None else f"row {index} not answered"
        NotAdmitted.__init__(
            self, f"{rows}: the deadline of the pool ({deadline:g} s) has passed; nothing more is sent", key=key
        )


class CapacityTimeout(NotAdmitted, TimeoutError):
    """Error of row `index` of a pool that found no capacity for `max_wait` seconds of active waiting.

    `waited` is the time for which it waited in all, in seconds. `status` is the HTTP status of the key's newest
    refusal or failure, None if no server answered. Its cause is the row's own last error.
    """

    def __init__(self, *, index: int, key: object, waited: float, max_wait: float, status: int | None) -> None:
        self.index = index
        self.waited = waited
        self.max_wait = max_wait
        self.status = status
        at = "" if key is None else f" at {key}"
        last = "no server answered" if status is None else f"the last answer had status {status}"
        super().__init__(
            f"row {index} not answered: no capacity{at} for {max_wait:g} s of active waiting, and {last}; "
            "it is not tried again",
            key=key,
        )


class PermitMisuse(Error, RuntimeError):
    """Error of a permit that was settled before, or that another registry gave."""


class StoreError(Error):
    """Error of the store. If it is `retryable`, the database is unreachable or busy: the same call may succeed."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message)


class ClaimLost(StoreError):
    """Error of a claim on `experiment_id` that is no longer the newest: stop, and write nothing."""

    def __init__(self, experiment_id: int) -> None:
        self.experiment_id = experiment_id
        super().__init__(
            f"claim on experiment {experiment_id} lost: the database no longer assigns it to this run; "
            "nothing more is written under it"
        )


class SchemaMismatch(StoreError):
    """Error of a database with the schema `found`, where this tidegate knows those up to `expected`."""

    def __init__(self, *, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"database not opened: the database has schema {found}, made by a newer tidegate, "
            f"and this one knows schemas up to {expected}; upgrade it (pip install --upgrade tidegate)"
        )


class DatabaseFileLost(StoreError):
    """Error of a SQLite file at `path` that is not the one that was opened: `what` states the change.

    `saved` is a file with a copy of its content. Without one, `failure` states why, once a copy was tried.
    """

    def __init__(self, path: object, what: str, *, saved: Path | None = None, failure: str | None = None) -> None:
        self.path = path
        self.what = what
        self.saved = saved
        self.failure = failure
        said = f"database file {path} lost: it {what} while it was in use"
        if saved is not None:
            said += f"; everything that it held is saved in {saved}"
        elif failure is not None:
            said += f"; no copy could be saved ({failure}), so its content is lost when this process ends"
        super().__init__(said)


class DuplicateRow(StoreError):
    """Error of two rows of one dataset with the id `name`: at `first_line` and `line`, if their source has lines."""

    def __init__(self, *, name: str, first_line: int | None, line: int | None) -> None:
        self.name = name
        self.first_line = first_line
        self.line = line
        where = "" if first_line is None or line is None else f": lines {first_line} and {line}"
        super().__init__(f"dataset row not stored: two rows have the id {name!r}{where}; each row needs its own id")


class DatasetChanged(StoreError):
    """Error of the row `ordinal` (at `line` of its source), which was stored before with another name or content.

    If the row is `gone`, the source now ends before it.
    """

    def __init__(self, *, ordinal: int, line: int | None = None, gone: bool = False) -> None:
        self.ordinal = ordinal
        self.line = line
        self.gone = gone
        where = f"row {ordinal}" if line is None else f"line {line}"
        what = "is no longer there" if gone else "is another row now"
        super().__init__(f"dataset changed since it was first read: {where} {what}; no further row is stored")


class NotStorable(StoreError, ValueError):
    """Error of a value that JSON cannot represent."""


def require(holds: bool, field: str, value: object, bound: str) -> None:
    """Raise `ConfigurationError` unless `holds` is true."""
    if not holds:
        raise ConfigurationError(field, value, bound)


class UnusableAnswer(Error):
    """Error of an answer that cannot be used; a runner repeats a function that raises it."""


class ExperimentError(Error):
    """Error of an experiment that cannot be run; `experiment` is the requested name or number."""

    def __init__(self, message: str, *, experiment: object) -> None:
        self.experiment = experiment
        super().__init__(message)


class CannotLoad(ExperimentError, ImportError):
    """Error of code that cannot be loaded: `source` is where it was expected, `reason` the problem."""

    def __init__(self, source: str, reason: str, *, experiment: object = None) -> None:
        self.source = source
        self.reason = reason
        super().__init__(
            f"experiment {source or repr('')} not loaded: {reason}",
            experiment=source if experiment is None else experiment,
        )


class CannotRead(ExperimentError):
    """Error of a dataset that cannot be read: `source` identifies it, `reason` is the problem."""

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"dataset {source} not readable: {reason}", experiment=source)


class UnknownExperiment(ExperimentError, LookupError):
    """Error of a name or number that no experiment has."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"experiment {name!r} not found: this database has none of that name or number", experiment=name
        )


class ClaimedElsewhere(ExperimentError):
    """Error of an experiment that the replica `replica` runs; its last sign of life was `quiet` seconds ago.

    `owner` describes that process, if known.
    """

    def __init__(self, name: object, replica: str | None, quiet: float | None, owner: str = "") -> None:
        self.replica = replica
        self.quiet = quiet
        self.owner = owner
        by = owner or f"replica {replica or 'unknown'}"
        said = f", whose last heartbeat was {quiet:.0f} s ago" if quiet is not None else ""
        super().__init__(
            f"experiment {name!r} not started: it is run by {by}{said}; attach with `tidegate experiment show {name}`",
            experiment=name,
        )


class StoppedElsewhere(ExperimentError):
    """Error of an experiment that a user stopped while its start waited for another replica.

    `by` describes the user, if known.
    """

    def __init__(self, name: object, by: str = "") -> None:
        self.by = by
        super().__init__(
            f"experiment {name!r} not started: it was stopped{by and f' by {by}'}; resume it to continue",
            experiment=name,
        )


class CoolingDown(ExperimentError):
    """Error of an experiment that was stopped or resumed a moment ago, and is left alone for some seconds."""

    def __init__(self, name: object) -> None:
        said = f"experiment {name!r} not started: it was stopped or resumed a moment ago; try again in 5 s"
        super().__init__(said, experiment=name)
