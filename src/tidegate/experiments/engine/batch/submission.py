"""Submission of a stored batch: exactly one of it is at the provider, whatever happens to processes and requests.

Theory of operation. The name of a batch's file is stored directly before the request that creates the batch. So an
intent with one may be at the provider. It is searched there before its rows are submitted, as after a request without
a clear answer. An intent without one was never sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from tidegate.core.backoff import half_jitter
from tidegate.core.values import INFINITY, NextStep
from tidegate.errors import ConfigurationError, Error
from tidegate.experiments.engine.background import redacted, retry_while_unavailable
from tidegate.experiments.engine.batch import BatchTask, ItemSet, custom_id
from tidegate.experiments.engine.batch.apis import (
    INLINE,
    UNDECIDED,
    ProviderBatchApi,
    is_refusal,
    was_sent,
)
from tidegate.experiments.engine.queues import Place, copied
from tidegate.experiments.engine.run import ExperimentRun
from tidegate.experiments.engine.run_state import RunnerContext
from tidegate.experiments.storage import BatchRecord, BatchState, PendingTask
from tidegate.pool.failure_class import classify

logger = logging.getLogger("tidegate")

T = TypeVar("T")


class BatchError(Error):
    """Error for a batch that cannot go on; its rows stay open.

    One that the provider does not know any more, or not under these credentials, is `gone`. The next run that finds it
    gone again gives it up, because a user who has read this resumes it.
    """

    def __init__(self, number: int, reason: str, *, gone: bool = False) -> None:
        self.number = number
        self.gone = gone
        super().__init__(f"batch {number} failed: {reason}")


POLL_SECONDS = 60.0
"""Longest time between two looks at a batch. Chosen: batches take minutes to a day."""

GONE = "not at the provider (404)"
"""Words of a stored batch that the provider did not know at the last look."""


def gone(number: int, name: str) -> BatchError:
    text = f"{name} is {GONE}: deleted, too old, or of another account; if the account is right, the next resume"
    return BatchError(number, f"{text} gives the batch up and pays for its rows again", gone=True)


@dataclass(eq=False)
class RequestRetries:
    """Retries of one request to the provider for a batch; `what` names the run's batches in the log."""

    _shared: RunnerContext
    _what: str
    _record: BatchRecord
    _failures: int = 0
    _seconds: float = 0.0

    async def asked(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the request, repeated while its failure may pass."""
        while True:
            asked = self._shared.loop.time()
            try:
                return await call()
            except Exception as error:
                await asyncio.sleep(self.wait_after(error, self._shared.loop.time() - asked))

    def wait_after(self, error: Exception, seconds: float) -> float:
        """Return the seconds before the next try of a request that failed after `seconds`; raise `BatchError` if none.

        Only failures and the waits after them count as outage: a batch may wait for others, or be searched for hours.
        """
        record, max_outage = self._record, self._shared.settings.max_outage
        found = classify(error, None, None, False)
        if getattr(error, "status_code", None) == 404 and record.state is not BatchState.INTENT:
            raise gone(record.number, record.provider_id or "it") from error
        if isinstance(error, ConfigurationError) or found.next_step is NextStep.PERMANENT:
            raise BatchError(record.number, redacted(error) or type(error).__name__) from error
        self._failures += 1
        self._seconds += seconds
        if max_outage is not None and self._seconds > max_outage:
            raise BatchError(record.number, f"no answer for {max_outage:g} s: {redacted(error)}") from error
        if self._failures == 1:
            logger.warning(
                "%s: request for batch %d failed: %s; it is repeated", self._what, record.number, redacted(error)
            )
        wait = max(half_jitter(self._failures, self._shared.gates.draw()), found.retry_after or 0.0)
        self._seconds += wait
        return wait


SEARCH_SECONDS = 600.0
"""Seconds in which Anthropic may still act on a batch whose creation got no answer. Lowering it may pay for rows twice.
Source: the timeout of Anthropic's SDK, 600 s."""

SETTLE_SECONDS = 10.0
"""Seconds before a batch is searched at the provider. Chosen: a list of batches shows a new one by then."""

VOID = "its file is deleted, so that no late request has an effect"
"""Status of a stored batch from before this deletion until it is submitted."""

REFUSED_STATUSES = (429, 529)
"""Statuses of a creation that has no effect beside those of `is_refusal`. Source: Anthropic's errors, `overloaded`."""

FILE_SECONDS = 0.5
"""Seconds between two looks at a file that the provider has not read yet. Chosen: Azure takes some seconds for a
file."""

MAX_FILE_WAIT_SECONDS = 600.0
"""Seconds after which a batch is created though the provider has not said that it has read the file. Chosen: far above
the time that a file of 200 MB takes."""


@dataclass(eq=False)
class BatchPart:
    """Part of a run whose rows are in batches; `what` names these in the log.

    `save` stores a record, and `pending` yields the rows of a set that have no good answer yet.
    """

    _run: ExperimentRun
    _api: ProviderBatchApi
    _task: BatchTask
    _what: str
    _save: Callable[[BatchRecord], Awaitable[BatchRecord]]
    _pending: Callable[[ItemSet], AsyncIterator[PendingTask]]

    def __post_init__(self) -> None:
        self._shared = self._run.shared
        self._name = self._run.experiment.name


@dataclass(eq=False)
class BatchSubmission(BatchPart):
    """Submission of the batches of a run, one request at a time."""

    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def submit(self, record: BatchRecord) -> BatchRecord | None:
        """Return the batch when it is at the provider; None if no row of it is open."""
        search, retries, loop = record.file_id is not None, self._retries(record), self._shared.loop
        lines: list[bytes] = []
        file_id = None
        while True:
            if search:
                found = await self._search(record)
                if found is not None:
                    return await self._save(replace(record, state=BatchState.SUBMITTED, provider_id=found, detail=None))
            async with self._sending:
                if file_id is None or search:
                    lines = await self._lines(record)
                    if not lines:
                        return None
                    file_id = await self._uploaded(record, lines)
                # This checks the claim again, and marks the intent, directly before the request that is paid for.
                record = await self._save(replace(record, file_id=file_id, count=len(lines), detail=None))
                asked = loop.time()
                try:
                    made = await self._api.create(record, self._name, lines)
                except Exception as error:
                    wait = retries.wait_after(error, loop.time() - asked)
                    status = getattr(error, "status_code", None)
                    search = was_sent(error) and not (is_refusal(error) or status in REFUSED_STATUSES)
                else:
                    return await self._save(replace(record, state=BatchState.SUBMITTED, provider_id=made, detail=None))
            await asyncio.sleep(wait)

    def _retries(self, record: BatchRecord) -> RequestRetries:
        return RequestRetries(self._shared, self._what, record)

    async def _uploaded(self, record: BatchRecord, lines: list[bytes]) -> str:
        """Return the provider's name of a batch's requests, when it has read them."""
        file_id, read = await self._retries(record).asked(partial(self._api.upload, f"tidegate-{record.tag}", lines))
        loop = self._shared.loop
        until = loop.time() + MAX_FILE_WAIT_SECONDS
        while not read and loop.time() < until:
            await asyncio.sleep(FILE_SECONDS)
            read = await self._retries(record).asked(partial(self._api.has_read, file_id))
        return file_id

    async def _search(self, record: BatchRecord) -> str | None:
        """Return the provider's name of a batch that a request without an answer may have created, None without one.

        The provider may act on the request later than it is searched. So the request is made void where that is
        possible, else the search lasts for `SEARCH_SECONDS`.
        """
        loop = self._shared.loop
        until = loop.time() + SEARCH_SECONDS
        await asyncio.sleep(SETTLE_SECONDS)
        found = await self._found_batch(record)
        if found is None and await self._is_void(record):
            await asyncio.sleep(SETTLE_SECONDS)
            return await self._found_batch(record)
        if found is None:
            text = "%s: batch %d not found after a request without an answer; it is searched for %g s"
            logger.warning(text, self._what, record.number, SEARCH_SECONDS)
        looked = -INFINITY
        while found is None and looked < until:
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - loop.time())))
            looked = loop.time()
            found = await self._found_batch(record)
        return found

    async def _is_void(self, record: BatchRecord) -> bool:
        """Return whether a creation of this record has no effect any more.

        Raise a `BatchError` that is `gone` if the provider does not know its file. It may be the wrong account, so the
        next run goes on.
        """
        if record.file_id == INLINE:
            return False
        said = record.detail or ""
        # After this mark, a file that the provider does not know was deleted here.
        await self._save(replace(record, detail=VOID))
        retries, loop = self._retries(record), self._shared.loop
        for _ in range(self._shared.settings.attempts):
            asked = loop.time()
            try:
                revoked = await self._api.revoke(record)
            except Exception as error:
                await asyncio.sleep(retries.wait_after(error, loop.time() - asked))
                continue
            if revoked is None and not (VOID in said or GONE in said):
                raise gone(record.number, record.file_id or "its file")
            if revoked is not False:
                return True
            break
        await self._save(record)
        return False

    async def _found_batch(self, record: BatchRecord) -> str | None:
        """Return the provider's name of a record's batch, None without one, when that can be told."""
        expected = {custom_id(self._name, record.tag, place) for place in ItemSet(record.items)}
        since = record.created_at or datetime.now(UTC)
        while True:
            # Read each time: this run goes on to create batches, and waits for none of them here.
            known = await retry_while_unavailable(
                partial(self._shared.store.batches.provider_ids, record.provider), self._what
            )
            find = partial(self._api.find, record, since, known, expected.__contains__)
            found = await self._retries(record).asked(find)
            if found != UNDECIDED:
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def _lines(self, record: BatchRecord) -> list[bytes]:
        lines = []
        async for task in self._pending(ItemSet(record.items)):
            place = Place(task.ordinal, task.repetition)
            try:
                body = self._task.body(copied(task.row))
                lines.append(self._api.line(custom_id(self._name, record.tag, place), body))
            except Exception as error:
                # Its request was built for the plan. Without one, it goes back with the batch.
                logger.warning("%s: row %d left out: %s", self._what, place.ordinal, redacted(error))
        return lines
