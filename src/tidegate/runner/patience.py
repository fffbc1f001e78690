"""Waits for a database that is away: what was to be done is done when it is back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.core.backoff import half_jitter
from tidegate.errors import StoreError

T = TypeVar("T")
logger = logging.getLogger("tidegate")

BASE, CAP = 0.1, 5.0
"""Seconds between two tries, doubling: 5 s is soon enough after a restart."""


async def patiently(call: Callable[[], Awaitable[T]], what: str) -> T:
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
