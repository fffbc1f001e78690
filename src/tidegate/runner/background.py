"""Tasks of the runner's own: one that ends otherwise than it should is never just gone.

Waits for a database that is away: what was to be done is done when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tidegate.core.backoff import half_jitter
from tidegate.errors import StoreError

logger = logging.getLogger("tidegate")


MEANWHILE = 0.05
"""Seconds in which a loop that is being closed is gone."""


class BackgroundTask:
    """A task of which `on_exit` is told where it raises, or is cancelled by anybody but `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, None],
        what: str,
        on_exit: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._what = what
        self._on_exit = on_exit
        self._stopped = False
        self.task = loop.create_task(work)
        self.task.add_done_callback(self._ended)

    async def stop(self, patience: float) -> None:
        """Cancels it and waits for its end, for `patience` seconds at the most; repeating it does nothing."""
        self._stopped = True
        self.task.cancel()
        await stop_within(patience, self.task, self._what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._stopped:
            return
        if task.cancelled():
            # `asyncio.run` cancels all there is when its main function has ended: then nothing is to be begun anew.
            self._loop.call_later(MEANWHILE, self._tell, RuntimeError(f"{self._what} was cancelled"))
        elif (error := task.exception()) is not None:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if not self._stopped:
            logger.error("%s ended with an error", self._what, exc_info=error)
            self._on_exit(error)


async def stop_within(patience: float, work: Awaitable[object], what: str) -> None:
    """Waits for `work` for so many seconds, and leaves it behind where it takes longer; what it raises is logged."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=patience)
    if not done:
        task.cancel()
        logger.warning("%s does not end: it is left behind", what)
    elif not task.cancelled() and task.exception() is not None:
        logger.error("%s ended with an error", what, exc_info=task.exception())


T = TypeVar("T")

BASE, CAP = 0.1, 5.0
"""Seconds between two tries, doubling: 5 s is soon enough after a restart."""


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Return what `call()` returns, repeated while the store says that the same call may be made again."""
    failures = 0
    while True:
        try:
            result = await call()
        except StoreError as error:
            if not error.retryable:
                raise
            failures += 1
            if failures == 1:
                logger.warning("%s waits for the database: %s", what, error)
            await asyncio.sleep(half_jitter(failures, BASE, CAP, random.random()))
        else:
            if failures:
                logger.info("%s goes on: the database is back", what)
            return result
