"""A provider in virtual time: its real limiters and headers, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Call, Limit, Refusal, Scenario, Truth
from tidegate.testing.accounts import Accounts
from tidegate.testing.dialects import DIALECT_TABLE, RefusalFacts, told
from tidegate.testing.formats.base import dumps

Asking = Callable[..., Awaitable[Any]]


class Refused(Exception):
    """What a client raises for an answer that is none."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = SimpleNamespace(status_code=status, headers=headers, content=content)


def per_second(rate: float, **more: Any) -> Scenario:
    """A provider of that rate, whose bucket is empty at first: it can be at its limit from the beginning to the end."""
    return Scenario(dialect="openai", limiters=(Limit(limit=rate * 60, initial=0),), **more)


class Provider:
    """One provider; `order` has who was let in, in that order.

    Requests that come from `silent[0]` until `silent[1]` (seconds) are taken and never answered: `unanswered` of them.
    """

    def __init__(self, name: str, scenario: Scenario, silent: tuple[float, float] = (0.0, 0.0)) -> None:
        self.key = tidegate.Key("openai", f"https://{name}.test")
        self.order: list[str] = []
        self.scenario = scenario
        self.unanswered = 0
        self._silent = silent
        self._dialect = DIALECT_TABLE[scenario.dialect]
        self.accounts = Accounts(scenario, asyncio.get_running_loop().time)

    def asked_by(self, who: str, registry: RateLimitRegistry) -> Asking:
        """A task, or an evaluator, that asks one question under this provider's key."""

        async def ask(row: Any, output: Any = None) -> Any:
            await registry.aexecute(self.key, lambda: self._answer(who), get_headers=lambda answer: answer)
            return 1.0

        return ask

    def truth(self) -> Truth:
        return self.accounts.truth()

    async def _answer(self, who: str) -> Mapping[str, str]:
        if self._silent[0] <= asyncio.get_running_loop().time() < self._silent[1]:
            self.unanswered += 1
            await asyncio.Event().wait()
        verdict = self.accounts.admit("key", "", Call(), stream=False)
        headers = self._dialect.headers(verdict.announced, 0.0)
        if isinstance(verdict.outcome, Refusal):
            refusal = verdict.outcome
            if refusal.drops:
                raise ConnectionResetError("cut")
            said = self._dialect.refuse(refusal, RefusalFacts("model", told("exact", refusal.retry_after), True))
            body = said.body.encode() if isinstance(said.body, str) else dumps(said.body)
            raise Refused(said.status, dict([*headers, *said.headers]), body)
        self.order.append(who)
        await asyncio.sleep(verdict.outcome.latency)
        self.accounts.end(verdict.outcome, "answered", 1)
        return dict(headers)
