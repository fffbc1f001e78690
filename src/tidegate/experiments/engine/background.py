"""Background tasks of the runner, and retries while the database is unavailable.

A background task that ends unexpectedly is always reported.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import tidegate.admission.log_redaction  # noqa: F401  # its filter precedes every record
from tidegate.admission.redaction import clean
from tidegate.core.backoff import half_jitter_of
from tidegate.core.safe_text import printable
from tidegate.errors import Error, StoreError

logger = logging.getLogger("tidegate")


REPORT_DELAY_SECONDS = 0.05
"""Seconds between an unexpected cancellation and its report. Chosen: a loop that is being closed is gone by then."""

RESTART_SECONDS = 1.0
"""Seconds after which a task that ended unexpectedly starts again. Chosen: one that always ends fills no log."""


class BackgroundTask:
    """Task of `work` that calls `on_exit` if it raises, or if any caller other than `stop` cancels it.

    Without `on_exit` it then starts again. `what` names the task in the log, and `then` says there what follows.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, None]],
        what: str,
        on_exit: Callable[[BaseException], object] | None = None,
        then: str = "it starts again",
    ) -> None:
        self._loop = loop
        self._work = work
        self._what = what
        self._then = then
        self._on_exit = on_exit
        self._stopped = False
        self._start()

    def _start(self) -> None:
        if self._stopped:
            return
        self.task = self._loop.create_task(self._work())
        self.task.add_done_callback(self._ended)

    async def stop(self, patience: float) -> None:
        """Cancel the task and wait at most `patience` seconds for its end; a repeated call has no further effect."""
        self._stopped = True
        self.task.cancel()
        await stop_within(patience, self.task, self._what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._stopped:
            return
        if task.cancelled():
            # `asyncio.run` cancels all tasks when its main function has ended; nothing must start again then.
            self._loop.call_later(
                REPORT_DELAY_SECONDS, self._report, RuntimeError(f"{self._what} was cancelled by other code")
            )
        elif (error := task.exception()) is not None:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        if not self._stopped:
            logger.error("%s stopped: %s; %s", self._what, redacted(error), self._then, exc_info=error)
            if self._on_exit is None:
                self._loop.call_later(RESTART_SECONDS, self._start)
            else:
                self._on_exit(error)


async def stop_within(patience: float, work: Awaitable[object], what: str) -> None:
    """Wait `patience` seconds for `work`, then cancel and abandon it; log an error that it raises."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=patience)
    if not done:
        task.cancel()
        logger.warning("%s not ended: it takes longer than %g s; the runner no longer waits for it", what, patience)
    elif not task.cancelled() and task.exception() is not None:
        error = task.exception()
        logger.error("%s failed: %s was raised; it is not repeated", what, type(error).__name__, exc_info=error)


T = TypeVar("T")

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0
"""Seconds between two tries: `FIRST_RETRY_SECONDS` and `MAX_RETRY_SECONDS` of a doubling backoff. Chosen: 5 s is soon
enough after a database restart."""


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], what: str) -> T:
    """Return the result of `call()`; repeat the call while the store's error is retryable.

    `what` names the call in the log.
    """
    failures = 0
    while True:
        try:
            result = await call()
        except StoreError as error:
            if not error.retryable:
                raise
            failures += 1
            if failures == 1:
                logger.warning("%s delayed: %s; retrying every %g s or sooner", what, error, MAX_RETRY_SECONDS)
            await asyncio.sleep(half_jitter_of(failures, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, random.random()))
        else:
            if failures:
                logger.info("%s done: the database answers again (failed tries: %d)", what, failures)
            return result


async def repeated(
    work: Callable[[], Awaitable[object]], what: str, every: Callable[[], float], again: Callable[[], float]
) -> None:
    """Repeat `work` after `every` seconds, or after `again` seconds where the database fails; no error ends it."""
    while True:
        wait = every()
        try:
            await work()
        except StoreError as error:
            wait = again()
            logger.warning("%s failed: %s; retrying in %.1f s", what, error, wait)
        except Exception as error:
            logger.exception("%s failed: %s was raised; retrying in %.1f s", what, type(error).__name__, wait)
        await asyncio.sleep(wait)


MAX_ERROR_CHARACTERS = 500
"""Maximum characters of a stored error. Chosen: enough for a reason in a terminal, too few for a prompt."""

OWN_PATH = str(Path(__file__).parents[2])
LIBRARIES = (OWN_PATH, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Path prefixes of code that is not the user's."""


def redacted(error: BaseException) -> str:
    """Return the exception's type and text as one line, without credentials, at most `MAX_ERROR_CHARACTERS` characters.

    It ends with the last line of user code in the traceback, `(my_eval.py:12)`. An error of tidegate is a full
    sentence, so its type is omitted.
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    told = text if text and isinstance(error, Error) else f"{name}: {text}" if text else name
    where = _where(error)
    return clean(told, MAX_ERROR_CHARACTERS - len(where)) + where


def _where(error: BaseException) -> str:
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith(("<", *LIBRARIES)):
            found = f" ({printable(Path(path).name)}:{line})"
    return found
