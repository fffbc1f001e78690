"""One key: whether the next call may go, and what every ended attempt teaches.

Theory of operation. Five independent gates; a call is admitted when all are open, and `ready_at` is their maximum:

- the quota mirrors (`quota`), one a reported quota, exact wherever headers exist;
- the pacer (`pacer`), for a rate that refuses without having been announced;
- the concurrency limit (`limit`);
- the pause (`pause`) that an explicit retry-after moves for everybody;
- the breaker (`breaker`) that an outage opens.

An admitted call holds a *permit*, settled exactly once. Refusals come in waves: every attempt carries the epoch in
which it was sent, and one that was sent before the last refusal was acted upon teaches nothing but its own headers.
A refusal that a mirror explains needs no cut: the mirror holds the next call back by itself. Signals that prove
nothing (cancelled, unauthorised, impossible) teach nothing.

All methods take `now` in monotonic seconds and are called under the registry's lock. Events are appended to `out`
where it is a list.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.core import events
from tidegate.core.breaker import CLOSED, Breaker, State
from tidegate.core.estimate import Estimate
from tidegate.core.gauge import Run
from tidegate.core.goodput import Goodput
from tidegate.core.lesson import Lessons, Origin
from tidegate.core.limit import ConcurrencyLimit
from tidegate.core.mirror import Mirror
from tidegate.core.pacer import Pacer
from tidegate.core.pause import Pause
from tidegate.core.permit import Counts, Permit
from tidegate.core.quota import Quotas
from tidegate.core.vocabulary import CAPACITY, OK, Cause, Cost, Key, Kind, Outcome, Usage

CUTTING = frozenset({Cause.RATE, Cause.CONCURRENCY, Cause.SLOPE, Cause.OVERLOAD})
"""Causes that say we send too much. Somebody else's capacity and a model that is not ready say nothing about us."""

REFUSED = frozenset({Kind.RATE_LIMIT, Kind.OVERLOADED, Kind.DAILY_LIMIT, Kind.QUOTA_EXHAUSTED})
"""Kinds that the provider did not charge for."""

ABSURD_HINT = 86_400.0
"""A capacity answer that asks for a day or more is not believed (TinyLLM#17: 86400 s for a per-minute limit)."""

ANNOUNCED_WINDOW = 60.0
"""Seconds of the longest window whose rate may be enforced over shorter ones too (60 a minute as 1 a second)."""

INFINITY = float("inf")

Out = list[events.Event] | None


class Tuning(Protocol):
    """The settings an admission reads; `tidegate.Settings` has them all, with units and precedents."""

    @property
    def start_concurrency(self) -> int: ...
    @property
    def max_concurrency(self) -> int: ...
    @property
    def concurrency_cut(self) -> float: ...
    @property
    def pause_base(self) -> float: ...
    @property
    def max_pause(self) -> float: ...
    @property
    def breaker_threshold(self) -> int: ...
    @property
    def breaker_cooldown(self) -> float: ...
    @property
    def max_breaker_cooldown(self) -> float: ...


class Admission:
    """The admission state of one key."""

    __slots__ = (
        "_attempts_before",
        "_began",
        "_paused",
        "_refused_before",
        "breaker",
        "counts",
        "epoch",
        "estimate",
        "flying",
        "generation",
        "goodput",
        "key",
        "lessons",
        "limit",
        "order",
        "pacer",
        "pause",
        "quotas",
        "used_at",
    )

    def __init__(self, key: Key, tuning: Tuning, default_window: float, now: float) -> None:
        self.key = key
        self.limit = ConcurrencyLimit(tuning.start_concurrency, tuning.max_concurrency, tuning.concurrency_cut)
        self.goodput = Goodput()
        self.pacer = Pacer()
        self.pause = Pause(tuning.pause_base, tuning.max_pause)
        self.breaker = Breaker(tuning.breaker_threshold, tuning.breaker_cooldown, tuning.max_breaker_cooldown)
        self.quotas = Quotas(default_window)
        self.estimate = Estimate()
        self.counts = Counts()
        self.lessons = Lessons()
        self.flying: dict[int, Permit] = {}
        self.order = 0
        self.epoch = 0
        self.generation = 0
        self.used_at = self._began = now
        self._paused = False
        self._attempts_before = self._refused_before = 0

    @property
    def in_flight(self) -> int:
        """Attempts under way."""
        return len(self.flying)

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """When `cost` may go, and the gate that says so ('': now; infinity: when an attempt under way ends)."""
        ready, gate = now, ""
        if len(self.flying) >= self.limit.slots:
            opens = self.limit.opens_at(now)
            if opens > now:
                ready, gate = opens, "concurrency"
                if opens == INFINITY:
                    return ready, gate
        if self.pacer.active:
            paced = self.pacer.spacing.opens_at(now)
            if paced > ready:
                ready, gate = paced, "pace"
        if self.breaker.state is not CLOSED:
            breaker = self.breaker.opens_at(now)
            if breaker > ready:
                ready, gate = breaker, "breaker"
        paused = self.pause.opens_at(now)
        if paused > ready:
            ready, gate = paused, "pause"
        quota, name = self.quotas.ready_at(cost, now)
        if quota > ready:
            if self.quotas.unproven and not self.flying:
                # What an earlier run knew holds nobody back for long: one goes and asks.
                quota, name = self.quotas.probed_at(cost, now)
                if quota <= ready:
                    return ready, gate
            ready, gate = quota, f"quota {name}"
        return ready, gate

    def admit(self, cost: Cost, now: float, waited: float, out: Out) -> Permit:
        """Takes a slot and charges the quotas; the caller has asked `ready_at` at the same `now`."""
        if not self.flying:
            self._began = now
            self._attempts_before, self._refused_before = self.counts.attempts, self.counts.refused
        self.order += 1
        self.counts.attempts += 1
        probe = self.breaker.state is not CLOSED and self._probing(now, out)
        if self.pause.alone:
            self.pause.sent(now)
        permit = self.flying[self.order] = Permit(self, cost, self.order, now, probe)
        if len(self.flying) >= self.limit.slots:
            self.limit.filled(len(self.flying), now)
        if self.pacer.active:
            self.pacer.sent(now)
        self.used_at = now
        if out is not None:
            if probe:
                out.append(events.BreakerHalfOpened(self.key, now))
            if self._paused:
                out.append(events.KeyResumed(self.key, now))
            out.append(events.SlotAcquired(self.key, now, waited, len(self.flying)))
        self._paused = False
        return permit

    def _probing(self, now: float, out: Out) -> bool:
        probe = self.breaker.sent(now)
        if out is not None and self.breaker.state is CLOSED:
            out.append(events.BreakerClosed(self.key, now))
        return probe

    def withdraw(self, permit: Permit, now: float, out: Out) -> None:
        """Takes back a permit whose attempt was never sent: nothing happened."""
        permit.settled = True
        self.flying.pop(permit.order, None)
        self.counts.attempts -= 1
        if out is not None:
            out.append(events.SlotReleased(self.key, now, 0.0, len(self.flying), Kind.ABANDONED))
        self.quotas.refund(permit.charges)
        self.breaker.abandoned(permit.probe, now)

    def learn(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        """Takes in the headers of an answer whose body is still streaming; `settle` follows at its end."""
        if outcome.readings:
            self._observe(permit, outcome, now, out)
        if self.quotas.unproven:
            self._prove(permit, outcome, now, out)
        if permit.probe or self.breaker.failures:
            self._answered(permit, now, out)
        permit.probe = False
        permit.learned = True

    def settle(self, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
        """Gives the slot back and learns what the attempt teaches. `draw` is uniform in [0, 1)."""
        saturation = len(self.flying)
        permit.settled = True
        self.flying.pop(permit.order, None)
        self.used_at = now
        self.counts.ignored += outcome.ignored
        kind = outcome.kind
        if kind is not OK and kind in REFUSED:
            self.quotas.refund(permit.charges)
        elif permit.cost.produced or permit.cost.held:
            self._settle_charges(permit, outcome.usage, now)
        if outcome.readings and not permit.learned:
            self._observe(permit, outcome, now, out)
        if self.quotas.unproven:
            self._prove(permit, outcome, now, out)
        if kind is OK:
            self._succeeded(permit, saturation, now, out)
        elif kind in CAPACITY:
            self._refused(permit, outcome, saturation, now, draw, out)
        elif kind is Kind.TRANSIENT:
            self._failed(permit, outcome, now, draw, out)
        elif kind is Kind.ABANDONED:
            self.counts.abandoned += 1
            self.breaker.abandoned(permit.probe, now)
        else:
            self.counts.failed += 1
            self._answered(permit, now, out)
        if out is not None:
            held, flying = now - permit.sent_at, len(self.flying)
            out.append(events.SlotReleased(self.key, now, held, flying, kind, outcome.cause, outcome.status))

    def forked(self) -> None:
        """Forgets what is in flight: after a fork it belongs to the parent."""
        self.generation += 1
        for permit in self.flying.values():
            self.quotas.settle(permit.charges, 0.0, 0.0, self.order, permit.sent_at)
        for mirror in self.quotas.mirrors.values():
            mirror.used = 0.0
        self.flying = {}
        if self.breaker.state is State.HALF_OPEN:
            self.breaker.abandoned(True, self.used_at)

    def _settle_charges(self, permit: Permit, usage: Usage | None, now: float) -> None:
        self.order += 1
        cost = permit.cost
        produced = usage.output_tokens * cost.weight if usage is not None else 0.0
        # Without a word of what it produced, what was held stays charged.
        returned = cost.held - min(cost.held, produced) if usage is not None else 0.0
        self.quotas.settle(permit.charges, produced, returned, self.order, now)

    def _observe(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        made, scarcest = self.quotas.observe(outcome.readings, permit.order, permit.sent_at, now, permit.charges)
        for mirror in made:
            if outcome.kind not in REFUSED or mirror.level(now) >= 1.0:
                # What was refused for want of this quota has seen all that was let in before it.
                self._adopt(mirror, permit, outcome, now)
            self._tell_of(mirror, now, out)
        if scarcest is None:
            self.limit.scarce(1.0)
            return
        share, name = scarcest
        if out is not None and share < 0.1 and self.limit.scarcity >= 1.0:
            out.append(events.RateLimitWarning(self.key, now, share, name))
        self.limit.scarce(share)

    def _adopt(self, mirror: Mirror, permit: Permit, outcome: Outcome, now: float) -> None:
        # What is in flight was sent before this mirror existed: charge it what the reading may not have seen. The
        # connections of a first round are made at once, so any of it may have been overtaken.
        for flying in self.flying.values():
            amount = flying.cost.amount(mirror.unit) if flying is not permit else 0.0
            reserve = flying.cost.reserve(mirror.unit)
            if amount or reserve:
                order = max(flying.order, permit.order + 1)
                flying.charges.append(self.quotas.debit_late(mirror, amount, reserve, order, flying.sent_at))
        self._open(mirror, now)

    def _tell_of(self, mirror: Mirror, now: float, out: Out) -> None:
        if out is not None:
            out.append(events.RateLimitLearned(self.key, now, mirror.name, mirror.unit, mirror.limit, mirror.window))

    def _open(self, mirror: Mirror, now: float) -> None:
        if mirror.unit == "requests":
            before = self.limit.slots
            self.limit.announced(mirror.level(now))
            if self.limit.slots > before:
                self.lessons.limit.taken(Origin.HEADERS, now)

    def _prove(self, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
        """What this answer says of the quotas that only an earlier run knew: a good one that was read says all."""
        named = {reading.name for reading in outcome.readings if reading.remaining is not None}
        for mirror in self.quotas.prove(named, outcome.kind is OK and permit.informs):
            self._open(mirror, now)
            self._tell_of(mirror, now, out)

    def _succeeded(self, permit: Permit, saturation: int, now: float, out: Out) -> None:
        permit.answered = True
        for _, debit, _ in permit.charges:
            debit.answered = True
        self.counts.latencies.append(now - permit.sent_at)
        self.counts.answered += 1
        if permit.probe or self.breaker.failures:
            self._answered(permit, now, out)
        if self.goodput.answered(permit.in_flight, permit.sent_at, now):
            self._bound(now, out)
        if permit.epoch == self.epoch:
            if self.pause.refusals or self.pause.alone:
                self.pause.answered()
            if self.limit.succeeded(saturation):
                self.lessons.limit.taken(Origin.ANSWERS, now)
                if out is not None:
                    out.append(events.ConcurrencyIncreased(self.key, now, self.limit.slots))

    def _bound(self, now: float, out: Out) -> None:
        before = self.limit.slots
        self.limit.bound(self.goodput.useful)
        self.lessons.limit.taken(Origin.ANSWERS, now)
        if out is not None and self.limit.slots != before:
            changed = events.ConcurrencyDecreased if self.limit.slots < before else events.ConcurrencyIncreased
            out.append(changed(self.key, now, self.limit.slots))

    def _answered(self, permit: Permit, now: float, out: Out) -> None:
        if self.breaker.answered(permit.probe, permit.sent_at, now) and out is not None:
            out.append(events.BreakerClosed(self.key, now))

    def _failed(self, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
        self.counts.failed += 1
        if outcome.cause is not Cause.OUTAGE and not permit.probe:
            return
        self.lessons.breaker.taken(Origin.FAILURES, now)
        if self.breaker.failed(permit.probe, permit.sent_at, now, draw) and out is not None:
            out.append(events.BreakerOpened(self.key, now, self.breaker.ready_at))

    def _refused(self, permit: Permit, outcome: Outcome, saturation: int, now: float, draw: float, out: Out) -> None:
        self.counts.refused += 1
        self._answered(permit, now, out)
        self.pause.refused_within(now - permit.sent_at)
        new_wave = permit.epoch >= self.epoch
        if new_wave:
            self.epoch += 1
        hint = self._credible(outcome.retry_after)
        gate = self._explanation(permit, outcome, hint, now, new_wave)
        paced = not gate and outcome.cause in CUTTING
        if paced:
            self._unexplained(permit, outcome, now, new_wave, out)
        if not (gate or paced) or hint:
            before_pause = self.pause.until
            until = self.pause.close(now, hint, not (gate or paced), draw, new_wave)
            if until > max(before_pause, now):
                self._paused = True
                origin = Origin.RETRY_AFTER if hint else Origin.REFUSALS
                self.lessons.pause.taken(origin, now)
                if out is not None:
                    out.append(events.KeyPaused(self.key, now, until, origin))
        if out is not None:
            facts = (outcome.kind, outcome.cause, outcome.retry_after, gate, outcome.status)
            out.append(events.RateLimitHit(self.key, now, *facts))

    def _unexplained(self, permit: Permit, outcome: Outcome, now: float, new_wave: bool, out: Out) -> None:
        """Whether it was a ceiling or a rate that refused; either then holds calls back."""
        if self.pacer.disproved():
            self.pacer = Pacer()
        before, pacer = self.limit.slots, self.pacer
        if self._capped(permit, outcome, now, new_wave):
            pacer.active = False
            pacer.gauge.note(self._run(permit))
            self.lessons.limit.taken(Origin.REFUSALS, now)
            if new_wave and out is not None and self.limit.slots < before:
                told = (outcome.cause, outcome.status)
                out.append(events.ConcurrencyDecreased(self.key, now, self.limit.slots, *told))
            return
        self.lessons.pace.taken(Origin.REFUSALS, now)
        if pacer.active:
            pacer.refused(permit.mark, permit.sent_at, now, new_wave, outcome.cause, self.pause.grace)
        else:
            self.limit.lift()
            pacer.begin(self._run(permit), permit.sent_at, now, outcome.cause, self.pause.grace)

    def _capped(self, permit: Permit, outcome: Outcome, now: float, new_wave: bool) -> bool:
        """Whether the concurrency limit takes the refusal. Who names a time, or a slope, has no want of slots."""
        cause, limit, grace = outcome.cause, self.limit, self.pause.grace
        if cause is Cause.SLOPE or (outcome.retry_after and cause is not Cause.CONCURRENCY):
            return False
        admitted = max((each.in_flight for each in self.flying.values() if each.order < permit.order), default=0)
        if self.pacer.active and cause is not Cause.CONCURRENCY:
            overload = new_wave and cause is Cause.OVERLOAD
            return overload and limit.suspect(permit.in_flight, admitted, now, grace)
        if limit.refused(permit.in_flight, admitted, now, new_wave, grace):
            return True
        if cause is not Cause.CONCURRENCY:
            return False
        if new_wave:
            limit.cut_to(permit.in_flight, now)
        return True

    def _run(self, permit: Permit) -> Run:
        """What was let in before `permit` was sent, since the key was last idle."""
        counts = self.counts
        count = counts.attempts - self._attempts_before - (counts.refused - self._refused_before)
        rates = [
            mirror.limit / mirror.window
            for mirror in self.quotas.mirrors.values()
            if mirror.unit == "requests" and mirror.window <= ANNOUNCED_WINDOW
        ]
        return Run(max(1, count), permit.sent_at - self._began, max(rates, default=INFINITY))

    def _credible(self, hint: float | None) -> float | None:
        if hint is not None and not 0.0 <= hint < ABSURD_HINT:
            self.counts.ignored += 1
            return None
        return hint

    def _explanation(self, permit: Permit, outcome: Outcome, hint: float | None, now: float, new_wave: bool) -> str:
        """The quota that explains a refusal, or '' where none does."""
        if outcome.kind is not Kind.RATE_LIMIT or outcome.cause is Cause.CONCURRENCY or not self.quotas.mirrors:
            return ""
        ready, name = self.quotas.ready_at(permit.cost, now)
        if ready <= now:
            # The copy saw room. Either it lagged behind the refusal's own reading, or, where that says nothing, it was
            # nearly empty; else the limit that refused is another one.
            name = self.quotas.lacking(permit.cost, outcome.readings, now) or self._portion(permit, hint, now)
        if not name or name in self.quotas.unproven:
            return ""
        if new_wave:
            self.quotas.overdrawn(name, permit.order, permit.sent_at, now, hint)
        return name

    def _portion(self, permit: Permit, hint: float | None, now: float) -> str:
        sent_before = (each.sent_at for each in self.flying.values() if each.order < permit.order)
        return self.quotas.portion(permit.sent_at, sent_before, hint, now)
