"""One line in the log for each time that a provider rejects a key: which key, why, how many requests that spared."""

from __future__ import annotations

import atexit
import logging
from typing import Protocol
from weakref import WeakSet

from tidegate.core.rejection import KeyRejection
from tidegate.core.vocabulary import Key

logger = logging.getLogger("tidegate")


class Keeper(Protocol):
    """A registry, as far as it is asked for what it has left to say."""

    def rejections(self) -> list[tuple[Key, KeyRejection]]:
        """The keys that the provider rejects now."""
        ...


_keepers: WeakSet[Keeper] = WeakSet()


def log_rest() -> None:
    """Write the lines of the rejections that last until the end of the process."""
    for keeper in list(_keepers):
        _keepers.discard(keeper)
        for key, rejection in keeper.rejections():
            log_end(key, rejection, "it was still so at the end")


atexit.register(log_rest)


def log_begin(keeper: Keeper, key: Key, rejection: KeyRejection) -> None:
    """Say that a key is rejected; the line with the numbers follows when that ends, or with the process."""
    _keepers.add(keeper)
    logger.info("%s rejected: %s; its calls get that answer, and one a second asks again", key, _reason(rejection))


def log_end(key: Key, rejection: KeyRejection, what: str) -> None:
    """Write the line of a rejection that is over."""
    counted = f"{rejection.replayed} call{'' if rejection.replayed == 1 else 's'}"
    logger.warning("%s rejected: %s; %s answered without a request; %s", key, _reason(rejection), counted, what)


def _reason(rejection: KeyRejection) -> str:
    outcome = rejection.outcome
    return f"{outcome.cause.value} (status {outcome.status}, {outcome.row})"
