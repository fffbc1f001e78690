"""Requests to a provider's Batch API: they are repeated while their failure may pass, and else end their batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.core.backoff import half_jitter
from tidegate.core.next_step import NextStep
from tidegate.errors import ConfigurationError, Error
from tidegate.experiments.engine.context import RunnerContext
from tidegate.experiments.engine.redaction import redacted
from tidegate.experiments.storage import BatchRecord, BatchState
from tidegate.pool.failure_class import classify

logger = logging.getLogger("tidegate")

T = TypeVar("T")


class BatchError(Error):
    """Error for a batch that cannot go on; its rows stay open."""

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        super().__init__(f"batch {number} failed: {reason}")


POLL_SECONDS = 60.0
"""Longest time between two looks at a batch. Raising it notices an end later. Chosen: batches take minutes to a day."""

GONE = "not at the provider (404)"
"""Words of a stored batch that the provider did not know at the last look."""


class BatchGone(BatchError):
    """Error for a batch that the provider does not know any more, or not under these credentials.

    The next run that finds it gone again gives it up, because a user who has read this resumes it.
    """

    def __init__(self, number: int, name: str) -> None:
        text = f"{name} is {GONE}: deleted, too old, or of another account; if the account is right, the next resume"
        super().__init__(number, f"{text} gives the batch up and pays for its rows again")


class RequestFailures:
    """Failures of one request to the provider, and the seconds that they and the waits after them took."""

    def __init__(self) -> None:
        self.failures = 0
        self.seconds = 0.0


class ProviderRequests:
    """Requests of one run; `what` names its batches in the log."""

    def __init__(self, shared: RunnerContext, what: str) -> None:
        self._shared = shared
        self._what = what

    async def asked(self, record: BatchRecord, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request to the provider, repeated while its failure may pass."""
        outage, loop = RequestFailures(), self._shared.loop
        while True:
            asked = loop.time()
            try:
                return await call()
            except Exception as error:
                await asyncio.sleep(self.wait_after(record, error, outage, loop.time() - asked))

    def wait_after(self, record: BatchRecord, error: Exception, outage: RequestFailures, seconds: float) -> float:
        """Return the seconds before the next try of a request that failed after `seconds`; raise `BatchError` if none.

        Only failures and the waits after them count as outage: a batch may wait for others, or be searched for hours.
        """
        settings, shared = self._shared.settings, self._shared
        found = classify(error, None, None, False)
        if getattr(error, "status_code", None) == 404 and record.state is not BatchState.INTENT:
            raise BatchGone(record.number, record.provider_id or "it") from error
        if isinstance(error, ConfigurationError) or found.next_step is NextStep.PERMANENT:
            raise BatchError(record.number, redacted(error) or type(error).__name__) from error
        outage.failures += 1
        outage.seconds += seconds
        if settings.max_outage is not None and outage.seconds > settings.max_outage:
            reason = f"no answer for {settings.max_outage:g} s: {redacted(error)}"
            raise BatchError(record.number, reason) from error
        if outage.failures == 1:
            logger.warning(
                "%s: request for batch %d failed: %s; it is repeated", self._what, record.number, redacted(error)
            )
        wait = half_jitter(outage.failures, shared.draw())
        wait = max(wait, found.retry_after or 0.0)
        outage.seconds += wait
        return wait
