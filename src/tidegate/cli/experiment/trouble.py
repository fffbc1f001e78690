"""The recent failures of attempts, by key: the reason for an open breaker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import Event, SlotReleased
from tidegate.core.values import Cause, Kind


class Trouble:
    """Listens to a registry; `of(key)` says what the last failure of a key was, by the key as people see it."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    @contextlib.contextmanager
    def heard(self, registry: RateLimitRegistry) -> Iterator[None]:
        """Listens for as long as the block lasts."""
        unsubscribe = registry.subscribe(self.listen)
        try:
            yield
        finally:
            unsubscribe()

    def listen(self, event: Event) -> None:
        """Takes in an event, from any thread."""
        if isinstance(event, SlotReleased) and event.kind is Kind.TRANSIENT:
            self._last[str(event.key)] = _failure(event)

    def of(self, key: str) -> str:
        """Return what failed there last, in a few words; empty where nothing did."""
        return self._last.get(key, "")


def _failure(event: SlotReleased) -> str:
    if event.status is not None:
        return f"status {event.status}"
    return "no connection" if event.cause is Cause.OUTAGE else "no answer in time"
