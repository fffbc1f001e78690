"""The lessons of a refusal for want of capacity, and the gate that it closes.

Theory of operation. Refusals come in waves: every attempt carries the epoch in which it was sent, and one that was sent
before the last refusal was acted upon teaches nothing but its own headers. Each is explained once, by the first of

- a quota mirror that lacked the units: it holds the next call back by itself, and nothing is cut;
- too many at once, or too many a second: the concurrency limit is cut, or the pacer sets the rate;
- nothing of ours (somebody else's capacity, a model that is not ready): the pause is closed, and one goes alone after.

A time that the provider names closes the pause in any case. A refusal of what was sent beyond the learned slots and
rate proves no more than they say already: it cuts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegate.core import events
from tidegate.core.answer import answered
from tidegate.core.gates import Gates, Out
from tidegate.core.lesson import Origin
from tidegate.core.mirror import Mirror
from tidegate.core.pacer import Pacer
from tidegate.core.permit import Permit
from tidegate.core.portion import LetIn
from tidegate.core.vocabulary import Cause, Cost, Kind, Outcome, Reading

CUTTING = frozenset({Cause.RATE, Cause.CONCURRENCY, Cause.SLOPE, Cause.OVERLOAD})
"""Causes that say we send too much. Somebody else's capacity and a model that is not ready say nothing about us."""

NEARLY_EMPTY = 0.05
"""Share of a limit under which a copy may be wrong about the last units: what is in flight is not yet known."""

ABSURD_HINT = 86_400.0
"""A capacity answer that asks for a day or more is not believed (TinyLLM#17: 86400 s for a per-minute limit)."""


def refused(gates: Gates, permit: Permit, outcome: Outcome, now: float, draw: float, out: Out) -> None:
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
            origin = Origin.RETRY_AFTER if hint else Origin.REFUSALS
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


def lacking(mirrors: Mapping[str, Mirror], cost: Cost, readings: Iterable[Reading], now: float) -> str:
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


def _credible(gates: Gates, hint: float | None) -> float | None:
    if hint is not None and not 0.0 <= hint < ABSURD_HINT:
        gates.counts.ignored += 1
        return None
    return hint


def _explanation(gates: Gates, permit: Permit, outcome: Outcome, hint: float | None, now: float, new_wave: bool) -> str:
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
        quotas.overdrawn(name, permit.order, permit.sent_at, now, hint)
    return name


def _portion(gates: Gates, permit: Permit, hint: float | None, now: float, new_wave: bool) -> str:
    quotas = gates.quotas
    if quotas.divided or not new_wave:
        # The later refusals of a wave come in any order, and what was let in before them is anything.
        return quotas.explained_by_portion(now) if hint else ""
    under_way = [permit.sent_at - each.sent_at for each in gates.flying.values() if each.order < permit.order]
    run = gates.run(permit)
    calls = run.calls - (len(gates.flying) - len(under_way))
    name = quotas.portion(LetIn(under_way, calls, run.seconds), hint, now)
    if name:
        # Whatever pace was taken for the limit was this.
        _forget_pace(gates, permit)
    return name


def _forget_pace(gates: Gates, permit: Permit) -> None:
    """Begins with another pacer, which sent nothing of what is under way."""
    gates.pacer = Pacer()
    permit.mark = gates.pacer.mark
    for each in gates.flying.values():
        each.mark = gates.pacer.mark


def _unexplained(gates: Gates, permit: Permit, outcome: Outcome, now: float, new_wave: bool, out: Out) -> None:
    """Decide between a ceiling and a rate as the cause of a refusal; either then holds calls back."""
    if gates.pacer.disproved():
        _forget_pace(gates, permit)
    before, pacer = gates.limit.slots, gates.pacer
    if _capped(gates, permit, outcome, now, new_wave):
        pacer.active = False
        pacer.gauge.note(gates.run(permit))
        gates.lessons.limit.taken(Origin.REFUSALS, now)
        if new_wave and out is not None and gates.limit.slots < before:
            told = (outcome.cause, outcome.status)
            out.append(events.ConcurrencyDecreased(gates.key, now, gates.limit.slots, *told))
        return
    gates.lessons.pace.taken(Origin.REFUSALS, now)
    latency = gates.counts.latency
    if pacer.active:
        pacer.refused(permit.mark, permit.sent_at, now, new_wave, outcome.cause, gates.pause.grace, latency)
    else:
        gates.limit.lift()
        pacer.begin(gates.run(permit), permit.sent_at, now, outcome.cause, gates.pause.grace, latency)


def _capped(gates: Gates, permit: Permit, outcome: Outcome, now: float, new_wave: bool) -> bool:
    """Return whether the concurrency limit takes the refusal. Who names a time, or a slope, has no want of slots."""
    cause, limit, grace = outcome.cause, gates.limit, gates.pause.grace
    if cause is Cause.SLOPE or (outcome.retry_after and cause is not Cause.CONCURRENCY):
        return False
    admitted = max((each.in_flight for each in gates.flying.values() if each.order < permit.order), default=0)
    if gates.pacer.active and cause is not Cause.CONCURRENCY:
        overload = new_wave and cause is Cause.OVERLOAD
        return overload and limit.suspect(permit.in_flight, admitted, now, grace)
    if limit.refused(permit.in_flight, admitted, now, new_wave, grace):
        return True
    if cause is not Cause.CONCURRENCY:
        return False
    if new_wave:
        limit.cut_to(permit.in_flight, now)
    return True
