"""The errors of tidegate's own calls, as one small tree.

    Error
    ├ ConfigurationError (ValueError)     a setting or table row is wrong: names the field, the value and the bound
    ├ NotAdmitted                         a call was not let through
    │ ├ DeadlineExceeded (TimeoutError)   it would have waited past its deadline
    │ └ KeyRefused                        the provider rejects the whole key, as another call was told just now
    ├ PermitMisuse (RuntimeError)         a permit was settled by somebody who does not hold it
    ├ StoreError                          the database failed; the driver's error is its cause
    │ ├ LeaseLost                         somebody else has claimed the experiment since
    │ ├ SchemaMismatch                    the database is of another version
    │ ├ DatabaseFileLost                  the SQLite file was deleted, moved or replaced
    │ ├ DuplicateRow                      two rows of a dataset have one name
    │ ├ DatasetChanged                    a dataset was read again and is not what it was
    │ └ NotStorable (ValueError)          JSON has no word for a value
    └ ExperimentError                     an experiment cannot be run, and why
      ├ CannotLoad (ImportError)          its code, or what its code needs, is not there
      ├ CannotRead                        its dataset is not there, or cannot be read
      ├ UnknownExperiment (LookupError)   the database has none of that name or number
      ├ ClaimedElsewhere                  another replica runs it
      ├ StoppedElsewhere                  a user stopped it while its start waited for another replica
      └ CoolingDown                       it was stopped or resumed a moment ago

None of these is ever raised below an SDK: there the answer is a response of the client's own HTTP library. They are
raised by `registry.execute`, `registry.aexecute`, by the store, by the runner and by constructors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Error(Exception):
    """Base of the tree; never raised itself."""


class ConfigurationError(Error, ValueError):
    """A setting or a table row that cannot be used: `field` was given `value`, and `bound` says what would hold."""

    def __init__(self, field: str, value: object, bound: str) -> None:
        self.field = field
        self.value = value
        self.bound = bound
        super().__init__(f"{field}: {value!r} is not usable: {bound}")


class NotAdmitted(Error):
    """A call that was not let through; `key` is whose queue it stood in."""

    def __init__(self, message: str, *, key: object) -> None:
        self.key = key
        super().__init__(message)


class DeadlineExceeded(NotAdmitted, TimeoutError):
    """The call's deadline came first. `waited` and `max_wait` are in seconds, `gate` names what was closed.

    Where the gate is known to open only after the deadline the call does not wait; `opens_in` (seconds) says when.
    """

    def __init__(
        self, *, key: object, waited: float, max_wait: float, gate: str, opens_in: float | None = None
    ) -> None:
        self.waited = waited
        self.max_wait = max_wait
        self.gate = gate
        self.opens_in = opens_in
        until = "" if opens_in is None else f", which opens in {opens_in:.1f} s"
        super().__init__(f"{key}: not admitted after {waited:.1f} s (max_wait {max_wait:g} s): {gate}{until}", key=key)


class KeyRefused(NotAdmitted):
    """A call that was not made: the provider just refused another call of the key for a reason that holds for all.

    `cause` is `auth`, `money` or `day`, `status` and `body` (JSON) are those of that answer. The other call's exception
    is not raised again: it belongs to that call, with its response, its request and its traceback.
    """

    def __init__(self, *, key: object, cause: str, status: int | None, body: bytes) -> None:
        self.cause = cause
        self.status = status
        self.body = body
        said = body.decode("utf-8", "replace")
        super().__init__(f"{key}: not sent: the key is refused ({cause}, status {status}): {said}", key=key)


class PermitMisuse(Error, RuntimeError):
    """A permit was settled twice or by a registry that did not give it."""


class StoreError(Error):
    """The store could not do it. Where it is `retryable` the database is away or busy: the same call may succeed."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message)


class LeaseLost(StoreError):
    """The claim on `experiment_id` is not the newest any more: stop, and write nothing."""

    def __init__(self, experiment_id: int) -> None:
        self.experiment_id = experiment_id
        super().__init__(f"experiment {experiment_id} was claimed by somebody else")


class SchemaMismatch(StoreError):
    """The database has the schema `found`, and this tidegate knows those up to `expected`."""

    def __init__(self, *, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(
            f"the database has schema {found}, this tidegate knows those up to {expected}: "
            "it was made by a newer one (pip install --upgrade tidegate)"
        )


class DatabaseFileLost(StoreError):
    """The SQLite file at `path` is not the one that was opened: `what` became of it.

    `saved` is the file that has a copy of all that it held. Where there is none, `failure` says why, once it was tried.
    """

    def __init__(self, path: object, what: str, *, saved: Path | None = None, failure: str | None = None) -> None:
        self.path = path
        self.what = what
        self.saved = saved
        self.failure = failure
        said = f"the database file {path} {what} while it was in use"
        if saved is not None:
            said += f"; everything that it held is saved in {saved}"
        elif failure is not None:
            said += f"; no copy could be saved ({failure}): what was stored is lost when this process ends"
        super().__init__(said)


class DuplicateRow(StoreError):
    """Two rows of one dataset are called `name`: at `first_line` and at `line`, where their source has lines."""

    def __init__(self, *, name: str, first_line: int | None, line: int | None) -> None:
        self.name = name
        self.first_line = first_line
        self.line = line
        where = "" if first_line is None or line is None else f": lines {first_line} and {line}"
        super().__init__(f"two rows have the id {name!r}{where}")


class DatasetChanged(StoreError):
    """The row `ordinal` (at `line` of its source) was stored before, with another name or content.

    Where it is `gone`, the source ends before it now.
    """

    def __init__(self, *, ordinal: int, line: int | None = None, gone: bool = False) -> None:
        self.ordinal = ordinal
        self.line = line
        self.gone = gone
        where = f"row {ordinal}" if line is None else f"line {line}"
        what = "is no longer there" if gone else "is another row now"
        super().__init__(f"the dataset has changed since it was read first: {where} {what}")


class NotStorable(StoreError, ValueError):
    """A value that JSON has no word for."""


def require(holds: bool, field: str, value: object, bound: str) -> None:
    """Raises `ConfigurationError` unless it `holds`."""
    if not holds:
        raise ConfigurationError(field, value, bound)


class UnusableAnswer(Error):
    """An answer that came and cannot be used, where another one may be: a runner tries what raises it again."""


class ExperimentError(Error):
    """An experiment that cannot be run; `experiment` is what it was asked for by."""

    def __init__(self, message: str, *, experiment: object) -> None:
        self.experiment = experiment
        super().__init__(message)


class CannotLoad(ExperimentError, ImportError):
    """Code that cannot be had: `source` says where it was looked for, `reason` what is wrong there."""

    def __init__(self, source: str, reason: str, *, experiment: object = None) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}", experiment=source if experiment is None else experiment)


class CannotRead(ExperimentError):
    """A dataset that cannot be read: `source` says which, `reason` why."""

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"the dataset {source}: {reason}", experiment=source)


class UnknownExperiment(ExperimentError, LookupError):
    """No experiment has that name or number."""

    def __init__(self, name: object) -> None:
        super().__init__(f"there is no experiment {name!r} in this database", experiment=name)


class ClaimedElsewhere(ExperimentError):
    """The replica `replica` runs it; it last said so `quiet` seconds ago.

    `owner` says in words which process that is, where it is known.
    """

    def __init__(self, name: object, replica: str | None, quiet: float | None, owner: str = "") -> None:
        self.replica = replica
        self.quiet = quiet
        self.owner = owner
        by = owner or f"replica {replica or 'unknown'}"
        said = f", heard of {quiet:.0f} s ago" if quiet is not None else ""
        super().__init__(
            f"the experiment {name!r} is run by {by}{said}; attach with `tidegate experiment show {name}`",
            experiment=name,
        )


class StoppedElsewhere(ExperimentError):
    """A user stopped it while its start waited for the replica that ran it; `by` says who, where it is known."""

    def __init__(self, name: object, by: str = "") -> None:
        self.by = by
        super().__init__(f"the experiment {name!r} was stopped{by and f' by {by}'}; a resume goes on", experiment=name)


class CoolingDown(ExperimentError):
    """It was stopped or resumed a moment ago, and is left alone for some seconds."""

    def __init__(self, name: object) -> None:
        said = f"the experiment {name!r} was stopped or resumed a moment ago: try again in 5 s"
        super().__init__(said, experiment=name)
