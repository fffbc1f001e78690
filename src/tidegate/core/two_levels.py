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

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.backoff import Pause
from tidegate.core.concurrency_limit import CallBound, ConcurrencyLimit
from tidegate.core.fixed_window import AdmittedBurst
from tidegate.core.limiter_state import LimiterSettings, Out, Permit
from tidegate.core.provenance import QuotaProvenance, Source
from tidegate.core.quota import QuotaSet
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import UNANSWERED, UNIT_WEIGHT, Charge, ChargeOwner
from tidegate.core.values import INFINITY, Cost, Key, Kind, Outcome, QuotaReading, Refill, Unit

ALL = "*"
"""Stands for every quota in `SharedNames`."""

SOON = 1e-6
"""Seconds after which a call looks again that follows another model's call. Chosen: before anything else."""


class SharedNames(NamedTuple):
    """Names or units of the quotas that models share (`*`: all), less those in `own`."""

    shared: frozenset[str]
    own: frozenset[str] = frozenset()

    def covers(self, name: str, unit: Unit) -> bool:
        """Return whether models share the quota `name` of `unit`; a name precedes a unit, which precedes `*`."""
        for each in (name, unit, ALL):
            if each in self.own:
                return False
            if each in self.shared:
                return True
        return False


class EarlierHeads(Protocol):
    """The queued calls of the other models of an account that go before those of one model."""

    def opens_at(self, model: ModelController, now: float) -> tuple[float, str]:
        """Return when the earliest one may go, and the shared gate that holds it; `now` and '' where there is none."""
        ...

    def waiting_elsewhere(self, model: ModelController) -> int:
        """Return the number of calls that wait for the account at its other models."""
        ...


class AccountController:
    """Quotas that the models of one account share, and the cooldown of a refusal that names one of them.

    `order` numbers the sends and settles of all `models`, so that a reading confirms the right charges. `names` says
    which quotas these are; `earlier` knows the calls that wait for them. `slow_start`
    bounds the calls in flight of all models until the first answer; it is None from then on.
    """

    __slots__ = ("earlier", "key", "models", "names", "order", "pause", "quotas", "slow_start")

    def __init__(
        self, key: Key, names: SharedNames, settings: LimiterSettings, window: float, earlier: EarlierHeads
    ) -> None:
        self.key = key
        self.names = names
        self.earlier = earlier
        self.quotas = QuotaSet(window)
        self.pause = Pause()
        self.models: list[ModelController] = []
        self.order = 0
        self.slow_start: ConcurrencyLimit | None = ConcurrencyLimit(CallBound(settings.max_concurrency).highest)

    @property
    def in_flight(self) -> int:
        return sum(len(model.permits_in_flight) for model in self.models)

    def holds(self, gate: str, now: float) -> bool:
        """Return whether a closed gate of a model is one of the account."""
        if gate == "pause":
            return self.pause.opens_at(now) > now
        if gate == "concurrency":
            return self.slow_start is not None and self.in_flight >= self.slow_start.limit
        return gate.startswith("quota ") and gate.removeprefix("quota ") in self.quotas.mirrors


class TwoLevelQuotas:
    """The quotas of one model, and those that it shares, as one set (`core.limiter_state.KeyQuotas`)."""

    __slots__ = ("account", "own")

    def __init__(self, account: AccountController, window: float) -> None:
        self.account = account
        self.own = QuotaSet(window)

    @property
    def mirrors(self) -> Mapping[str, QuotaMirror]:
        return {**self.own.mirrors, **self.account.quotas.mirrors}

    @property
    def counted(self) -> Mapping[str, QuotaMirror]:
        """Return the mirrors of both levels by name, with what was used of each; their levels may lag."""
        return {**self.own.counted, **self.account.quotas.counted}

    @property
    def provenance(self) -> Mapping[str, QuotaProvenance]:
        return {**self.own.provenance, **self.account.quotas.provenance}

    @property
    def unproven(self) -> Collection[str]:
        shared = self.account.quotas.unproven
        return self.own.unproven | shared if shared else self.own.unproven

    @property
    def ample(self) -> bool:
        return all(each.ample for each in self._levels())

    @property
    def asks(self) -> bool:
        """Return whether the answer to the call charged last is to be read."""
        own, shared = self.own, self.account.quotas
        if not shared.known:
            return own.asks
        return shared.asks or (own.asks and own.known)

    @property
    def follows_ends(self) -> bool:
        return self.own.follows_ends or self.account.quotas.follows_ends

    @property
    def divided(self) -> bool:
        return self.own.divided

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        own = self.own.ready_at(cost, now)
        shared = self.account.quotas.ready_at(cost, now)
        return shared if shared[0] > own[0] else own

    def probed_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return the same by quotas that this run has seen; shared ones all count while another model's call tests."""
        quotas = self.account.quotas
        own = self.own.probed_at(cost, now)
        shared = quotas.ready_at(cost, now) if self.account.in_flight else quotas.probed_at(cost, now)
        return shared if shared[0] > own[0] else own

    def seed(self, reading: QuotaReading, said: Refill, now: float) -> None:
        level = self.account.quotas if self._shares(reading) else self.own
        level.seed(reading, said, now)

    def prove(self, names: Collection[str], forget: bool) -> list[QuotaMirror]:
        return [*self.own.prove(names, forget), *self.account.quotas.prove(names, forget)]

    def debit(self, cost: Cost, order: int, now: float, call: ChargeOwner = UNANSWERED) -> list[Charge]:
        charges = self.own.debit(cost, order, now, call)
        self.account.quotas.debit(cost, order, now, call, charges)
        return charges

    def debit_late(self, mirror: QuotaMirror, cost: Cost, order: int, sent_at: float, only_reserve: bool) -> Charge:
        return self._level_of(mirror.name).debit_late(mirror, cost, order, sent_at, only_reserve)

    def settle(
        self,
        charges: Iterable[Charge],
        produced: float,
        returned: float,
        order: int,
        now: float,
        cost: Cost = UNIT_WEIGHT,
        output: float | None = None,
    ) -> None:
        for level, some in self._split(charges):
            level.settle(some, produced, returned, order, now, cost, output)

    def refund(self, charges: Iterable[Charge]) -> None:
        for level, some in self._split(charges):
            level.refund(some)

    def on_refused(
        self, name: str, order: int, sent_at: float, now: float, retry_after: float | None, cost: Cost = UNIT_WEIGHT
    ) -> None:
        self._level_of(name).on_refused(name, order, sent_at, now, retry_after, cost)

    def observe(
        self, readings: Collection[QuotaReading], order: int, sent_at: float, now: float, charges: Iterable[Charge]
    ) -> tuple[list[QuotaMirror], tuple[float, str] | None]:
        levels: tuple[list[QuotaReading], list[QuotaReading]] = [], []
        for reading in readings:
            levels[self._shares(reading)].append(reading)
        charges = list(charges)
        made, scarcest = self.own.observe(levels[False], order, sent_at, now, charges)
        more, other = self.account.quotas.observe(levels[True], order, sent_at, now, charges)
        found = [each for each in (scarcest, other) if each is not None]
        return [*made, *more], min(found, default=None)

    def explained_by_portion(self, now: float) -> str:
        return self.own.explained_by_portion(now)

    def portion(self, let_in: AdmittedBurst, hint: float | None, now: float) -> str:
        """Return the shorter quota that a refusal shows. Of a shared one, other models' calls would have to count."""
        return self.own.portion(let_in, hint, now)

    def _shares(self, reading: QuotaReading) -> bool:
        return self.account.names.covers(reading.name, reading.unit)

    def _levels(self) -> list[QuotaSet]:
        """Return the levels that have quotas; the model's where none has."""
        return [each for each in (self.own, self.account.quotas) if each.known] or [self.own]

    def _level_of(self, name: str) -> QuotaSet:
        return self.account.quotas if name in self.account.quotas.provenance else self.own

    def _split(self, charges: Iterable[Charge]) -> Iterator[tuple[QuotaSet, list[Charge]]]:
        for level in (self.own, self.account.quotas):
            level.book()
        charged = list(charges)
        for level in (self.own, self.account.quotas):
            yield level, [each for each in charged if self._level_of(each[0].name) is level]


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
