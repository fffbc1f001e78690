"""Admission of calls at one key, the readings of its quotas, and the feedback of every ended attempt.

Theory of operation. An admitted call holds a *permit*, which is settled exactly once. `core.limiter_state` has the
gates: the limiters of a key that may hold a call back. `core.feedback` changes them by the outcomes of attempts.

One `AccountController` holds the quotas that the models of an account share. The `ModelController` of each model refers
to it, and its `TwoLevelQuotas` stand in place of the quotas of a key without an account. Before the first answer of an
account nothing is known of its quotas. Until then its models share one slow start, as wide as that of one key: else ten
models would send ten first rounds against one quota. A key without an account has none of these objects.

All methods take `now` in monotonic seconds and run under the key table's lock. Events are appended to `out` where it is
a list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidegate.core import events
from tidegate.core.backoff import Pause
from tidegate.core.charging import at_admission
from tidegate.core.circuit_breaker import CLOSED, BreakerState
from tidegate.core.concurrency_limit import CallBound, ConcurrencyLimit
from tidegate.core.cost_estimator import MAX_BELIEVED_TOKENS
from tidegate.core.feedback import accepted, answered, failed, reaches, refused, rejected, silent, succeeded
from tidegate.core.limiter_state import LimiterSettings, LimiterState, Out, Permit
from tidegate.core.quota import AccountQuotas, SharedNames, TwoLevelQuotas, doubt_charges
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import charge_of, expected_charge
from tidegate.core.values import (
    CAPACITY,
    INFINITY,
    OK,
    PLACES,
    REFUSED,
    Cost,
    Key,
    Kind,
    Outcome,
    QuotaReading,
    RequestFacts,
    Silence,
    Source,
    Usage,
)


class AdmissionController(LimiterState):
    """Admission of calls at one key."""

    __slots__ = ()

    def enter(self, cost: Cost, now: float) -> Permit | None:
        """Admit a call of a calm key; else return None, without effect. `admit` is for all other calls."""
        flights = self.permits_in_flight
        if len(flights) >= self.calm_slots:
            return None
        permit = Permit(self, cost, self.order + 1, now)
        if not self.quotas.take(permit):  # type: ignore[union-attr]  # no key of an account is calm
            return None
        self._send(permit, not flights)
        return permit

    def answer(self, permit: Permit, outcome: Outcome, now: float) -> bool:
        """Settle a good answer of a calm key; else return False, without effect. `settle` is for all other outcomes."""
        cost = permit.cost
        if (
            len(self.permits_in_flight) > self.calm_slots
            or permit.epoch != self.epoch
            or permit.trace is not None
            or (outcome.readings and not permit.learned)
            or outcome.ignored
            or cost.produced
            or cost.held
            or (permit.charges and self.quotas.follows_ends)
        ):
            return False
        self._end(permit)
        self.used_at = now
        self.look_back(permit, len(self.permits_in_flight) + 1, now)
        return True

    def look_back(self, permit: Permit, saturation: int, now: float) -> None:
        """Record a good answer of a calm key in all that it may change: the slots, and the latency knee."""
        succeeded(self, permit, saturation, now, None)
        if self.calm_slots >= self.concurrency.limit:
            self.calm_slots = 0

    def admit(self, cost: Cost, now: float, waited: float, out: Out, beyond: bool = False, call: int = 0) -> Permit:
        """Take a slot, charge the quotas and return the permit; the caller has checked `ready_at` with the same cost.

        `ready_at` was checked with the same cost. A call `beyond` the learned limits (`admits` was checked) takes no
        slot and uses no pace. `call` is its number for events.
        """
        begins = not self.permits_in_flight
        if self.pause.alone:
            begins = self.pause.sent(now, self.concurrency.limit, begins)
        probe = self.breaker.state is not CLOSED and self._probing(now, out)
        permit = Permit(self, cost, self.order + 1, now, probe, beyond)
        permit.charges = self.quotas.debit(cost, permit.order, now, permit)
        if self.ceiling is not None:
            self.ceiling.charge(cost, permit.order, now)
        permit.informs = self.quotas.asks
        self._send(permit, begins)
        if not beyond:
            under_way = len(self.permits_in_flight)
            if under_way >= self.concurrency.limit:
                self.concurrency.filled(under_way, now, waited)
            if self.pacer.active:
                self.pacer.sent(now, waited)
            if self.cause is not None:
                self.cause.sent(self.order, under_way, now)
        if self.rejection is not None:
            self.rejection.note_sent(self.order, now)
        if out is not None:
            if probe:
                out.append(events.BreakerHalfOpened(self.key, now))
            if self.resumes:
                out.append(events.KeyResumed(self.key, now))
            out.append(events.SlotAcquired(self.key, now, waited, len(self.permits_in_flight), call=call))
            if call:
                permit.trace = events.AttemptTrace(call, waited, probe)
        self.resumes = False
        return permit

    def _send(self, permit: Permit, begins: bool) -> None:
        """Put an attempt in flight, perhaps the first one of a run."""
        now = self.used_at = permit.sent_at
        self.order = permit.order
        if begins:
            self._began, self._attempts_before, self.refusals_in_run = now, self.counts.attempts, 0
        self.counts.note_sent(now)
        self.permits_in_flight[permit.order] = permit

    def _probing(self, now: float, out: Out) -> bool:
        probe = self.breaker.sent(now)
        if self.breaker.state is CLOSED:
            self.unavailability.closed()
        if out is not None and self.breaker.state is CLOSED:
            out.append(events.BreakerClosed(self.key, now))
        return probe

    def withdraw(self, permit: Permit, now: float, out: Out) -> None:
        """Take back a permit whose attempt was never sent, with all its effects."""
        if not permit.beyond:
            self.concurrency.withdrawn(len(self.permits_in_flight))
        if self.pacer.active and permit.mark >= 0:
            self.pacer.withdrawn(permit.sent_at, now)
        if self.cause is not None:
            self.cause.withdrawn(permit.order)
        self._end(permit)
        self.counts.attempts -= 1
        if out is not None:
            call = permit.trace.call if permit.trace is not None else 0
            out.append(events.SlotReleased(self.key, now, 0.0, len(self.permits_in_flight), Kind.ABANDONED, call=call))
        self.quotas.refund(permit.charges)
        if self.ceiling is not None:
            self.ceiling.withdraw(permit.order)
        self.pause.withdrawn(permit.sent_at)
        self.breaker.abandoned(permit.probe, now)
        if self.rejection is not None:
            self.rejection.note_probe_lost(permit.order)

    def learn(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        """Learn from the headers of an answer whose body is still streaming; `settle` follows at its end."""
        self.concurrency.note_accepted()
        self.answered_order = max(self.answered_order, permit.order)
        if outcome.readings:
            read_headers(self, permit, outcome, now, out)
        if self.quotas.unproven:
            confirm_saved_quotas(self, permit, outcome, now, out)
        if permit.probe or self.breaker.failures:
            answered(self, permit, now, out)
        if self.unavailability.running:
            self.unavailability.answered()
        if self.rejection is not None:
            accepted(self, permit, outcome, now, out)
        self.breaker.reach()
        permit.probe = False
        permit.learned = True

    def learn_usage(self, facts: RequestFacts, usage: Usage, now: float) -> None:
        self.estimate.learn(facts, usage)

    def note_silent(self, permit: Permit, slow: bool, now: float, draw: float, out: Out) -> Silence:
        """Record that an attempt had no answer within the time limit of its caller; return what that means.

        The attempt continues, and counts once. It is `slow`, as all attempts at the same work, if later attempts are
        answered: while the breaker is closed, slow attempts do not count.
        """
        if permit.learned or self.answered_order > permit.order:
            return Silence.SLOW
        if not (permit.silent or permit.settled or (slow and self.breaker.closed)):
            permit.silent = True
            self.calm_slots = 0
            silent(self, permit, now, draw, out)
            permit.probe = False
        return Silence.UNKNOWN if self.breaker.closed else Silence.OUTAGE

    def settle(self, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
        saturation = len(self.permits_in_flight)
        self._end(permit)
        self.used_at = now
        if outcome.ignored:
            self.counts.ignored += outcome.ignored
        kind = outcome.kind
        if kind is not OK:
            self.calm_slots = 0
            self.aside = False
            doubt_charges(self.quotas)
            if outcome.own:
                self.excuse(permit)
        if kind is not OK and kind in REFUSED:
            self.quotas.refund(permit.charges)
        elif permit.cost.produced or permit.cost.held or (permit.charges and self.quotas.follows_ends):
            self._settle_charges(permit, outcome.usage, now)
        if outcome.readings and not permit.learned:
            read_headers(self, permit, outcome, now, out)
        if self.quotas.unproven:
            confirm_saved_quotas(self, permit, outcome, now, out)
        if self.rejection is not None:
            accepted(self, permit, outcome, now, out)
        if kind is OK:
            succeeded(self, permit, saturation, now, out)
            self.calm_slots = self._find_calm(now)
        elif kind in CAPACITY:
            self.answered_order = max(self.answered_order, permit.order)
            self.refusals_in_run += 1
            refused(self, permit, outcome, now, draw, out)
        elif kind is Kind.TRANSIENT:
            failed(self, permit, outcome, now, draw, out)
        elif kind is Kind.ABANDONED:
            self.counts.abandoned += 1
            self.breaker.abandoned(permit.probe, now)
        else:
            self.counts.failed += 1
            self.answered_order = max(self.answered_order, permit.order)
            answered(self, permit, now, out)
            self.unavailability.answered()
            rejected(self, permit, outcome, now, out)
        if not self.breaker.reached and reaches(outcome):
            self.breaker.reach()
        trace = permit.trace
        ended = trace.end(self.key, outcome, now - permit.sent_at, now) if trace is not None else None
        if out is not None:
            held, flying = now - permit.sent_at, len(self.permits_in_flight)
            if ended is not None:
                out.append(ended)
            call = trace.call if trace is not None else 0
            out.append(events.SlotReleased(self.key, now, held, flying, kind, outcome.cause, outcome.status, call=call))

    def forked(self) -> None:
        """Forget the attempts in flight: after a fork they belong to the parent process."""
        self.calm_slots = 0
        self.generation += 1
        self.untaken = 0
        for permit in self.permits_in_flight.values():
            permit.loop = None
            self.quotas.settle(permit.charges, 0.0, 0.0, self.order, permit.sent_at)
        for mirror in self.quotas.mirrors.values():
            mirror.used = 0.0
        self.permits_in_flight = {}
        if self.breaker.state is BreakerState.HALF_OPEN:
            self.breaker.abandoned(True, self.used_at)

    def unowned(self) -> list[Permit]:
        """Return the permits in flight of calls that have not run since, or that an interrupt cut off."""
        return [permit for permit in self.permits_in_flight.values() if not permit.thread]

    def count_lost(self) -> None:
        """Count those attempts as abandoned whose end an interrupt of the program left uncounted."""
        counts = self.counts
        ended = counts.answered + counts.refused + counts.failed + counts.abandoned
        counts.abandoned += max(0, counts.attempts - ended - self.in_flight)

    def look_at(self, ready: float, gate: str, now: float) -> float:
        """Return when to look again for a call that may go at `ready`; here nothing opens `gate` unseen."""
        return ready

    def _end(self, permit: Permit) -> None:
        """Take a permit out of those in flight, and drop its event loop, because charges keep permits for a window."""
        # In this order: an interrupt of the program between both leaves a permit that can still be settled.
        self.permits_in_flight.pop(permit.order, None)
        permit.settled = True
        permit.loop = None

    def _find_calm(self, now: float) -> int:
        """Return the value of `calm_slots`: one less than the slots, so that the last one is taken in `admit`."""
        pause, breaker, flights = self.pause, self.breaker, self.permits_in_flight
        oldest = next(iter(flights.values())).sent_at if flights else now
        calm = not (
            isinstance(self.quotas, TwoLevelQuotas)
            or (self.quotas.counted and not self.quotas.ample)
            or self.pacer.active
            or self.cause is not None
            or self.rejection is not None
            or breaker.state is not CLOSED
            or breaker.failures
            or not breaker.reached
            or self.unavailability.running
            or pause.alone
            or pause.opens_at(now) > now
            or pause.refusals
            or self.hints.ends > oldest
            or self.quotas.unproven
            or self.resumes
            or self.ceiling is not None
        )
        return min(self.concurrency.limit, self.bound.highest) - 1 if calm else 0

    def _settle_charges(self, permit: Permit, usage: Usage | None, now: float) -> None:
        self.order += 1
        cost = permit.cost
        # The provider's usage may be anything. Zero is the first argument of `max`, so that NaN counts as zero.
        output = min(MAX_BELIEVED_TOKENS, max(0, usage.output_tokens)) if usage is not None else 0
        produced = output * cost.weight
        # Without a stated usage, the held part stays charged.
        returned = cost.held - min(cost.held, produced) if usage is not None else 0.0
        known = float(output) if usage is not None else None
        self.quotas.settle(permit.charges, produced, returned, self.order, now, cost, known)


SCARCE_QUOTA_SHARE = 0.1
"""Share of a quota below which an event warns of it, where no copy can pace it. Source: promptfoo's scheduler."""


def read_headers(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    made, scarcest = gates.quotas.observe(outcome.readings, permit.order, permit.sent_at, now, permit.charges)
    if gates.ceiling is not None:
        gates.ceiling.follow(gates.quotas, now)
    for mirror in made:
        _adopt(gates, mirror, permit, outcome, now)
        _emit_learned(gates, mirror, now, out)
    if out is not None:
        for reading in outcome.readings:
            again = gates.quotas.mirrors.get(reading.name)
            if again is not None and gates.quotas.provenance[reading.name].retold:
                _emit_learned(gates, again, now, out)
    before, gates.scarce = gates.scarce, scarcest is not None and scarcest[0] < SCARCE_QUOTA_SHARE
    if out is not None and scarcest is not None and gates.scarce and not before:
        out.append(events.RateLimitWarning(gates.key, now, *scarcest))


def confirm_saved_quotas(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Check the quotas known only from an earlier run: a good answer that was read names all that exist."""
    named = {reading.name for reading in outcome.readings if reading.remaining is not None}
    for mirror in gates.quotas.prove(named, outcome.kind is OK and permit.informs):
        _hint_headroom(gates, mirror, now)
        _emit_learned(gates, mirror, now, out)


def _adopt(gates: LimiterState, mirror: QuotaMirror, permit: Permit, outcome: Outcome, now: float) -> None:
    # Attempts in flight were sent before this mirror existed: charge it for those that the reading may not have seen.
    # Slow start opens its connections at once, so any of them may have been overtaken.
    if mirror.unit in PLACES:
        in_flight = gates.charged_to(mirror)
        others = [each for each in in_flight if each is not permit]
        quantum = next(reading.quantum for reading in outcome.readings if reading.name == mirror.name)
        place = PLACES[mirror.unit]
        mirror.begin_charging(permit.cost, [each.cost for each in others], place, quantum, now)
        if outcome.kind not in REFUSED:
            mirror.found = expected_charge(mirror, permit.cost)
        # A refusal for lack of this quota has seen all calls admitted before it, and there is no room for later ones.
        cost, model = permit.cost, mirror.charging
        dearest = cost[place] if model is None else max(at_admission(mirror.unit, cost, cost[place]))
        lacks = outcome.kind in REFUSED and dearest > mirror.stood
        if lacks and model is None:
            in_flight = []  # there are no charging rules to compare either
        seen = _seen_until(mirror, permit, in_flight, quantum) if model is not None and model.exact and not lacks else 0
        for flying in in_flight:
            order = max(flying.order, permit.order + 1)
            known = lacks or flying is permit or flying.order < seen
            late = gates.quotas.debit_late(mirror, flying.cost, order, flying.sent_at, known)
            flying.charges.append(late)
            if known and not lacks and flying is not permit:
                mirror.found += charge_of(mirror, flying.cost, place, reserves=False)[0]
    _hint_headroom(gates, mirror, now)


def _seen_until(mirror: QuotaMirror, permit: Permit, in_flight: Iterable[Permit], quantum: float) -> int:
    """Return the order before which charges are in the first reading, which is rounded to `quantum`.

    The reading must find no more taken than these calls can have taken, so no other client took a part. Charges that
    surely fit into what was taken are left out, whichever call came first.
    """
    half = quantum / 2.0 if quantum > 1.0 else 0.0
    left = mirror.limit - mirror.stood - half - expected_charge(mirror, permit.cost)
    charges = [(each.order, expected_charge(mirror, each.cost)) for each in in_flight if each.order < permit.order]
    earlier = sorted(charges)  # an account's come model by model
    if left > sum(charge for _, charge in earlier):
        return 0
    for order, charge in earlier:
        left -= charge
        if left < 0.0:
            return order
    return permit.order


def _emit_learned(gates: LimiterState, mirror: QuotaMirror, now: float, out: Out) -> None:
    if out is not None:
        provenance, owner = gates.quotas.provenance[mirror.name], gates.owner_of(mirror.name)
        provenance.retold = False
        facts = (mirror.name, mirror.unit, mirror.limit, provenance.reported_window)
        out.append(events.RateLimitLearned(owner, now, *facts))


def _hint_headroom(gates: LimiterState, mirror: QuotaMirror, now: float) -> None:
    if mirror.unit == "requests":
        gates.hint_headroom(mirror.name, mirror.level(now))


FOLLOWER_LOOK_SECONDS = 1e-6
"""Seconds after which a call looks again that follows another model's call. Chosen: before anything else."""


class EarlierHeads(Protocol):
    """The queued calls of the other models of an account that go before those of one model."""

    def opens_at(self, model: ModelController, now: float) -> tuple[float, str]:
        """Return when the earliest one may go, and the shared gate that holds it; `now` and '' where there is none."""
        ...

    def waiting_elsewhere(self, model: ModelController) -> int:
        """Return the number of calls that wait for the account at its other models."""
        ...


class AccountController(AccountQuotas):
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
        if held_by and max(earlier, now + FOLLOWER_LOOK_SECONDS) > ready:
            ready, gate = max(earlier, now + FOLLOWER_LOOK_SECONDS), held_by
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
