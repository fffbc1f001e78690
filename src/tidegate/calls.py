"""What `registry.execute` and `aexecute` make of any callable: its cost, and what its result or exception means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tidegate import providers
from tidegate.classification import classify_error
from tidegate.core.dialogue import Ended, Ending, Policy, Sent
from tidegate.core.estimate import Estimate
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Cause, Cost, Key, Kind, Outcome
from tidegate.errors import DeadlineExceeded
from tidegate.line import UNPRICED
from tidegate.nesting import Cell
from tidegate.registries import RateLimitRegistry
from tidegate.turn import Turn


class Call(Turn):
    """One call of a user's function, blocking or not, under a key; its cost is what the caller expects."""

    __slots__ = ("expected", "function", "get_headers", "get_retry_after", "is_rate_limited", "provider")

    def __init__(
        self,
        registry: RateLimitRegistry,
        key: Key | str,
        function: Callable[[], Any],
        cost: Cost | None,
        get_headers: Callable[[Any], Mapping[str, str] | None] | None,
        is_rate_limited: Callable[[Any, Exception | None], bool] | None,
        get_retry_after: Callable[[Any, Exception | None], float | None] | None,
        max_wait: float | None,
        priority: int,
    ) -> None:
        if isinstance(key, str):
            key = Key(provider="custom", base_url=key)
        self.function = function
        self.expected = cost if cost is not None else UNPRICED
        self.get_headers = get_headers
        self.is_rate_limited = is_rate_limited
        self.get_retry_after = get_retry_after
        self.provider = providers.named(key.provider) or providers.COMPATIBLE
        given = registry.settings
        max_wait = given.max_wait if max_wait is None else max_wait
        policy = _policy(max_wait, given.transient_attempts, given.backoff_base, given.backoff_cap)
        super().__init__(registry, key, policy, self.provider.default_window, priority)

    def price(self, estimate: Estimate) -> Cost:
        """What the caller expects."""
        return self.expected

    def send(self, permit: Permit) -> Sent:
        """Calls the function."""
        try:
            with Cell():
                result = self.function()
        except Exception as error:
            return Sent(self.judge(None, error), error=error)
        return Sent(self.judge(result, None), response=result)

    async def asend(self, permit: Permit) -> Sent:
        """Calls the function and awaits its result."""
        try:
            with Cell():
                result = await self.function()
        except Exception as error:
            return Sent(self.judge(None, error), error=error)
        return Sent(self.judge(result, None), response=result)

    def finish(self, ended: Ended) -> Any:
        """The function's result, its exception, or `DeadlineExceeded` where it was never called."""
        if ended.ending is Ending.EXPIRED or ended.sent is None:
            raise DeadlineExceeded(key=self.key, waited=ended.waited, max_wait=self.policy.max_wait, gate=ended.gate)
        if ended.sent.error is not None:
            raise ended.sent.error
        return ended.sent.response

    def judge(self, result: Any, error: Exception | None) -> Outcome:
        """What a result or an exception means; the caller's own predicates come first."""
        if error is not None:
            outcome = self._judge_error(error)
        else:
            # There may have been no HTTP at all: the status only says how to read the headers.
            outcome = self._judge_headers(200, self._headers(result))._replace(status=None)
        if self.is_rate_limited is not None:
            if self.is_rate_limited(result, error):
                outcome = Outcome(Kind.RATE_LIMIT, Cause.RATE, outcome.retry_after, outcome.readings, row="caller")
            elif outcome.kind is Kind.RATE_LIMIT:
                outcome = Outcome(Kind.PERMANENT, Cause.INVALID, None, outcome.readings, row="caller")
        if self.get_retry_after is not None and outcome.kind in (Kind.RATE_LIMIT, Kind.OVERLOADED):
            hint = self.get_retry_after(result, error)
            usable = hint is not None and 0.0 <= hint < 1e10
            outcome = Outcome(outcome.kind, outcome.cause, hint if usable else None, outcome.readings, row=outcome.row)
        return outcome

    def _headers(self, result: Any) -> Mapping[str, str]:
        headers = self.get_headers(result) if self.get_headers is not None else None
        return headers if headers is not None else {}

    def _judge_headers(self, status: int, headers: Mapping[str, str], body: bytes | None = None) -> Outcome:
        pairs = [(str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
                 for name, value in headers.items()]  # fmt: skip
        return providers.judge(self.provider, status, pairs, body, datetime.now(UTC))

    def _judge_error(self, error: Exception) -> Outcome:
        return classify_error(error, datetime.now(UTC), self.provider).outcome


@lru_cache(maxsize=64)
def _policy(max_wait: float, attempts: int, backoff_base: float, backoff_cap: float) -> Policy:
    return Policy(max_wait, attempts, True, backoff_base, backoff_cap)
