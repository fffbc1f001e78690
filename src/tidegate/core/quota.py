"""All quota mirrors of one key, as the answers tell of them, and those that models of an account share.

Theory of operation. A mirror is a local copy of one quota. `mirror_of` selects its kind by the first reading, and
`turned_into` replaces it where the quota refills in another way. `QuotaCharges.ready_at`, which `QuotaSet` inherits,
says when a call fits all of them.

A call of a model whose account has shared quotas is charged to both levels, or to none. Each reading goes to one level,
by the name or unit of its quota (`SharedNames`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.fixed_window import AdmittedBurst, FixedWindowMirror, SubWindow, portion_of, refutes_portion
from tidegate.core.provenance import QuotaProvenance
from tidegate.core.quota_base import QuotaMirror
from tidegate.core.quota_charges import (
    UNANSWERED,
    UNIT_WEIGHT,
    Charge,
    ChargeOwner,
    QuotaCharges,
    charge_of,
)
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.token_bucket import REORDER_BOUNDS_SECONDS, TokenBucketMirror
from tidegate.core.values import INFINITY, PLACES, PRODUCED, Cost, QuotaReading, Refill, Source, Unit


def measurable(reading: QuotaReading) -> bool:
    """Return whether a reading says enough to begin a mirror with."""
    # A limit without its level (prose) is nothing to stand on; a level without its limit says nothing of the refill,
    # and "0 remaining" of no limit is how some gateways write "unlimited".
    if reading.remaining is None:
        return False
    return reading.limit is not None or (reading.refill == "fixed" and reading.remaining > 0)


def is_sum(reading: QuotaReading, readings: Iterable[QuotaReading]) -> bool:
    """Return whether a reading is no quota of its own, but the sum of the input's and the output's (Anthropic)."""
    if reading.unit != "tokens" or reading.limit is None or reading.remaining is None:
        return False
    parts = [each for each in readings if each.unit in ("input_tokens", "output_tokens")]
    if len(parts) < 2:
        return False
    limits, remaining = sum(each.limit or 0.0 for each in parts), sum(each.remaining or 0.0 for each in parts)
    rounding = sum(each.quantum for each in (*parts, reading))
    return limits == reading.limit and abs(remaining - reading.remaining) <= rounding


def mirror_of(reading: QuotaReading, now: float, default_window: float) -> QuotaMirror:
    """Return a mirror of a newly read quota; `default_window` (seconds) where no window is stated."""
    # Where no header says how it comes back, a window promises least, and shows soon whether it is one.
    silent = reading.window is None and reading.reset_after is None
    if reading.refill == "fixed" or silent:
        return FixedWindowMirror(reading, now, default_window, supposed=silent)
    return TokenBucketMirror(reading, now, default_window)


def turned_into(
    refill: Refill, mirror: QuotaMirror, reading: QuotaReading, sent_at: float, now: float, default_window: float
) -> QuotaMirror:
    """Return another kind of mirror for a quota that comes back otherwise, with the same charges."""
    turned: QuotaMirror
    if refill == "fixed":
        turned = FixedWindowMirror(reading, now, default_window, inferred=True)
    elif refill == "rolling" and isinstance(mirror, TokenBucketMirror):
        taken = mirror.period.taken_before(sent_at)
        if reading.limit is not None and reading.remaining is not None:
            # Charges that answers have confirmed, but that no earlier answer has found.
            # An answer may have found calls that went soon after. Measured (rolling-window): 0.03 and 0 s are worse.
            found_until = sent_at + REORDER_BOUNDS_SECONDS[0]
            logged = sum(debit.amount for debit in mirror.ledger.entries if debit.charged_at <= found_until)
            known = sum(amount for _, amount in taken)
            missing = reading.limit - reading.remaining - logged - known
            own = mirror.found + mirror.used
            if own <= reading.limit and now < mirror.since + mirror.period.returns_after:
                # No charge of this process is back yet, so all of them are taken, whichever answers have found them.
                missing = max(missing, own - mirror.ledger.total - known)
            if missing > 0.0:
                taken += mirror.period.date(known, known + missing, now)
        turned = RollingWindowMirror(reading, now, mirror.period.returns_after, taken)
    else:
        turned = TokenBucketMirror(reading, now, default_window)
        if isinstance(mirror, FixedWindowMirror) and mirror.is_refuted:
            turned.period.ignore_resets()
    turned.ledger, turned.reserved = mirror.ledger, mirror.reserved
    if isinstance(turned, RollingWindowMirror):
        turned.spread()
    turned.charging = mirror.charging
    if turned.charging is not None:
        turned.charging.forget_span()  # its levels were of another kind
    turned.used, turned.since, turned.stood, turned.found = mirror.used, mirror.since, mirror.stood, mirror.found
    return turned


class QuotaSet(QuotaCharges):
    """The mirrors of one key by name, from the first reading that names each."""

    __slots__ = ()

    def probed_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return the same as `ready_at` by those quotas alone that this run has seen."""
        latest, binding = now, ""
        for mirror, place, reserves in self._charged:
            if mirror.name not in self.unproven:
                ready = mirror.ready_at(*charge_of(mirror, cost, place, reserves), now)
                latest, binding = max((latest, binding), (ready, mirror.name))
        return latest, binding

    def seed(self, reading: QuotaReading, said: Refill, now: float) -> None:
        """Begin with a quota of an earlier run, `unproven` until an answer names it; `said` is its refill."""
        if reading.name in self._mirrors or not measurable(reading):
            return
        mirror = self._make(reading, now)
        mirror.observe(reading, 0, now, now, None)
        self.provenance[reading.name].seeded()
        self.provenance[reading.name].said = said
        self.unproven.add(reading.name)

    def prove(self, names: Collection[str], forget: bool) -> list[QuotaMirror]:
        """Return the unproven mirrors that an answer has named; with `forget` the others go."""
        proven = [self._mirrors[name] for name in self.unproven if name in names]
        self.unproven.difference_update(names)
        for name in list(self.unproven) if forget else ():
            self._drop(name)
        return proven

    def _drop(self, name: str) -> None:
        self.unproven.discard(name)
        mirror = self._mirrors.pop(name)
        self._charged = [each for each in self._charged if each[0] is not mirror]
        self._priced = None, []

    def _outdated(self, reading: QuotaReading) -> bool:
        """Return whether a reading shows that what an earlier run knew of its quota holds no more."""
        if reading.name not in self.unproven:
            return False
        mirror = self._mirrors[reading.name]
        limit, window = reading.limit or mirror.limit, reading.window or mirror.window
        return (reading.refill, limit, window) != (self.provenance[reading.name].said, mirror.limit, mirror.window)

    @property
    def own(self) -> QuotaSet:
        """Return the quotas that belong to the key itself: all of them."""
        return self

    def debit_late(self, mirror: QuotaMirror, cost: Cost, order: int, sent_at: float, only_reserve: bool) -> Charge:
        """Charge a new mirror with an attempt that was sent before it; nothing is learned from the estimate.

        With `only_reserve`, the reading has seen the charge at admission.
        """
        amount, reserve = charge_of(mirror, cost, PLACES[mirror.unit], mirror.unit in PRODUCED)
        amount, reserve = min(amount, mirror.limit), min(reserve, mirror.limit)
        if only_reserve:
            amount = 0.0
        debit = mirror.debit(amount, reserve, order, sent_at)
        mirror.book(debit, cost, PLACES[mirror.unit])
        if only_reserve:
            debit.by_rule = tuple(0.0 for _ in debit.by_rule)
        mirror.used += debit.amount
        self._spend(mirror, amount + reserve)
        return mirror, debit, reserve

    def on_refused(
        self, name: str, order: int, sent_at: float, now: float, retry_after: float | None, cost: Cost = UNIT_WEIGHT
    ) -> None:
        """Record a refusal for want of the quota `name`, whatever its mirror says."""
        self.ample = False
        if self._explorer:
            self._explored(order, True, now)
        mirror = self.mirrors[name]
        place = PLACES.get(mirror.unit)
        amount = charge_of(mirror, cost, place, reserves=False)[0] if place is not None else INFINITY
        mirror.on_refused(sent_at, now, retry_after, amount)
        if retry_after:
            mirror.state(order, now + retry_after)
        portion = self._portion
        if portion is not None and portion.mirror is mirror:
            portion.refused()
            self._check_portion(portion, now)
        elif mirror.turned is not None:
            empty = QuotaReading(name, mirror.unit, mirror.turned, mirror.limit, 0.0, None, mirror.declared)
            self._turn(mirror, mirror.turned, empty, sent_at, now).observe(empty, order, sent_at, now, None)

    def observe(
        self, readings: Collection[QuotaReading], order: int, sent_at: float, now: float, charges: Iterable[Charge]
    ) -> tuple[list[QuotaMirror], tuple[float, str] | None]:
        """Take in the readings of one response; return the new mirrors, and the scarcest quota that nothing paces.

        Of that one, the share that is left and its name.
        """
        if self._tab:
            self._book(order)
        if self._explorer:
            self._explored(order, False, now)
        for _, debit, _ in charges:
            debit.answered = True
        made: list[QuotaMirror] = []
        scarcest: tuple[float, str] | None = None
        for reading in self._clock.timed(readings, sent_at, now):
            if self.unproven and self._outdated(reading):
                self._drop(reading.name)
            mirror, counted_at = self._mirrors.get(reading.name), sent_at
            if mirror is None:
                if not measurable(reading):
                    continue
                mirror = self._make(reading, now, is_sum(reading, readings))
                made.append(mirror)
                if reading.refill == "continuous":
                    # A first round is made while a program starts: when its requests left is unknown.
                    counted_at = now
            provenance = self.provenance[reading.name]
            provenance.record_reading(reading, now)
            mine = None
            for charged, debit, _ in charges:
                if charged.ledger is mirror.ledger:
                    mine = debit
                    break
            mirror.observe(reading, order, counted_at, now, mine)
            if mirror.turned is not None:
                mirror = self._turn(mirror, mirror.turned, reading, sent_at, now)
                mirror.observe(reading, order, sent_at, now, mine)
            if reading.window is not None and mirror.window != reading.window:
                provenance.window = Source.ANSWERS  # the answers deny it
            if mirror.window != provenance.reported_window:
                provenance.note_window(mirror.window, sent_at, now)
            if reading.reset_after is not None:
                mirror.state(order, now + reading.reset_after + reading.resolution)
            if reading.remaining is not None and not mirror.is_predictable:
                share = reading.remaining / mirror.limit, mirror.name
                scarcest = share if scarcest is None else min(scarcest, share)
        if self._portion is not None:
            self._check_portion(self._portion, now)
        self._follows = False
        for mirror, _, _ in self._charged:
            if mirror.charging is not None and mirror.charging.follows_ends:
                self._follows = True
        self._find_room(now)
        return made, scarcest

    @property
    def divided(self) -> bool:
        return self._portion is not None

    def explained_by_portion(self, now: float) -> str:
        return self._portion.mirror.name if self._portion is not None and self._portion.explains(now) else ""

    def portion(self, let_in: AdmittedBurst, hint: float | None, now: float) -> str:
        """Return the shorter quota that a refusal shows although every announced one has room; '' without one."""
        if not hint:
            return ""
        for mirror in self.mirrors.values():
            if mirror.unit == "requests" and mirror.limit != self._whole.get(mirror.name):
                told = portion_of(mirror.name, mirror.limit, mirror.window, let_in, hint)
                if told is not None and told.name not in self._mirrors:
                    window = FixedWindowMirror(told, now, self.default_window, supposed=True)
                    self._portion = SubWindow(window, mirror.name, mirror.limit)
                    self.add(window)
                    self.provenance[told.name].record(Source.REFUSALS, now)
                    return told.name
                if refutes_portion(mirror.limit, mirror.window, let_in):
                    self._whole[mirror.name] = mirror.limit
        return ""

    def _make(self, reading: QuotaReading, now: float, total: bool = False) -> QuotaMirror:
        mirror = mirror_of(reading, now, self.default_window)
        self.add(mirror, total)
        return mirror

    def add(self, mirror: QuotaMirror, total: bool = False) -> None:
        """Begin to charge a mirror; the sum of two others (`total`) is not charged."""
        self._mirrors[mirror.name] = mirror
        self.provenance[mirror.name] = QuotaProvenance(mirror.window)
        place = PLACES.get(mirror.unit)
        if place is not None and not total:
            self._charged.append((mirror, place, mirror.unit in PRODUCED))
            self._priced = None, []

    def _check_portion(self, portion: SubWindow, now: float) -> None:
        # A refuted portion: a quota of this limit is not divided.
        parent = self._mirrors.get(portion.parent)
        if parent is not None and not portion.fails(parent.limit, now):
            return
        self._portion = None
        if parent is not None:
            self._whole[portion.parent] = parent.limit
        self._drop(portion.mirror.name)

    def _turn(
        self, mirror: QuotaMirror, refill: Refill, reading: QuotaReading, sent_at: float, now: float
    ) -> QuotaMirror:
        turned = turned_into(refill, mirror, reading, sent_at, now, self.default_window)
        self._mirrors[mirror.name] = turned
        self._charged = [(turned if each is mirror else each, place, holds) for each, place, holds in self._charged]
        self._priced = None, []
        return turned


ALL = "*"
"""Stands for every quota in `SharedNames`."""


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


class AccountQuotas:
    """Quotas that the models of one account share; `names` says which, `models` are the controllers of the models."""

    __slots__ = ("models", "names", "quotas")

    def __init__(self, names: SharedNames, window: float) -> None:
        self.names = names
        self.quotas = QuotaSet(window)
        self.models: list[Any] = []

    @property
    def in_flight(self) -> int:
        return sum(len(model.permits_in_flight) for model in self.models)


class TwoLevelQuotas:
    """The quotas of one model, and those that it shares, as one set."""

    __slots__ = ("account", "own")

    def __init__(self, account: AccountQuotas, window: float) -> None:
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

    def debit_late(self, mirror: QuotaMirror, *facts: Any) -> Charge:
        return self._level_of(mirror.name).debit_late(mirror, *facts)

    def settle(self, charges: Iterable[Charge], *facts: Any) -> None:
        for level, some in self._split(charges):
            level.settle(some, *facts)

    def refund(self, charges: Iterable[Charge]) -> None:
        for level, some in self._split(charges):
            level.refund(some)

    def on_refused(self, name: str, *facts: Any) -> None:
        self._level_of(name).on_refused(name, *facts)

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


KeyQuotas: TypeAlias = QuotaSet | TwoLevelQuotas
"""The quotas of one key, on one level or on two."""


def doubt_charges(quotas: KeyQuotas) -> None:
    """Take note of a charge that the provider may not have counted: a failed call's, or another process's."""
    for mirror in quotas.counted.values():
        if isinstance(mirror, TokenBucketMirror):
            mirror.trial.stop()
