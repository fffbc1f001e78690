"""What `registry.execute` and `aexecute` make of any callable: its cost, and what its result or exception means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tidegate import providers
from tidegate.core.admission import Permit
from tidegate.core.estimate import Estimate
from tidegate.core.exchange import Ended, Ending, Policy, Sent
from tidegate.core.vocabulary import Cause, Cost, Key, Kind, Outcome
from tidegate.drive import adrive, drive
from tidegate.errors import DeadlineExceeded
from tidegate.nesting import Cell
from tidegate.registries import RateLimitRegistry
from tidegate.seat import Turn

OUTAGES = ("ConnectionError", "ConnectError", "ConnectTimeout", "APIConnectionError", "EndpointConnectionError")
TRANSIENTS = ("Timeout", "TimeoutError", "APITimeoutError", "ReadTimeout", "ReadError", "RemoteProtocolError")
"""Names of exceptions that other libraries raise for the same things without a common base."""


class ExecutedTurn(Turn):
    """A turn whose cost the caller has told."""

    __slots__ = ("cost",)

    def __init__(
        self, registry: RateLimitRegistry, key: Key, policy: Policy, window: float, priority: int, cost: Cost
    ) -> None:
        super().__init__(registry, key, policy, window, priority)
        self.cost = cost

    def price(self, estimate: Estimate) -> Cost:
        """What the caller told."""
        return self.cost


class Call:
    """One call of a user's function under a key."""

    __slots__ = (
        "_max_wait",
        "cost",
        "get_headers",
        "get_retry_after",
        "is_rate_limited",
        "key",
        "max_wait",
        "priority",
        "provider",
    )

    def __init__(
        self,
        key: Key | str,
        cost: Cost | None,
        get_headers: Callable[[Any], Mapping[str, str] | None] | None,
        is_rate_limited: Callable[[Any, Exception | None], bool] | None,
        get_retry_after: Callable[[Any, Exception | None], float | None] | None,
        max_wait: float | None,
        priority: int,
    ) -> None:
        self.key = Key(provider="custom", base_url=key) if isinstance(key, str) else key
        self.cost = cost if cost is not None else Cost()
        self.get_headers = get_headers
        self.is_rate_limited = is_rate_limited
        self.get_retry_after = get_retry_after
        self.max_wait = max_wait
        self.priority = priority
        self.provider = providers.named(self.key.provider) or providers.COMPATIBLE

    def run(self, registry: RateLimitRegistry, call: Callable[[], Any]) -> Any:
        """Blocks this thread until the call has ended."""

        def send(permit: Permit) -> Sent:
            try:
                with Cell():
                    result = call()
            except Exception as error:
                return Sent(self.judge(None, error), error=error)
            return Sent(self.judge(result, None), response=result)

        return self._finish(drive(self._turn(registry), send, registry.clock))

    async def arun(self, registry: RateLimitRegistry, call: Callable[[], Awaitable[Any]]) -> Any:
        """Suspends this task until the call has ended."""

        async def send(permit: Permit) -> Sent:
            try:
                with Cell():
                    result = await call()
            except Exception as error:
                return Sent(self.judge(None, error), error=error)
            return Sent(self.judge(result, None), response=result)

        return self._finish(await adrive(self._turn(registry), send, registry.clock))

    def judge(self, result: Any, error: Exception | None) -> Outcome:
        """What a result or an exception means; the caller's own predicates come first."""
        outcome = self._judge_error(error) if error is not None else self._judge_headers(200, self._headers(result))
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
        response = getattr(error, "response", None)
        status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
        if isinstance(status, int):
            headers = getattr(response, "headers", None)
            content = getattr(response, "content", None)
            body = content if isinstance(content, bytes) else str(error).encode()
            return self._judge_headers(status, headers if isinstance(headers, Mapping) else {}, body)
        names = {each.__name__ for each in type(error).__mro__}
        if isinstance(error, ConnectionError) or not names.isdisjoint(OUTAGES):
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, row="connection")
        if isinstance(error, TimeoutError) or not names.isdisjoint(TRANSIENTS):
            return Outcome(Kind.TRANSIENT, Cause.NONE, row="timeout")
        return Outcome(Kind.PERMANENT, Cause.INVALID, row="exception")

    def _turn(self, registry: RateLimitRegistry) -> ExecutedTurn:
        settings = registry.settings
        self._max_wait = settings.max_wait if self.max_wait is None else self.max_wait
        policy = Policy(self._max_wait, settings.transient_attempts, True, settings.backoff_base, settings.backoff_cap)
        return ExecutedTurn(registry, self.key, policy, self.provider.default_window, self.priority, self.cost)

    def _finish(self, ended: Ended) -> Any:
        if ended.ending is Ending.EXPIRED or ended.sent is None:
            raise DeadlineExceeded(key=self.key, waited=ended.waited, max_wait=self._max_wait, gate=ended.gate)
        if ended.sent.error is not None:
            raise ended.sent.error
        return ended.sent.response
