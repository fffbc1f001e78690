"""Log records about keys that their provider rejects: one at the beginning, and a warning with numbers at the end."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from tidegate.core.rejection import KeyRejection
from tidegate.core.values import Key

logger = logging.getLogger("tidegate")


class RejectionSource(Protocol):
    """The part of a registry that the log at the end of the process reads."""

    def rejections(self) -> list[tuple[Key, KeyRejection]]:
        """Return the keys that the provider rejects now."""
        ...


_sources: WeakSet[RejectionSource] = WeakSet()


def log_rest() -> None:
    """Log the rejections that last until the end of the process."""
    for source in list(_sources):
        _sources.discard(source)
        for key, rejection in source.rejections():
            log_end(key, rejection, "still rejected at the end of the process", logging.WARNING)


atexit.register(log_rest)


def log_begin(source: RejectionSource, key: Key, rejection: KeyRejection) -> None:
    """Log that a key is rejected; `log_end` follows when that ends, or with the process."""
    _sources.add(source)
    then = "calls are sent and get the provider's answer"
    if rejection.reset_at is not None:
        then = "calls with enough time wait for the provider's reset"
    logger.info("%s rejected: %s; %s", key, _reason(rejection), then)


def log_end(key: Key, rejection: KeyRejection, what: str, level: int = logging.INFO) -> None:
    """Log that a rejection is over, with its numbers."""
    counted = f"{rejection.count} attempt{'' if rejection.count == 1 else 's'}"
    logger.log(level, "%s was rejected: %s; %s rejected; %s", key, _reason(rejection), counted, what)


def _reason(rejection: KeyRejection) -> str:
    outcome = rejection.outcome
    return f"{outcome.cause.value} (status {outcome.status}, {outcome.row})"


def write_record(record: Callable[[], object]) -> None:
    """Write a record; its failure is no failure of the call that happens to write it."""
    try:
        record()
    except Exception as error:
        with suppress(Exception):
            logger.exception("record not written: %s was raised; the call goes on", type(error).__name__)
