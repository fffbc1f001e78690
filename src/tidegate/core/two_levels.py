"""Quotas on two levels: those of one model, and those that the models of an account share.

Theory of operation. One `AccountController` holds the shared quotas. The `ModelController` of each model refers to it,
and its `TwoLevelQuotas` stand in place of the quotas of a key without an account. A call is charged to the quotas of
both levels, or to none, within one step of the key table. Each reading goes to one level, by the name or unit of its
quota (`SharedNames`).

Before the first answer of an account nothing is known of its quotas. Until then its models share one slow start, as
wide as that of one key: else ten models would send ten first rounds against one quota.

A key without an account has none of these objects, so its calls take the same path as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.backoff import Pause
from tidegate.core.concurrency_limit import CallBound, ConcurrencyLimit
from tidegate.core.limiter_state import LimiterSettings, Out, Permit
from tidegate.core.provenance import Source
from tidegate.core.quota import SharedNames, SharedQuotas, TwoLevelQuotas
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.values import INFINITY, Cost, Key, Kind, Outcome, QuotaReading

SOON = 1e-6
"""Seconds after which a call looks again that follows another model's call. Chosen: before anything else."""


class EarlierHeads(Protocol):
    """The queued calls of the other models of an account that go before those of one model."""

    def opens_at(self, model: ModelController, now: float) -> tuple[float, str]:
        """Return when the earliest one may go, and the shared gate that holds it; `now` and '' where there is none."""
        ...

    def waiting_elsewhere(self, model: ModelController) -> int:
        """Return the number of calls that wait for the account at its other models."""
        ...


class AccountController(SharedQuotas):
    """Quotas that the models of one account share, and the cooldown of a refusal that names one of them.

    `order` numbers the sends and settles of all `models`, so that a reading confirms the right charges. `earlier` knows
    the calls that wait for the quotas. `slow_start` bounds the calls in flight of all models until the first answer; it
    is None from then on.
    """

    __slots__ = ("earlier", "key", "order", "pause", "slow_start")

    def __init__(
        self, key: Key, names: SharedNames, settings: LimiterSettings, window: float, earlier: EarlierHeads
    ) -> None:
        super().__init__(names, window)
        self.key = key
        self.earlier = earlier
        self.pause = Pause()
        self.order = 0
        self.slow_start: ConcurrencyLimit | None = ConcurrencyLimit(CallBound(settings.max_concurrency).highest)

    def holds(self, gate: str, now: float) -> bool:
        """Return whether a closed gate of a model is one of the account."""
        if gate == "pause":
            return self.pause.opens_at(now) > now
        if gate == "concurrency":
            return self.slow_start is not None and self.in_flight >= self.slow_start.limit
        return gate.startswith("quota ") and gate.removeprefix("quota ") in self.quotas.mirrors


class ModelController(AdmissionController):
    """Admission of calls at the key of one model whose account has shared quotas."""

    __slots__ = ("account",)

    def __init__(
        self, key: Key, settings: LimiterSettings, default_window: float, now: float, account: AccountController
    ) -> None:
        super().__init__(key, settings, default_window, now)
        self.account = account
        self.quotas = TwoLevelQuotas(account, default_window)
        account.models.append(self)

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return when `cost` may go, as the base class; no earlier than queued calls of other models that precede."""
        ready, gate = super().ready_at(cost, now)
        return self._after_account(ready, gate, now)

    def admits(self, cost: Cost, now: float, probes: bool = True, slots: bool = True) -> tuple[float, str]:
        """Return the same without inferred limits."""
        ready, gate = super().admits(cost, now, probes, slots)
        return self._after_account(ready, gate, now, slots)

    def _after_account(self, ready: float, gate: str, now: float, slots: bool = True) -> tuple[float, str]:
        if ready == INFINITY:
            return ready, gate
        account = self.account
        if slots and account.slow_start is not None and account.in_flight >= account.slow_start.limit:
            opens = account.slow_start.opens_at(now)
            if opens > ready:
                ready, gate = opens, "concurrency"
        if account.pause.used:
            paused = account.pause.opens_at(now)
            if paused > ready:
                ready, gate = paused, "pause"
        earlier, held_by = account.earlier.opens_at(self, now)
        if held_by and max(earlier, now + SOON) > ready:
            ready, gate = max(earlier, now + SOON), held_by
        return ready, gate

    def admit(self, cost: Cost, now: float, waited: float, out: Out, beyond: bool = False, call: int = 0) -> Permit:
        """Admit a call, as the base class, under the next number of the account."""
        self.order = self.account.order
        permit = super().admit(cost, now, waited, out, beyond, call)
        self.account.order = self.order
        if self.account.slow_start is not None:
            under_way = self.account.in_flight
            if under_way >= self.account.slow_start.limit:
                self.account.slow_start.filled(under_way, now)
        return permit

    def learn(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        self.account.slow_start = None
        super().learn(permit, outcome, now, out)

    def settle(self, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
        self.order = self.account.order
        if outcome.kind is not Kind.ABANDONED:
            self.account.slow_start = None
        super().settle(permit, outcome, now, draw, out)
        self.account.order = self.order

    def forked(self) -> None:
        self.order = self.account.order
        super().forked()

    def certain(self, gate: str) -> bool:
        """Return whether the provider stated when `gate` opens, and no attempt of any model can change it."""
        account = self.account
        if gate == "pause" and account.pause.until > self.pause.until:
            return True
        name = gate.removeprefix("quota ")
        if name == gate or name not in account.quotas.mirrors:
            return super().certain(gate)
        return (
            not account.in_flight
            and account.quotas.provenance[name].origin is Source.HEADERS
            and name not in account.quotas.unproven
        )

    def charged_to(self, mirror: QuotaMirror) -> list[Permit]:
        """Return the attempts in flight that are charged to a quota: those of all models for a shared one."""
        account = self.account
        if mirror.name not in account.quotas.provenance:
            return super().charged_to(mirror)
        return [permit for model in account.models for permit in model.permits_in_flight.values()]

    def hint_headroom(self, quota: str, remaining: float) -> None:
        """Open slots faster where a header announced `remaining` requests: those of all models for a shared quota."""
        shared = quota in self.account.quotas.provenance
        for model in self.account.models if shared else (self,):
            model.concurrency.set_headroom_hint(remaining)

    def owner_of(self, quota: str) -> Key:
        return self.account.key if quota in self.account.quotas.provenance else self.key

    def pause_for(self, quota: str, readings: Iterable[QuotaReading]) -> Pause:
        """Return the pause that a refusal with a hint closes: the account's where it blames shared quotas only."""
        account = self.account
        named = [account.names.covers(each.name, each.unit) for each in readings] if not quota else []
        shared = quota in account.quotas.provenance if quota else bool(named) and all(named)
        return account.pause if shared else self.pause

    def waiting_with(self, quota: str) -> int:
        if quota not in self.account.quotas.provenance:
            return 0
        return self.account.earlier.waiting_elsewhere(self)
