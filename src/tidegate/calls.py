"""The cost of any callable that `registry.execute` and `aexecute` run, and the meaning of its result or exception."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tidegate import providers
from tidegate.arguments import checked_cost, checked_key, checked_max_wait, checked_priority
from tidegate.classification import classify_error
from tidegate.core.dialogue import Ended, Ending, Policy, Sent
from tidegate.core.display import printable
from tidegate.core.estimate import Estimate
from tidegate.core.permit import Permit
from tidegate.core.vocabulary import CAPACITY, Cause, Cost, Key, Kind, Outcome
from tidegate.errors import DeadlineExceeded, KeyRefused
from tidegate.nesting import Cell
from tidegate.registries import RateLimitRegistry
from tidegate.turn import Turn

MOST_COMPLAINTS = 100
"""Getters that are complained of in one process; above, a program makes code at run time."""

logger = logging.getLogger("tidegate")
_complained: set[tuple[str, str, int]] = set()


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
        if isinstance(key, str) and key.strip():
            key = Key(provider="custom", base_url=registry.address(key))
        key = checked_key(key)
        self.function = function
        self.expected = checked_cost(cost)
        self.get_headers = get_headers
        self.is_rate_limited = is_rate_limited
        self.get_retry_after = get_retry_after
        self.provider = providers.named(key.provider) or providers.COMPATIBLE
        given = registry.settings
        max_wait = given.max_wait if max_wait is None else checked_max_wait(max_wait)
        policy = _policy(max_wait, given.transient_attempts, given.backoff_base, given.backoff_cap)
        super().__init__(registry, key, policy, self.provider.default_window, checked_priority(priority))

    def price(self, estimate: Estimate) -> Cost:
        """Return what the caller expects."""
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
        sent = ended.sent
        if ended.ending is Ending.REPLAYED and sent is not None and sent.outcome.kind not in CAPACITY:
            outcome = sent.outcome
            body = outcome.answer.body if outcome.answer is not None else b""
            raise KeyRefused(key=self.key, cause=outcome.cause.value, status=outcome.status, body=body)
        if ended.ending in (Ending.EXPIRED, Ending.REPLAYED) or sent is None:
            raise DeadlineExceeded(
                key=self.key,
                waited=ended.waited,
                max_wait=self.policy.max_wait,
                gate=printable(ended.gate),
                opens_in=ended.opens_in,
            )
        if sent.error is not None:
            raise sent.error
        return sent.response

    def judge(self, result: Any, error: Exception | None) -> Outcome:
        """Return what a result or an exception means; the caller's own predicates come first."""
        if error is not None:
            outcome = self._judge_error(error)
        else:
            # There may have been no HTTP at all: the status only says how to read the headers.
            outcome = self._judge_headers(self._headers(result))._replace(status=None)
        limited = _asked(self.is_rate_limited, "is_rate_limited", result, error)
        if limited is not None:
            # An array has no truth of its own.
            limited = _asked(bool, "is_rate_limited", limited)
        if limited is not None:
            if limited:
                outcome = Outcome(Kind.RATE_LIMIT, Cause.RATE, outcome.retry_after, outcome.readings, row="caller")
            elif outcome.kind is Kind.RATE_LIMIT:
                outcome = Outcome(Kind.PERMANENT, Cause.INVALID, None, outcome.readings, row="caller")
        if self.get_retry_after is not None and outcome.kind in (Kind.RATE_LIMIT, Kind.OVERLOADED):
            hint = _asked(self.get_retry_after, "get_retry_after", result, error)
            if hint is not None and (isinstance(hint, bool) or not isinstance(hint, int | float)):
                _complain(
                    "get_retry_after", self.get_retry_after, f"it returned {hint!r}, which is no number of seconds"
                )
                hint = None
            usable = hint is not None and 0.0 <= hint < 1e10
            outcome = Outcome(outcome.kind, outcome.cause, hint if usable else None, outcome.readings, row=outcome.row)
        return outcome

    def _headers(self, result: Any) -> list[tuple[bytes, bytes]]:
        headers = _asked(self.get_headers, "get_headers", result)
        if headers is not None and not isinstance(headers, Mapping):
            _complain("get_headers", self.get_headers, f"it returned a {type(headers).__name__}, which is no mapping")
        elif headers:
            # Reading them may fail too.
            return _asked(_pairs, "get_headers", headers) or []
        return []

    def _judge_headers(self, headers: list[tuple[bytes, bytes]]) -> Outcome:
        return providers.judge(self.provider, 200, headers, None, datetime.now(UTC))

    def _judge_error(self, error: Exception) -> Outcome:
        return classify_error(error, datetime.now(UTC), self.provider).outcome


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [
        (str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
        for name, value in headers.items()
    ]


def _asked(getter: Callable[..., Any] | None, name: str, *facts: Any) -> Any:
    """Return what the caller's `getter` says of a result; None where there is none, or where it fails.

    The result was paid for: a mistake in a getter must not lose it.
    """
    if getter is None:
        return None
    try:
        return getter(*facts)
    except Exception as error:
        _complain(name, getter, f"it raised {type(error).__name__}: {error}", error)
        return None


def _complain(name: str, getter: object, reason: str, error: Exception | None = None) -> None:
    # Once for each place in a program: a getter is often a new lambda at each call.
    code = getattr(getter, "__code__", None)
    place = name, getattr(code, "co_filename", type(getter).__qualname__), getattr(code, "co_firstlineno", 0)
    if place in _complained or len(_complained) >= MOST_COMPLAINTS:
        return
    _complained.add(place)
    logger.warning("%s is unusable: %s; its word counts as None", name, reason, exc_info=error)


@lru_cache(maxsize=64)
def _policy(max_wait: float, attempts: int, backoff_base: float, backoff_cap: float) -> Policy:
    return Policy(max_wait, attempts, True, backoff_base, backoff_cap)
