"""Admission by all limiters of one key: every limiter admits a call and charges it, or none does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field, StrictInt

from tidegate.testing.limiters import Level, Limiter, Outage, Reason, Slots
from tidegate.testing.specs import Positive, ScenarioPart

Charge = Literal["input", "input+max_tokens", "produced"]
Tokens = Annotated[StrictInt, Field(ge=0)]

_RANK = {reason: rank for rank, reason in enumerate(Reason)}


@dataclass(frozen=True, slots=True)
class Call:
    """Size of a call, in tokens: its input, the output that it will produce, and its bound on that (None: no bound)."""

    input_tokens: int = 0
    output_tokens: int = 0
    max_tokens: int | None = None


class Prices(Protocol):
    """Charges that a gate needs to know: see `Pricing`."""

    def at_admission(self, unit: str, call: Call) -> float: ...
    def at_end(self, unit: str, call: Call, produced: int) -> float: ...


class Pricing(ScenarioPart):
    """Charge of a call to a limiter of `tokens` or `output_tokens`, at admission and at the end.

    - `input`: only the input, at admission
    - `input+max_tokens`: also reserve the bound on the output at admission (`default_max_tokens` without one); with
      `gives_back`, the part that was not produced returns at the end
    - `produced`: the input at admission, the output at the end, into debt if necessary

    A limiter of `output_tokens` is charged for what was produced, unless the bound is reserved. A produced token counts
    `burndown` times. `cached_tokens` at the beginning of each prompt are not charged. A limiter that counts input is
    charged `least_tokens` for a call at least.
    """

    charge: Charge = "input"
    gives_back: bool = False
    default_max_tokens: Tokens = 256
    burndown: Positive = 1.0
    cached_tokens: Tokens = 0
    least_tokens: Tokens = 0

    def at_admission(self, unit: str, call: Call) -> float:
        """Return the amount that must fit for the call to be admitted."""
        if unit == "requests":
            return 1
        if unit == "input_tokens":
            return max(self.least_tokens, self._input(call))
        reserved = 0
        if self.charge == "input+max_tokens":
            reserved = self.default_max_tokens if call.max_tokens is None else call.max_tokens
        return reserved if unit == "output_tokens" else max(self.least_tokens, self._input(call) + reserved)

    def at_end(self, unit: str, call: Call, produced: int) -> float:
        """Return the total charge of a call that has ended with `produced` output tokens."""
        if unit in ("requests", "input_tokens"):
            return self.at_admission(unit, call)
        weight = produced * self.burndown
        if self.charge == "produced" or (self.charge == "input+max_tokens" and self.gives_back):
            return weight if unit == "output_tokens" else max(self.least_tokens, self._input(call) + weight)
        if self.charge == "input" and unit == "output_tokens":
            return weight
        return self.at_admission(unit, call)

    def _input(self, call: Call) -> int:
        return max(0, call.input_tokens - self.cached_tokens)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a call is not admitted.

    `name` is the limiter's, or `too_large` if the call can never fit. `used` and `requested` are in the limiter's unit.
    `retry_after` is in seconds; None if time alone does not help or the provider cannot know. `status` is set by
    limiters with their own status. `drops` means that the connection is cut instead of an answer.
    """

    name: str
    reason: Reason
    level: Level
    used: float
    requested: float
    retry_after: float | None
    status: int | None = None
    drops: bool = False


@dataclass(frozen=True, slots=True)
class Ticket:
    """Proof that a call was charged; `finish` takes it back once."""

    call: Call
    amounts: dict[str, float]


class Gate:
    """All limiters of one key, which admit or refuse its calls. Not thread-safe: the owner holds a lock."""

    def __init__(self, limiters: Iterable[Limiter], pricing: Prices) -> None:
        self.limiters: Sequence[Limiter] = tuple(limiters)
        self.pricing = pricing

    def ready_at(self, call: Call, now: float) -> float:
        """Return the earliest instant at which every limiter admits the call, infinity if time alone does not help."""
        price = self.pricing.at_admission
        return max((limiter.ready_at(price(limiter.unit, call), now) for limiter in self.limiters), default=now)

    def admit(self, call: Call, now: float) -> Ticket | Refusal:
        """Charge the call to every limiter, or return the first refusal by `Reason` and charge none.

        Each limiter that refuses the call notes the attempt.
        """
        price = self.pricing.at_admission
        amounts: dict[str, float] = {}
        refused: list[Limiter] = []
        for limiter in self.limiters:
            amount = amounts[limiter.name] = price(limiter.unit, call)
            if limiter.ready_at(amount, now) > now:
                refused.append(limiter)
        if refused:
            return min(
                (_refusal(limiter, amounts[limiter.name], now) for limiter in refused),
                key=lambda refusal: (_RANK[refusal.reason], -(refusal.retry_after or 0)),
            )
        for limiter in self.limiters:
            limiter.charge(amounts[limiter.name], now)
        return Ticket(call, amounts)

    def finish(self, ticket: Ticket, produced: int, now: float) -> None:
        """End a call that has produced `produced` output tokens: settle its charges and free its slot."""
        for limiter in self.limiters:
            charged = ticket.amounts.get(limiter.name)
            if charged is None:
                continue
            difference = self.pricing.at_end(limiter.unit, ticket.call, produced) - charged
            if difference:
                limiter.charge(difference, now)
            limiter.finish(now)

    def replace(self, limiters: Iterable[Limiter], pricing: Prices, now: float) -> None:
        """Change the limiters during a run; those of the same name and kind keep their state."""
        before = {limiter.name: limiter for limiter in self.limiters}
        self.limiters = tuple(limiters)
        self.pricing = pricing
        for limiter in self.limiters:
            if limiter.name in before:
                limiter.adopt(before[limiter.name], now)

    def levels(self, now: float) -> tuple[Level, ...]:
        """Return the state of every limiter at `now`, in the scenario's order."""
        return tuple(limiter.level(now) for limiter in self.limiters)


def _refusal(limiter: Limiter, amount: float, now: float) -> Refusal:
    ready_at = limiter.refuse(amount, now)
    level = limiter.level(now)
    too_large = limiter.reason in (Reason.RATE, Reason.DAY) and ready_at == math.inf and amount > limiter.capacity
    status = limiter.status if isinstance(limiter, Slots | Outage) else None
    reason = limiter.reason
    if limiter.statuses and not too_large:
        status = next(limiter.statuses)
        # A rate limiter that answers 503 or 529 says that it is overloaded, as one of concurrency does.
        reason = reason if status == 429 else Reason.SLOTS
    return Refusal(
        name="too_large" if too_large else limiter.name,
        reason=Reason.TOO_LARGE if too_large else reason,
        level=level,
        used=level.limit - level.remaining,
        requested=amount,
        retry_after=None if ready_at == math.inf else ready_at - now,
        status=status,
        drops=isinstance(limiter, Outage) and limiter.status is None,
    )
