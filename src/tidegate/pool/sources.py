"""Sources of a pool's rows: their end, and a thread that reads one of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any, Protocol

logger = logging.getLogger("tidegate")


class Puller(Protocol):
    """Scheduler that a source is pulled for."""

    context: Any
    exhausted: bool

    def wanted(self) -> int: ...

    @property
    def pulls(self) -> bool: ...

    def pull(self, iterator: Any, context: Any) -> None: ...

    def fail_source(self, error: BaseException) -> None:
        """Record the exception that ended the source."""
        ...


def close_source(rows: object) -> None:
    """Close a generator, or the results of another pool; any other iterator stays as it is."""
    if (hasattr(rows, "throw") or hasattr(rows, "rows")) and not getattr(rows, "gi_running", False):
        try:
            rows.close()  # type: ignore[attr-defined]
        except Exception as error:
            _log_failure(error)


async def aclose_source(rows: object) -> None:
    if hasattr(rows, "athrow") or hasattr(rows, "rows"):
        try:
            await rows.aclose()  # type: ignore[attr-defined]
        except Exception as error:
            _log_failure(error)


def _log_failure(error: Exception) -> None:
    logger.warning("source not closed: %s was raised; it is left as it is", type(error).__name__, exc_info=error)


class SourceReader:
    """Thread that pulls a source, always the same one, so that a source that blocks does not block the consumer.

    A deadline needs it: nothing can interrupt `next` in the consumer's own thread.
    """

    def __init__(self, scheduler: Puller, rows: Iterable[Any]) -> None:
        self._scheduler = scheduler
        self._rows = rows
        self._changed = threading.Event()

    def start(self) -> None:
        context = self._scheduler.context.copy()
        threading.Thread(target=context.run, args=(self._run,), name="tidegate source", daemon=True).start()

    def notify(self) -> None:
        """Look again whether a row is wanted; callable in any thread."""
        self._changed.set()

    def _run(self) -> None:
        scheduler = self._scheduler
        try:
            iterator = iter(self._rows)
            while scheduler.pulls:
                self._changed.clear()
                if scheduler.wanted() > 0:
                    scheduler.pull(iterator, scheduler.context)
                elif scheduler.pulls:
                    self._changed.wait()
            if not scheduler.exhausted:
                close_source(iterator)
        except BaseException as error:
            scheduler.fail_source(error)
