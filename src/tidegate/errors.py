"""The errors of tidegate's own calls, as one small tree.

    Error
    ├ ConfigurationError (ValueError)     a setting or table row is wrong: names the field, the value and the bound
    ├ NotAdmitted                         a call was not let through
    │ └ DeadlineExceeded (TimeoutError)   it would have waited past its deadline
    └ PermitMisuse (RuntimeError)         a permit was settled by somebody who does not hold it

None of these is ever raised below an SDK: there the answer is a response of the client's own HTTP library. They are
raised by `registry.execute`, `registry.aexecute` and by constructors.
"""

from __future__ import annotations


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
    """The call's deadline came first. `waited` and `max_wait` are in seconds, `gate` names what was closed."""

    def __init__(self, *, key: object, waited: float, max_wait: float, gate: str) -> None:
        self.waited = waited
        self.max_wait = max_wait
        self.gate = gate
        super().__init__(f"{key}: not admitted after {waited:.1f} s (max_wait {max_wait:g} s): {gate}", key=key)


class PermitMisuse(Error, RuntimeError):
    """A permit was settled twice or by a registry that did not give it."""


def require(holds: bool, field: str, value: object, bound: str) -> None:
    """Raises `ConfigurationError` unless it `holds`."""
    if not holds:
        raise ConfigurationError(field, value, bound)
