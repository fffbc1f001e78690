"""Audit trail: one record of each attempt of the calls that begin inside `with tidegate.audit()`.

Theory of operation. A context variable holds the receivers of the open audits, so a trail gets the attempts of its own
block only: those of its context, of the tasks started in it, and of threads that run in a copy of it. The receivers are
fixed when an attempt begins. A stream that outlives the block is therefore recorded, at its end. While no audit is open
in the process, a call pays one truth test.

No record has a prompt, an answer or a credential. Costs follow the prices of the provider tables and those that users
add. Work with a budget in US dollars sends no request whose price is unknown: a `PriceGuard` in its context gets the
model of such a call, which is answered without a request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from tidegate.admission import process
from tidegate.core.events import AttemptEnded
from tidegate.core.token_totals import DOLLARS_PER_UNIT
from tidegate.core.values import CAPACITY, OK, Key, Usage
from tidegate.errors import ConfigurationError
from tidegate.providers import price_of

PriceGuard: TypeAlias = Callable[[Key, str], object]
"""Receiver of the key and the model of a call without a price."""

_guard: ContextVar[PriceGuard | None] = ContextVar("tidegate_price_guard", default=None)

price_guard = _guard.get
"""Return the guard of this context, or None where calls without a price are sent."""

require_prices = _guard.set
"""Let calls of this context be answered without a request where their price is unknown; the guard gets them."""


def cost_of(key: Key, usage: Usage) -> int | None:
    """Return the cost of an answer in units of 1e-9 US dollars; None where the price of its model is unknown."""
    price = price_of(key.provider, usage.model, usage.tier)
    return None if price is None else price.nanodollars(usage)


Receiver: TypeAlias = Callable[[AttemptEnded], object]

_receivers: ContextVar[tuple[Receiver, ...]] = ContextVar("tidegate_audits", default=())
open_blocks: set[object] = set()
"""Open audits of the process. While it is empty, no call looks at its context."""

receivers = _receivers.get
"""Return the receivers of the audits that are open in this context."""


@contextmanager
def opened() -> Iterator[None]:
    """Let calls look at their context while the block lasts."""
    block = object()
    open_blocks.add(block)
    try:
        yield
    finally:
        open_blocks.discard(block)


def receive(receiver: Receiver) -> Token[tuple[Receiver, ...]]:
    """Give `receiver` each `AttemptEnded` of the calls that begin in this context, on the thread that ends it.

    It gets none where no audit is `opened`. The token ends it.
    """
    return _receivers.set((*_receivers.get(), receiver))


class AttemptStatus(StrEnum):
    """Result of an attempt; a `capacity_retry` was refused for lack of capacity, and spends none of a call's tries."""

    SUCCESS = "success"
    FAILURE = "failure"
    CAPACITY_RETRY = "capacity_retry"


def attempt_status(ended: AttemptEnded) -> AttemptStatus:
    """Return the status of an ended attempt, by its kind."""
    if ended.kind is OK:
        return AttemptStatus.SUCCESS
    return AttemptStatus.CAPACITY_RETRY if ended.kind in CAPACITY else AttemptStatus.FAILURE


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a call: attempt `index` (from 0) of the call with this number, unique in the process.

    `key` names provider, address, model and the first digits of the credential's digest. It began on `started_on`
    (aware, UTC) after `waited` seconds in the queue, and lasted `latency` seconds, a stream until its end. `kind` and
    `cause` classify the result, and `http_status` is its status, if any. `retry_after` is in seconds. Tokens are None
    where the answer states none. `probe`: it probed a provider that had failed before. `cost` is in US dollars, None
    where the price of the `model` is unknown. `finish_reason` and `request_id` are the provider's.
    """

    call: int
    index: int
    key: str
    started_on: datetime
    waited: float
    latency: float
    status: AttemptStatus
    kind: str
    cause: str
    http_status: int | None
    retry_after: float | None
    input_tokens: int | None
    output_tokens: int | None
    probe: bool
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    model: str | None = None
    finish_reason: str | None = None
    request_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the attempt as JSON; `started_on` in ISO 8601."""
        return {**asdict(self), "started_on": self.started_on.isoformat()}


class Trail:
    """Attempts of one audit, in the order of their ends; `lost` counts those beyond its limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._attempts: list[Attempt] = []
        self._lock = threading.RLock()
        self.lost = 0

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts that have ended so far, also those that a finalizer has ended."""
        for table in process.registered():
            catch_up = getattr(table, "catch_up", None)
            if catch_up is not None:
                catch_up()
        with self._lock:
            return tuple(self._attempts)

    def write(self, path: str | Path) -> None:
        """Write the attempts to a file, one JSON object a line; raise `OSError` where that fails."""
        text = "".join(json.dumps(each.to_json(), ensure_ascii=False) + "\n" for each in self.attempts)
        # A name may have half of a surrogate pair, which UTF-8 cannot write: JSON reads its escape.
        Path(path).write_text(text, "utf-8", "backslashreplace")

    def record(self, ended: AttemptEnded) -> None:
        """Keep an attempt that has ended now."""
        usage = ended.usage
        spent = cost_of(ended.key, usage) if usage is not None else None
        attempt = Attempt(
            ended.call,
            ended.index,
            str(ended.key),
            datetime.now(UTC) - timedelta(seconds=ended.held),
            ended.waited,
            ended.held,
            attempt_status(ended),
            ended.kind.value,
            ended.cause.value,
            ended.status,
            ended.retry_after,
            ended.input_tokens,
            ended.output_tokens,
            ended.probe,
            None if usage is None else usage.cached_tokens,
            None if usage is None else usage.reasoning_tokens,
            None if spent is None else spent * DOLLARS_PER_UNIT,
            (usage.model or None) if usage is not None else None,
            ended.finish_reason,
            ended.request_id,
        )
        with self._lock:
            if len(self._attempts) < self._limit:
                self._attempts.append(attempt)
            else:
                self.lost += 1

    def __repr__(self) -> str:
        return f"Trail({len(self._attempts)} attempts, {self.lost} lost)"


@contextmanager
def audit(limit: int = 100_000) -> Iterator[Trail]:
    """Record each attempt of the calls that begin in this block, in synchronous and in asynchronous code.

    The first `limit` attempts are kept. Blocks nest, and each gets the attempts of those inside it. A thread is covered
    where it runs in a copy of the context (`asyncio.to_thread` does). Raise `ConfigurationError` for a `limit` below 1.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError("limit", limit, "a whole number of at least 1")
    trail = Trail(limit)
    with opened():
        token = receive(trail.record)
        try:
            yield trail
        finally:
            _receivers.reset(token)
