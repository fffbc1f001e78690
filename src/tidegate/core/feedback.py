"""Changes that an outcome makes to the gates of its key, the limiters that may hold a call back.

Theory of operation. The headers of an answer change the quota mirrors (local copies of quotas), its arrival the
concurrency limit, its failure the breaker. A failure that proves nothing about capacity (unauthorised, impossible)
shows only that the provider answers.

Refusals for lack of capacity come in waves. Every attempt carries the epoch in which it was sent. An attempt sent
before the last handled refusal teaches nothing but its own headers. Each refusal is explained once, by the first cause
that applies:

- A quota mirror lacked the units: it holds the next call back by itself, and nothing is cut.
- Too many calls were in flight, or too many a second: the concurrency limit is cut, or the pacer sets the rate.
- The cause is not this client (other clients' capacity, a model that is not ready): the key pauses, and one attempt
  goes alone.

A time that the provider names pauses the key. But where a server speaks of its own load while other calls are answered,
that time binds only the refused call, and the key judges the refusal like one without a time. A refusal of a call
beyond the learned slots and rate proves nothing new, so no limit is cut. The failure of a call that is its own cause
(`Outcome.own`) is only counted: others were answered within the time that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus

from tidegate.core import events
from tidegate.core.backoff import (
    ABSURD_HINT_SECONDS,
    MAX_PAUSE_SECONDS,
    OCCASIONAL_REFUSAL_SHARE,
    WHOLE_HINT_SECONDS,
    Pause,
    rounding_of,
)
from tidegate.core.chance_odds import BELIEVED_LOG_ODDS, PROVEN_LOG_ODDS
from tidegate.core.fixed_window import AdmittedBurst
from tidegate.core.limiter_state import LimiterState, Out, Permit
from tidegate.core.pacer import Pacer
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import expected_charge
from tidegate.core.refusal_cause import RefusalCause
from tidegate.core.rejection import KeyRejection, rejects_key
from tidegate.core.values import (
    FAILING,
    INFINITY,
    LOAD,
    OK,
    UNSERVING,
    Cause,
    Cost,
    Kind,
    Outcome,
    QuotaReading,
    Source,
)


def succeeded(gates: LimiterState, permit: Permit, saturation: int, now: float, out: Out) -> None:
    """Record a success that ended while `saturation` attempts were in flight."""
    permit.answered = True
    gates.admitted_at = now
    if permit.order > gates.admitted_order:
        gates.admitted_order, gates.admitted_cost = permit.order, permit.cost
    if permit.sent_at < gates.hints.ends:
        gates.hints.answered(permit.sent_at)
    if permit.order > gates.answered_order:
        gates.answered_order = permit.order
    if gates.cause is not None:
        gates.cause.answered(now)
    if gates.unavailability.running:
        gates.unavailability.answered()
    for _, debit, _ in permit.charges:
        debit.answered = True
    gates.counts.note_answered(now - permit.sent_at)
    if permit.probe or gates.breaker.failures:
        answered(gates, permit, now, out)
    # While a quota binds, it decides how many calls are in flight: latencies prove nothing.
    quotas = gates.quotas
    if (quotas.ample or not quotas.mirrors) and gates.latency_knee.answered(permit.in_flight, permit.sent_at, now):
        _update_useful_max(gates, now, out)
    if permit.epoch == gates.epoch:
        if gates.pause.refusals or gates.pause.alone:
            gates.pause.answered()
        if gates.concurrency.succeeded(saturation):
            gates.provenance.limit.record(Source.ANSWERS, now)
            if out is not None:
                out.append(events.ConcurrencyIncreased(gates.key, now, gates.concurrency.limit))
    elif gates.pause.used:
        gates.pause.answered_before(permit.sent_at)


def answered(gates: LimiterState, permit: Permit, now: float, out: Out) -> None:
    """Record an answer of any kind: it shows that there is no outage."""
    gates.unavailability.closed()
    if gates.breaker.answered(permit.probe, permit.sent_at, now):
        gates.counts.note_closing()
        if out is not None:
            out.append(events.BreakerClosed(gates.key, now))


def reaches(outcome: Outcome) -> bool:
    """Return whether an outcome shows that a server works at the address of the key; a 404 may be any server's."""
    if outcome.cause in FAILING:
        return False
    if outcome.status is not None:
        return outcome.status != HTTPStatus.NOT_FOUND
    return outcome.kind is not Kind.TRANSIENT and outcome.kind is not Kind.ABANDONED


def rejected(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """Record an answer that no repetition changes: it may hold for all calls with the same credential."""
    if not rejects_key(outcome):
        return
    rejection = gates.rejection = gates.rejection or KeyRejection(now)
    was_in_force = rejection.in_force
    rejection.note_rejection(outcome, permit.order, gates.order, permit.sent_at, now)
    begins = rejection.in_force and not was_in_force
    if begins:
        gates.counts.note_closing()
    if begins and out is not None:
        facts = (outcome.kind, outcome.cause, rejection.reset_at, outcome.status)
        out.append(events.KeyRejected(gates.key, now, *facts))


def accepted(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    """End the rejection of a key where a later attempt has another outcome."""
    rejection = gates.rejection
    if rejection is None or rejects_key(outcome):
        return
    if outcome.kind is Kind.TRANSIENT or outcome.kind is Kind.ABANDONED:
        rejection.note_probe_lost(permit.order)
        return
    # An attempt sent before the first rejection may end long after it, and proves nothing about the key's state since.
    # But a rejection that is not in force needs two answers in a row.
    since = permit.sent_at > rejection.since or not rejection.in_force
    if permit.order > rejection.order or (outcome.kind is OK and since):
        gates.rejection = None
        if not rejection.in_force:
            return
        gates.counts.note_closing()
        if out is not None:
            out.append(events.KeyAccepted(gates.key, now, rejection.count))


def failed(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    """Record a failure of the provider or of the connection to it. `draw` is uniform in [0, 1)."""
    if outcome.cause is Cause.OUTAGE and not (permit.beyond or permit.probe or permit.silent) and gates.is_alive(now):
        # While other calls are answered it is no outage, but may be a limit.
        new_wave = permit.epoch >= gates.epoch
        gates.epoch += new_wave
        gates.pause.refused_within(now - permit.sent_at)
        gates.pacer.named, gates.pacer.hint, gates.pacer.stated = False, 0.0, None
        _unexplained(gates, permit, _for_key(gates, outcome, now), now, new_wave, out)
    if ((outcome.cause is Cause.OUTAGE and not outcome.own) or permit.probe) and not permit.silent:
        _count_outage(gates, permit, outcome, now, draw, out)
    # Last: shared counters save the breaker's state together with this count.
    gates.counts.failed += 1


SILENT = Outcome(Kind.TRANSIENT, Cause.OUTAGE, row="timeout")
"""Outcome of an attempt that a server took and did not answer within the time limit of the caller."""


def silent(gates: LimiterState, permit: Permit, now: float, draw: float, out: Out) -> None:
    """Record a silent attempt as a failure of the provider; it is still to be settled. `draw` is uniform in [0, 1)."""
    _count_outage(gates, permit, SILENT, now, draw, out)


def _count_outage(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    gates.provenance.breaker.record(Source.FAILURES, now)
    in_flight = (each.sent_at for each in gates.permits_in_flight.values())
    if gates.breaker.failed(permit.probe, permit.sent_at, now, draw, in_flight):
        if outcome.cause is Cause.OUTAGE and gates.pacer.active and not gates.pacer.gauge.rate:
            # The failures before it were those of an outage, and no pace was measured.
            _forget_pace(gates, permit)
        if out is not None:
            out.append(events.BreakerOpened(gates.key, now, gates.breaker.ready_at))
    _track_outage(gates, outcome, now)


def _track_outage(gates: LimiterState, outcome: Outcome, now: float) -> None:
    """Count the time for which the breaker is not closed; a quota spent during it has its own reset."""
    clocks = gates.unavailability
    clocks.last = outcome
    if gates.breaker.closed:
        return
    clocks.refused(outcome, now)
    clocks.opened(now)
    if not gates.quotas.unproven:
        clocks.stated(now, gates.quotas.ready_at(Cost(), now)[0])


def _update_useful_max(gates: LimiterState, now: float, out: Out) -> None:
    before = gates.concurrency.limit
    gates.concurrency.set_useful_max(gates.latency_knee.useful)
    gates.provenance.limit.record(Source.ANSWERS, now)
    if out is not None and gates.concurrency.limit != before:
        changed = events.ConcurrencyDecreased if gates.concurrency.limit < before else events.ConcurrencyIncreased
        out.append(changed(gates.key, now, gates.concurrency.limit))


CUTTING = frozenset({Cause.RATE, Cause.CONCURRENCY, Cause.SLOPE, Cause.OVERLOAD, Cause.UNAVAILABLE})
"""Causes that say that this client sends too much. Other clients' capacity and a model that is not ready say nothing
about it."""

CHANCE = frozenset({Cause.RATE, *LOAD})
"""Causes whose refusals may come at random, whatever the client does."""

HOLD_IN_FLIGHT = 10
"""Attempts in flight from which on the first refusal of an unknown cause holds all calls. Chosen: with fewer, a hold
takes more time than it saves refusals."""


def refused(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
    """Close the gate that explains a refusal; `draw` is uniform in [0, 1)."""
    gates.counts.refused += 1
    gates.refusal = outcome.retry_after or 0.0, now
    if outcome.cause not in UNSERVING:
        answered(gates, permit, now, out)
    elif (permit.probe or not outcome.own) and not permit.silent:
        _count_outage(gates, permit, outcome, now, draw, out)
    if not outcome.own:
        gates.pause.refused_within(now - permit.sent_at)
    told, outcome = outcome, _for_key(gates, outcome, now)
    new_wave = permit.epoch >= gates.epoch and not permit.beyond
    if new_wave:
        gates.epoch += 1
    hint = None if outcome.own else _checked_hint(gates, outcome.retry_after)
    gate = _explanation(gates, permit, outcome, hint, now, new_wave)
    if new_wave and not gates.hints.in_trial(permit.sent_at):
        gates.pause.repeated(_confirmed(gates, now), bool(hint), outcome.again)
    if gate and gates.pause.is_unanswerable and gates.quotas.ready_at(permit.cost, now)[0] <= now:
        # The mirror would let the next call go at once, as it did before.
        gate = ""
    paced = not gate and (outcome.cause in CUTTING or permit.beyond)
    tried, stated = False, hint or 0.0
    span: tuple[float, float] | None = None
    pause = gates.pause_for(gate, outcome.readings) if hint and (gate or paced) else gates.pause
    # An account's pause lets the calls of all its models go at once, so none of them is a trial.
    if hint and paced and pause is gates.pause and not permit.beyond and outcome.cause is not Cause.SLOPE:
        let_in = gates.counts.attempts - gates.counts.refused
        wait = gates.hints.seconds(hint, permit.sent_at, now, let_in, gates.pause.grace, new_wave)
        tried, hint = now + wait < gates.hints.ends, wait or None
        gates.pacer.timed = gates.hints.counts_down
        span = gates.hints.span(stated) if hint else None
    elif hint and gate:
        wait = _ready_within(gates, pause, gate, permit, hint, now)
        tried, hint = wait < hint, wait
    if paced and not permit.beyond:
        gates.pacer.named = bool(outcome.retry_after)
        gates.pacer.hint = min(hint or 0.0, MAX_PAUSE_SECONDS)
        gates.pacer.stated = (permit.sent_at + span[0], now + span[1]) if span is not None else None
        _unexplained(gates, permit, outcome, now, new_wave, out)
    # The breaker asks an outage seldom enough.
    probed = outcome.cause in UNSERVING and not gates.breaker.closed
    unpaced = not (gate or paced or probed)
    if unpaced and not hint:
        # Later refusals of a wave add no admitted attempts; to count those takes long where thousands are in flight.
        share = gates.pause.share
        often = share.refused(_confirmed(gates, now) if new_wave else share.admitted) > OCCASIONAL_REFUSAL_SHARE
        unpaced = often or gates.breaker.failures > 1
    if unpaced or hint:
        before_pause = pause.until
        until = pause.close(now, hint, tried or unpaced, draw, new_wave, stated)
        if until > max(before_pause, now):
            gates.resumes = True
            origin = Source.RETRY_AFTER if hint else Source.REFUSALS
            gates.provenance.pause.record(origin, now)
            if out is not None:
                out.append(events.KeyPaused(gates.key, now, until, origin))
    clocks = gates.unavailability
    clocks.refused(outcome, now)
    if hint:
        clocks.stated(now, pause.until)
    elif gate:
        clocks.stated(now, gates.quotas.ready_at(permit.cost, now)[0])
    gates.counts.note_refusal(told)
    if out is not None:
        facts = (told.kind, told.cause, told.retry_after, gate, told.status)
        out.append(events.RateLimitHit(gates.key, now, *facts))


def _for_key(gates: LimiterState, outcome: Outcome, now: float) -> Outcome:
    """Return what a failure says of the key: a time named for a load is its call's, while others are answered."""
    if not outcome.retry_after or outcome.cause not in LOAD or not (gates.breaker.closed and gates.is_alive(now)):
        return outcome
    gates.aside = True
    return outcome._replace(retry_after=None)


def _ready_within(gates: LimiterState, pause: Pause, gate: str, permit: Permit, hint: float, now: float) -> float:
    """Return the seconds until the quota that explains a refusal has room, where its hint agrees; else the hint.

    Whole seconds of a hint are rounded up, so an earlier instant of the mirror within them is more exact. A call that
    was refused at the mirror's instant shows that the mirror is wrong.
    """
    mirror = gates.quotas.mirrors.get(gate)
    if mirror is None or rounding_of(hint) < WHOLE_HINT_SECONDS or permit.sent_at < pause.stated_until:
        return hint
    if mirror.refilled_in(1.0) == INFINITY:
        return hint  # it comes back at a boundary, which hints narrow
    ready = gates.quotas.ready_at(permit.cost, now)[0]
    return ready - now if max(now, permit.sent_at + hint - WHOLE_HINT_SECONDS) < ready < now + hint else hint


def _confirmed(gates: LimiterState, now: float) -> int:
    """Return the attempts that are known to have been admitted: answered ones, and those not refused in time."""
    settled = now - gates.pause.grace
    return gates.counts.answered + sum(each.sent_at <= settled for each in gates.permits_in_flight.values())


def exhausted_quota(mirrors: Mapping[str, QuotaMirror], cost: Cost, readings: Iterable[QuotaReading]) -> str:
    """Return the quota that a refusal's own readings show too low for `cost`, or '' where none does."""
    for reading in readings:
        mirror = mirrors.get(reading.name)
        if reading.remaining is not None and mirror is not None:
            rounding = reading.quantum / 2.0 if reading.quantum > 1.0 else 0.0
            if reading.remaining - rounding < expected_charge(mirror, cost):
                return reading.name
    return ""


def _checked_hint(gates: LimiterState, hint: float | None) -> float | None:
    if hint is not None and not 0.0 <= hint < ABSURD_HINT_SECONDS:
        gates.counts.ignored += 1
        return None
    return hint


def _explanation(
    gates: LimiterState, permit: Permit, outcome: Outcome, hint: float | None, now: float, new_wave: bool
) -> str:
    """Return the quota that explains a refusal, or '' where none does."""
    quotas = gates.quotas
    if outcome.kind is not Kind.RATE_LIMIT or outcome.cause is Cause.CONCURRENCY or not quotas.mirrors:
        return ""
    ready, name = quotas.ready_at(permit.cost, now)
    if ready <= now:
        # The mirror showed enough units. It lagged behind the refusal's own reading, or another limit refused.
        name = exhausted_quota(quotas.mirrors, permit.cost, outcome.readings)
        name = name or _portion(gates, permit, hint, now, new_wave)
    if not name or name in quotas.unproven:
        return ""
    if new_wave:
        quotas.on_refused(name, permit.order, permit.sent_at, now, hint, permit.cost)
    return name


def _portion(gates: LimiterState, permit: Permit, hint: float | None, now: float, new_wave: bool) -> str:
    quotas = gates.quotas
    if quotas.divided or not new_wave:
        # Later refusals of a wave come in any order, so the calls admitted before them prove nothing.
        return quotas.explained_by_portion(now) if hint else ""
    under_way = [
        permit.sent_at - each.sent_at for each in gates.permits_in_flight.values() if each.order < permit.order
    ]
    run = gates.run(permit)
    calls = run.calls - (len(gates.permits_in_flight) - len(under_way))
    name = quotas.portion(AdmittedBurst(under_way, calls, run.seconds), hint, now)
    if name:
        # The pacer had taken this quota for a rate.
        _forget_pace(gates, permit)
    return name


def _forget_pace(gates: LimiterState, permit: Permit) -> None:
    """Replace the pacer by a new one, which has sent none of the attempts in flight."""
    gates.pacer = Pacer()
    permit.mark = gates.pacer.mark
    for each in gates.permits_in_flight.values():
        each.mark = gates.pacer.mark


def _unexplained(gates: LimiterState, permit: Permit, outcome: Outcome, now: float, new_wave: bool, out: Out) -> None:
    """Decide between chance, a ceiling and a rate as the cause of a refusal; the latter two hold calls back."""
    first = gates.cause is None
    _record(gates, permit, now)
    if gates.pacer.disproved():
        _forget_pace(gates, permit)
    before, pacer = gates.concurrency.limit, gates.pacer
    cause = Cause.OVERLOAD if outcome.cause in (Cause.UNAVAILABLE, Cause.OUTAGE) else outcome.cause
    assert gates.cause is not None
    # Where a provider names a time for the key, no refusal of its is taken for chance.
    plain = not outcome.retry_after and outcome.cause in CHANCE
    if plain and gates.cause.was_late:
        # Its call was admitted, and held a slot: no limit refused it.
        gates.aside = True
        gates.excuse(permit)
        return
    believed = gates.cause.believes_chance
    if plain and _is_chance(gates, gates.cause, outcome, now, new_wave):
        gates.aside = True
        if gates.concurrency.ceiling < INFINITY:
            gates.concurrency.remove_ceiling()
        if new_wave and pacer.active:
            pacer.ignore(permit.mark, now)
        elif pacer.active and permit.mark >= 0:
            pacer.gauge.refused(permit.mark)
        return
    lone = False
    if first and plain and outcome.cause is Cause.RATE and permit.in_flight >= HOLD_IN_FLIGHT:
        gates.pause.hold(now)
        gates.provenance.pause.record(Source.REFUSALS, now)
    elif new_wave:
        lone = gates.pause.end_hold()
    # Nothing was done about the refusals of the wave that were taken for chance.
    new_wave = new_wave or (plain and believed)
    if _explained_by_concurrency(gates, permit, outcome, now, new_wave):
        pacer.active = False
        pacer.gauge.note(gates.run(permit, before=True), permit.sent_at, permit.in_flight == 1)
        gates.provenance.limit.record(Source.REFUSALS, now)
        if new_wave and out is not None and gates.concurrency.limit < before:
            told = (outcome.cause, outcome.status)
            out.append(events.ConcurrencyDecreased(gates.key, now, gates.concurrency.limit, *told))
        return
    gates.provenance.pace.record(Source.REFUSALS, now)
    latency = gates.counts.latency
    if pacer.active:
        if new_wave:
            pacer.stray_odds = gates.cause.random_odds(now)
            # As above: a time for the key excludes chance.
            pacer.chance_odds = gates.cause.chance_odds(now) if plain else -BELIEVED_LOG_ODDS
        pacer.refused(permit.mark, permit.sent_at, now, new_wave, cause, gates.pause.grace, latency)
    else:
        known = gates.cause.rate(now) if gates.concurrency.ceiling < INFINITY and not lone else 0.0
        gates.concurrency.remove_ceiling()
        pacer.gauge.note(gates.run(permit, before=True), permit.sent_at, permit.in_flight == 1)
        pacer.begin(gates.run(permit), permit.sent_at, now, cause, gates.pause.grace, latency, known, lone)


def _is_chance(gates: LimiterState, cause: RefusalCause, outcome: Outcome, now: float, new_wave: bool) -> bool:
    """Return whether a refusal comes at random, so that nothing that this key does prevents it."""
    quotas = gates.quotas
    ample = bool(quotas.mirrors) and not quotas.unproven and quotas.ample
    cause.expect_chance(ample, blamed=outcome.cause is Cause.RATE)
    return cause.is_random(now, new_wave)


def _record(gates: LimiterState, permit: Permit, now: float) -> None:
    """Record the refusal for the comparison of causes, which begins with the first one."""
    if gates.cause is None:
        gates.cause = RefusalCause(gates.run(permit, before=True), permit.in_flight == 1)
        under_way = INFINITY
        for each in sorted([*gates.permits_in_flight.values(), permit], key=lambda each: each.order):
            while under_way < INFINITY and each.in_flight <= under_way:
                # An answer since the attempt before it has freed a slot.
                gates.cause.answered(each.sent_at)
                under_way -= 1
            under_way = each.in_flight
            if not each.beyond:
                gates.cause.sent(each.order, each.in_flight, each.sent_at)
    gates.cause.refused(permit.order, permit.sent_at, now, gates.counts.latency)


def _explained_by_concurrency(
    gates: LimiterState, permit: Permit, outcome: Outcome, now: float, new_wave: bool
) -> bool:
    """Return whether the concurrency limit explains the refusal.

    A slope refusal, or one that names a time, has another cause, unless that cause is concurrency.
    """
    cause, limit, grace = outcome.cause, gates.concurrency, gates.pause.grace
    if cause is Cause.SLOPE or (outcome.retry_after and cause is not Cause.CONCURRENCY):
        return False
    if gates.pacer.active and gates.pacer.expects(cause):
        return False
    assert gates.cause is not None
    if cause is not Cause.CONCURRENCY and permit.in_flight > 1:
        odds = gates.cause.log_odds(now)
        if gates.pacer.active:
            proven = BELIEVED_LOG_ODDS if gates.cause.shows_slots(now) else PROVEN_LOG_ODDS
            return new_wave and odds < -proven and limit.cap(gates.cause.slots(now), now)
        if new_wave and odds > BELIEVED_LOG_ODDS:
            return False
    # The fate of the youngest attempts is not known yet.
    admitted = max(
        (
            each.in_flight
            for each in gates.permits_in_flight.values()
            if each.order < permit.order and each.sent_at <= now - min(grace, 2.0 * (now - permit.sent_at))
        ),
        default=0,
    )
    within = cause is not Cause.CONCURRENCY and permit.in_flight <= limit.ceiling < INFINITY
    if within and gates.cause.is_stray(permit.in_flight, now):
        # The slots that explain most outcomes had room for this attempt: the refusal is stray and lowers no ceiling.
        return True
    confirmed = cause is Cause.CONCURRENCY or gates.cause.slots_explain(now)
    in_flight = gates.cause.met(permit.order, permit.in_flight)
    if limit.refused(in_flight, admitted, permit.sent_at, now, new_wave, grace, confirmed):
        return True
    if cause is not Cause.CONCURRENCY:
        # As many were admitted, but answers on their way may have freed slots.
        shown = new_wave and permit.in_flight > 1 and gates.cause.shows_slots(now)
        return shown and limit.cap(gates.cause.slots(now), now)
    if new_wave:
        limit.cut_to(permit.in_flight, now)
    return True
