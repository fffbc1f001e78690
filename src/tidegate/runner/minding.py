"""Tasks of the runner's own: one that ends otherwise than it should is never just gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

logger = logging.getLogger("tidegate")


class Minded:
    """A task of which `died` is told where it raises, or is cancelled by anybody but `stop`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, None],
        what: str,
        died: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._what = what
        self._died = died
        self._stopped = False
        self.task = loop.create_task(work)
        self.task.add_done_callback(self._ended)

    async def stop(self, patience: float) -> None:
        """Cancels it and waits for its end, for `patience` seconds at the most; repeating it does nothing."""
        self._stopped = True
        self.task.cancel()
        await within(patience, self.task, self._what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = RuntimeError(f"{self._what} was cancelled") if task.cancelled() else task.exception()
        if error is None or self._stopped or _closing(self._loop):
            return
        logger.error("%s ended with an error", self._what, exc_info=error)
        self._died(error)


async def within(patience: float, work: Awaitable[object], what: str) -> None:
    """Waits for `work` for so many seconds, and leaves it behind where it takes longer; what it raises is logged."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=patience)
    if not done:
        task.cancel()
        logger.warning("%s does not end: it is left behind", what)
    elif not task.cancelled() and task.exception() is not None:
        logger.error("%s ended with an error", what, exc_info=task.exception())


def _closing(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether everything in the loop is being cancelled, as `asyncio.run` does when its main function has ended."""
    return all(task.cancelling() for task in asyncio.all_tasks(loop))
