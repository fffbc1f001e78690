"""The lessons of an answer: its headers teach the quotas, its arrival the limits, its failure the breaker.

Signals that prove nothing (cancelled, unauthorised, impossible) teach nothing but that the provider answers. A refusal
for want of capacity has a room of its own, `refusal`.
"""

from __future__ import annotations

from tidegate.core import events
from tidegate.core.gates import Gates, Out
from tidegate.core.lesson import Origin
from tidegate.core.mirror import Mirror
from tidegate.core.permit import Permit
from tidegate.core.rejection import KeyRejection, rejects_key
from tidegate.core.vocabulary import OK, REFUSED, Cause, Cost, Kind, Outcome


def read(gates: Gates, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Takes in what the headers said of the quotas."""
    made, scarcest = gates.quotas.observe(outcome.readings, permit.order, permit.sent_at, now, permit.charges)
    for mirror in made:
        if outcome.kind not in REFUSED or mirror.level(now) >= 1.0:
            # What was refused for want of this quota has seen all that was let in before it.
            _adopt(gates, mirror, permit, now)
        _tell_of(gates, mirror, now, out)
    if scarcest is None:
        gates.limit.scarce(1.0)
        return
    share, name = scarcest
    if out is not None and share < 0.1 and gates.limit.scarcity >= 1.0:
        out.append(events.RateLimitWarning(gates.key, now, share, name))
    gates.limit.scarce(share)


def prove(gates: Gates, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Check the quotas that only an earlier run knew: a good answer that was read names all that there are."""
    named = {reading.name for reading in outcome.readings if reading.remaining is not None}
    for mirror in gates.quotas.prove(named, outcome.kind is OK and permit.informs):
        _open(gates, mirror, now)
        _tell_of(gates, mirror, now, out)


def succeeded(gates: Gates, permit: Permit, saturation: int, now: float, out: Out) -> None:
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
            gates.lessons.limit.taken(Origin.ANSWERS, now)
            if out is not None:
                out.append(events.ConcurrencyIncreased(gates.key, now, gates.limit.slots))


def answered(gates: Gates, permit: Permit, now: float, out: Out) -> None:
    """The provider answers, whatever it says: that is no outage."""
    gates.unavailability.closed()
    if gates.breaker.answered(permit.probe, permit.sent_at, now) and out is not None:
        out.append(events.BreakerClosed(gates.key, now))


def rejected(gates: Gates, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Take in an answer that no repetition mends: it may hold for the whole key."""
    if not rejects_key(outcome):
        return
    begins = gates.rejection is None
    rejection = gates.rejection = gates.rejection or KeyRejection(now)
    rejection.met(outcome, permit.order, permit.sent_at, now)
    if begins and out is not None:
        facts = (outcome.kind, outcome.cause, rejection.reset_at, outcome.status)
        out.append(events.KeyRejected(gates.key, now, *facts))


def accepted(gates: Gates, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
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


def failed(gates: Gates, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    """The provider, or the way to it, broke down. `draw` is uniform in [0, 1)."""
    if outcome.cause is Cause.OUTAGE or permit.probe:
        gates.lessons.breaker.taken(Origin.FAILURES, now)
        if gates.breaker.failed(permit.probe, permit.sent_at, now, draw) and out is not None:
            out.append(events.BreakerOpened(gates.key, now, gates.breaker.ready_at))
        _away(gates, outcome, now)
    # Last: who keeps the counts elsewhere writes down with them how the breaker stands now.
    gates.counts.failed += 1


def _away(gates: Gates, outcome: Outcome, now: float) -> None:
    """Count the time behind a breaker that is not closed; a quota that is spent meanwhile has its own reset."""
    clocks = gates.unavailability
    clocks.last = outcome
    if gates.breaker.closed:
        return
    clocks.refused(outcome, now)
    clocks.opened(now)
    if not gates.quotas.unproven:
        clocks.stated(now, gates.quotas.ready_at(Cost(), now)[0])


def _adopt(gates: Gates, mirror: Mirror, permit: Permit, now: float) -> None:
    # What is in flight was sent before this mirror existed: charge it what the reading may not have seen. The
    # connections of a first round are made at once, so any of it may have been overtaken.
    for flying in gates.flying.values():
        amount = flying.cost.amount(mirror.unit) if flying is not permit else 0.0
        reserve = flying.cost.reserve(mirror.unit)
        if amount or reserve:
            order = max(flying.order, permit.order + 1)
            flying.charges.append(gates.quotas.debit_late(mirror, amount, reserve, order, flying.sent_at))
    _open(gates, mirror, now)


def _tell_of(gates: Gates, mirror: Mirror, now: float, out: Out) -> None:
    if out is not None:
        out.append(events.RateLimitLearned(gates.key, now, mirror.name, mirror.unit, mirror.limit, mirror.window))


def _open(gates: Gates, mirror: Mirror, now: float) -> None:
    if mirror.unit == "requests":
        gates.limit.announced(mirror.level(now))


def _bound(gates: Gates, now: float, out: Out) -> None:
    before = gates.limit.slots
    gates.limit.bound(gates.goodput.useful)
    gates.lessons.limit.taken(Origin.ANSWERS, now)
    if out is not None and gates.limit.slots != before:
        changed = events.ConcurrencyDecreased if gates.limit.slots < before else events.ConcurrencyIncreased
        out.append(changed(gates.key, now, gates.limit.slots))
