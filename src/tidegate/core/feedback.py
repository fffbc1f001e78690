"""Changes that an outcome makes to the limiters of its key.

The lessons of a refusal for want of capacity, and the gate that it closes.

Theory of operation. Refusals come in waves: every attempt carries the epoch in which it was sent, and one that was sent
before the last refusal was acted upon teaches nothing but its own headers. Each is explained once, by the first of

- a quota mirror that lacked the units: it holds the next call back by itself, and nothing is cut;
- too many at once, or too many a second: the concurrency limit is cut, or the pacer sets the rate;
- nothing of ours (somebody else's capacity, a model that is not ready): the pause is closed, and one goes alone after.

A time that the provider names closes the pause in any case. A refusal of what was sent beyond the learned slots and
rate proves no more than they say already: it cuts nothing.

The lessons of an answer: its headers teach the quotas, its arrival the limits, its failure the breaker.

Signals that prove nothing (cancelled, unauthorised, impossible) teach nothing but that the provider answers. A refusal
for want of capacity has a room of its own, `refusal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.core import events
from tidegate.core.fixed_window import AdmittedBurst
from tidegate.core.limiter_state import LimiterState, Out, Permit
from tidegate.core.pacer import Pacer
from tidegate.core.provenance import Source
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.rejection import KeyRejection, rejects_key
from tidegate.core.values import OK, REFUSED, Cause, Cost, Kind, Outcome, QuotaReading


def read(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Takes in what the headers said of the quotas."""
    made, scarcest = gates.quotas.observe(outcome.readings, permit.order, permit.sent_at, now, permit.charges)
    for mirror in made:
        if outcome.kind not in REFUSED or mirror.level(now) >= 1.0:
            # What was refused for want of this quota has seen all that was let in before it.
            _adopt(gates, mirror, permit, now)
        _tell_of(gates, mirror, now, out)
    if scarcest is None:
        gates.limit.scale_down(1.0)
        return
    share, name = scarcest
    if out is not None and share < 0.1 and gates.limit.scarcity >= 1.0:
        out.append(events.RateLimitWarning(gates.key, now, share, name))
    gates.limit.scale_down(share)


def prove(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Check the quotas that only an earlier run knew: a good answer that was read names all that there are."""
    named = {reading.name for reading in outcome.readings if reading.remaining is not None}
    for mirror in gates.quotas.prove(named, outcome.kind is OK and permit.informs):
        _open(gates, mirror, now)
        _tell_of(gates, mirror, now, out)


def succeeded(gates: LimiterState, permit: Permit, saturation: int, now: float, out: Out) -> None:
    """A call came through while `saturation` were under way."""
    permit.answered = True
    if gates.unavailability.running:
        gates.unavailability.answered()
    for _, debit, _ in permit.charges:
        debit.answered = True
    gates.counts.latencies.append(now - permit.sent_at)
    gates.counts.answered += 1
    if permit.probe or gates.breaker.failures:
        answered(gates, permit, now, out)
    if gates.goodput.answered(permit.in_flight, permit.sent_at, now):
        _bound(gates, now, out)
    if permit.epoch == gates.epoch:
        if gates.pause.refusals or gates.pause.alone:
            gates.pause.answered()
        if gates.limit.succeeded(saturation):
            gates.lessons.limit.taken(Source.ANSWERS, now)
            if out is not None:
                out.append(events.ConcurrencyIncreased(gates.key, now, gates.limit.slots))


def answered(gates: LimiterState, permit: Permit, now: float, out: Out) -> None:
    """The provider answers, whatever it says: that is no outage."""
    gates.unavailability.closed()
    if gates.breaker.answered(permit.probe, permit.sent_at, now) and out is not None:
        out.append(events.BreakerClosed(gates.key, now))


def rejected(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Take in an answer that no repetition mends: it may hold for the whole key."""
    if not rejects_key(outcome):
        return
    begins = gates.rejection is None
    rejection = gates.rejection = gates.rejection or KeyRejection(now)
    rejection.met(outcome, permit.order, permit.sent_at, now)
    if begins and out is not None:
        facts = (outcome.kind, outcome.cause, rejection.reset_at, outcome.status)
        out.append(events.KeyRejected(gates.key, now, *facts))


def accepted(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """End a rejection by the outcome of a later attempt, where that is something else."""
    rejection = gates.rejection
    if rejection is None or rejects_key(outcome):
        return
    if outcome.kind is Kind.TRANSIENT or outcome.kind is Kind.ABANDONED:
        rejection.asked_in_vain(permit.order)
        return
    # What was sent before the rejected attempt may end long after it, and says nothing of the key's state since.
    if permit.order > rejection.order:
        gates.rejection = None
        if out is not None:
            out.append(events.KeyAccepted(gates.key, now, rejection.replayed))


def failed(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    """The provider, or the way to it, broke down. `draw` is uniform in [0, 1)."""
    if outcome.cause is Cause.OUTAGE or permit.probe:
        gates.lessons.breaker.taken(Source.FAILURES, now)
        if gates.breaker.failed(permit.probe, permit.sent_at, now, draw) and out is not None:
            out.append(events.BreakerOpened(gates.key, now, gates.breaker.ready_at))
        _away(gates, outcome, now)
    # Last: who keeps the counts elsewhere writes down with them how the breaker stands now.
    gates.counts.failed += 1


def _away(gates: LimiterState, outcome: Outcome, now: float) -> None:
    """Count the time behind a breaker that is not closed; a quota that is spent meanwhile has its own reset."""
    clocks = gates.unavailability
    clocks.last = outcome
    if gates.breaker.closed:
        return
    clocks.refused(outcome, now)
    clocks.opened(now)
    if not gates.quotas.unproven:
        clocks.stated(now, gates.quotas.ready_at(Cost(), now)[0])


def _adopt(gates: LimiterState, mirror: QuotaMirror, permit: Permit, now: float) -> None:
    # What is in flight was sent before this mirror existed: charge it what the reading may not have seen. The
    # connections of a first round are made at once, so any of it may have been overtaken.
    for flying in gates.flying.values():
        amount = flying.cost.amount(mirror.unit) if flying is not permit else 0.0
        reserve = flying.cost.reserve(mirror.unit)
        if amount or reserve:
            order = max(flying.order, permit.order + 1)
            flying.charges.append(gates.quotas.debit_late(mirror, amount, reserve, order, flying.sent_at))
    _open(gates, mirror, now)


def _tell_of(gates: LimiterState, mirror: QuotaMirror, now: float, out: Out) -> None:
    if out is not None:
        out.append(events.RateLimitLearned(gates.key, now, mirror.name, mirror.unit, mirror.limit, mirror.window))


def _open(gates: LimiterState, mirror: QuotaMirror, now: float) -> None:
    if mirror.unit == "requests":
        gates.limit.announced(mirror.level(now))


def _bound(gates: LimiterState, now: float, out: Out) -> None:
    before = gates.limit.slots
    gates.limit.bound(gates.goodput.useful)
    gates.lessons.limit.taken(Source.ANSWERS, now)
    if out is not None and gates.limit.slots != before:
        changed = events.ConcurrencyDecreased if gates.limit.slots < before else events.ConcurrencyIncreased
        out.append(changed(gates.key, now, gates.limit.slots))


CUTTING = frozenset({Cause.RATE, Cause.CONCURRENCY, Cause.SLOPE, Cause.OVERLOAD})
"""Causes that say we send too much. Somebody else's capacity and a model that is not ready say nothing about us."""

NEARLY_EMPTY = 0.05
"""Share of a limit under which a copy may be wrong about the last units: what is in flight is not yet known."""

ABSURD_HINT = 86_400.0
"""A capacity answer that asks for a day or more is not believed (TinyLLM#17: 86400 s for a per-minute limit)."""


def refused(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    """Closes the gate that a refusal speaks of. `draw` is uniform in [0, 1)."""
    gates.counts.refused += 1
    if outcome.answer is not None:
        gates.refusal = outcome, now
    answered(gates, permit, now, out)
    gates.pause.refused_within(now - permit.sent_at)
    new_wave = permit.epoch >= gates.epoch and not permit.beyond
    if new_wave:
        gates.epoch += 1
    hint = _credible(gates, outcome.retry_after)
    gate = _explanation(gates, permit, outcome, hint, now, new_wave)
    paced = not gate and (outcome.cause in CUTTING or permit.beyond)
    if permit.overcommitted and not gate:
        gates.refuse_overcommit(now)
    if paced and not permit.beyond:
        _unexplained(gates, permit, outcome, now, new_wave, out)
    if not (gate or paced) or hint:
        before_pause = gates.pause.until
        until = gates.pause.close(now, hint, not (gate or paced), draw, new_wave)
        if until > max(before_pause, now):
            gates.resumes = True
            origin = Source.RETRY_AFTER if hint else Source.REFUSALS
            gates.lessons.pause.taken(origin, now)
            if out is not None:
                out.append(events.KeyPaused(gates.key, now, until, origin))
    clocks = gates.unavailability
    clocks.refused(outcome, now)
    if hint:
        clocks.stated(now, gates.pause.until)
    elif gate:
        clocks.stated(now, gates.quotas.ready_at(permit.cost, now)[0])
    if out is not None:
        facts = (outcome.kind, outcome.cause, outcome.retry_after, gate, outcome.status)
        out.append(events.RateLimitHit(gates.key, now, *facts))


def lacking(mirrors: Mapping[str, QuotaMirror], cost: Cost, readings: Iterable[QuotaReading], now: float) -> str:
    """The quota that a refusal's own readings show too low for `cost`; without any, a mirror nearly as low."""
    told = False
    for reading in readings:
        if reading.remaining is not None and reading.name in mirrors:
            told = True
            if reading.remaining < cost.amount(reading.unit) + cost.reserve(reading.unit):
                return reading.name
    if told:
        return ""
    tightest, least = "", NEARLY_EMPTY
    for mirror in mirrors.values():
        amount = cost.amount(mirror.unit) + cost.reserve(mirror.unit)
        share = (mirror.level(now) - amount) / mirror.limit
        if amount > 0.0 and share < least:
            tightest, least = mirror.name, share
    return tightest


def _credible(gates: LimiterState, hint: float | None) -> float | None:
    if hint is not None and not 0.0 <= hint < ABSURD_HINT:
        gates.counts.ignored += 1
        return None
    return hint


def _explanation(
    gates: LimiterState, permit: Permit, outcome: Outcome, hint: float | None, now: float, new_wave: bool
) -> str:
    """The quota that explains a refusal, or '' where none does."""
    quotas = gates.quotas
    if outcome.kind is not Kind.RATE_LIMIT or outcome.cause is Cause.CONCURRENCY or not quotas.mirrors:
        return ""
    ready, name = quotas.ready_at(permit.cost, now)
    if ready <= now:
        # The copy saw room. Either it lagged behind the refusal's own reading, or, where that says nothing, it was
        # nearly empty; else the limit that refused is another one.
        name = lacking(quotas.mirrors, permit.cost, outcome.readings, now)
        name = name or _portion(gates, permit, hint, now, new_wave)
    if not name or name in quotas.unproven:
        return ""
    if new_wave:
        quotas.on_rejected(name, permit.order, permit.sent_at, now, hint)
    return name


def _portion(gates: LimiterState, permit: Permit, hint: float | None, now: float, new_wave: bool) -> str:
    quotas = gates.quotas
    if quotas.divided or not new_wave:
        # The later refusals of a wave come in any order, and what was let in before them is anything.
        return quotas.explained_by_portion(now) if hint else ""
    under_way = [permit.sent_at - each.sent_at for each in gates.flying.values() if each.order < permit.order]
    run = gates.run(permit)
    calls = run.calls - (len(gates.flying) - len(under_way))
    name = quotas.portion(AdmittedBurst(under_way, calls, run.seconds), hint, now)
    if name:
        # Whatever pace was taken for the limit was this.
        _forget_pace(gates, permit)
    return name


def _forget_pace(gates: LimiterState, permit: Permit) -> None:
    """Begins with another pacer, which sent nothing of what is under way."""
    gates.pacer = Pacer()
    permit.mark = gates.pacer.mark
    for each in gates.flying.values():
        each.mark = gates.pacer.mark


def _unexplained(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, new_wave: bool, out: Out) -> None:
    """Decide between a ceiling and a rate as the cause of a refusal; either then holds calls back."""
    if gates.pacer.disproved():
        _forget_pace(gates, permit)
    before, pacer = gates.limit.slots, gates.pacer
    if _capped(gates, permit, outcome, now, new_wave):
        pacer.active = False
        pacer.gauge.note(gates.run(permit))
        gates.lessons.limit.taken(Source.REFUSALS, now)
        if new_wave and out is not None and gates.limit.slots < before:
            told = (outcome.cause, outcome.status)
            out.append(events.ConcurrencyDecreased(gates.key, now, gates.limit.slots, *told))
        return
    gates.lessons.pace.taken(Source.REFUSALS, now)
    latency = gates.counts.latency
    if pacer.active:
        pacer.refused(permit.mark, permit.sent_at, now, new_wave, outcome.cause, gates.pause.grace, latency)
    else:
        gates.limit.remove_ceiling()
        pacer.begin(gates.run(permit), permit.sent_at, now, outcome.cause, gates.pause.grace, latency)


def _capped(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, new_wave: bool) -> bool:
    """Return whether the concurrency limit takes the refusal. Who names a time, or a slope, has no want of slots."""
    cause, limit, grace = outcome.cause, gates.limit, gates.pause.grace
    if cause is Cause.SLOPE or (outcome.retry_after and cause is not Cause.CONCURRENCY):
        return False
    admitted = max((each.in_flight for each in gates.flying.values() if each.order < permit.order), default=0)
    if gates.pacer.active and cause is not Cause.CONCURRENCY:
        overload = new_wave and cause is Cause.OVERLOAD
        return overload and limit.suspect_ceiling(permit.in_flight, admitted, now, grace)
    if limit.refused(permit.in_flight, admitted, now, new_wave, grace):
        return True
    if cause is not Cause.CONCURRENCY:
        return False
    if new_wave:
        limit.cut_to(permit.in_flight, now)
    return True
