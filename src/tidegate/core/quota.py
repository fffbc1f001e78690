"""All quota mirrors of one key: the one that binds, and the charges of each attempt.

Theory of operation. A mirror is a local copy of one quota. `mirror_of` selects its kind by the first reading, and
`turned_into` replaces it where the quota refills in another way. While more than half of every quota is left (`ample`),
charges wait to be booked together: each call adds one cheap entry. During that time `SamplingBudget` says for how long
no answer needs to be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from tidegate.core.charging import at_admission
from tidegate.core.fixed_window import AdmittedBurst, FixedWindowMirror, SubWindow, portion_of, refutes_portion
from tidegate.core.provenance import QuotaProvenance, Source
from tidegate.core.quota_base import LoggedCharge, QuotaMirror
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.server_clock import ServerClock
from tidegate.core.token_bucket import TokenBucketMirror
from tidegate.core.values import HOLDING, INFINITY, PLACES, PRODUCED, Cost, QuotaReading, Refill
from tidegate.core.window_inference import DEFAULT_WINDOW


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


def charge_of(mirror: QuotaMirror, cost: Cost, place: int, reserves: bool) -> tuple[float, float]:
    """Return the charge at admission, and the reserve. A function, because most calls need no other method."""
    model = mirror.charging
    if model is None or not cost.input_estimate:
        return cost[place], cost.produced if reserves else 0.0
    if not model.rule:
        return cost[place], cost.produced if reserves else 0.0
    amount = at_admission(mirror.unit, cost, cost[place])[model.rule]
    return amount, cost.output_estimate * cost.weight if model.produces else 0.0


def expected_charge(mirror: QuotaMirror, cost: Cost) -> float:
    """Return all that a call is charged by the rule in force, 0 for an unknown unit."""
    place = PLACES.get(mirror.unit)
    return sum(charge_of(mirror, cost, place, mirror.unit in PRODUCED)) if place is not None else 0.0


def mirror_of(reading: QuotaReading, now: float, default_window: float) -> QuotaMirror:
    """Return a mirror of a newly read quota; `default_window` (seconds) where no window is stated."""
    # Where no header says how it comes back, a window promises least, and shows soon whether it is one.
    silent = reading.window is None and reading.reset_after is None
    if reading.refill == "fixed" or silent:
        return FixedWindowMirror(reading, now, default_window, supposed=silent)
    return TokenBucketMirror(reading, now, default_window)


SENT_TOGETHER = 0.01
"""Seconds in which an answer may have found later calls. Measured (rolling-window): 0.03 and 0 are worse."""


def turned_into(
    refill: Refill, mirror: QuotaMirror, reading: QuotaReading, sent_at: float, now: float, default_window: float
) -> QuotaMirror:
    """Return another kind of mirror for a quota that comes back otherwise, with the same charges."""
    turned: QuotaMirror
    if refill == "fixed":
        turned = FixedWindowMirror(reading, now, default_window)
    elif refill == "rolling" and isinstance(mirror, TokenBucketMirror):
        taken = mirror.period.taken_before(sent_at)
        if reading.limit is not None and reading.remaining is not None:
            # Charges that answers have confirmed, but that no earlier answer has found.
            logged = sum(debit.amount for debit in mirror.ledger.entries if debit.charged_at <= sent_at + SENT_TOGETHER)
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
    turned.ledger, turned.reserved = mirror.ledger, mirror.reserved
    if isinstance(turned, RollingWindowMirror):
        turned.spread()
    turned.charging = mirror.charging
    if turned.charging is not None:
        turned.charging.forget_span()  # its levels were of another kind
    turned.used, turned.since, turned.stood, turned.found = mirror.used, mirror.since, mirror.stood, mirror.found
    return turned


LONGEST_TAB = 128
"""Charges that wait to be booked at most, however long no reading comes: a reading books most of them in one."""

Charge = tuple[QuotaMirror, LoggedCharge, float]
"""A mirror, what was charged to it at send, and what is reserved in it until the answer ends."""


class ChargeOwner(Protocol):
    """The owner of a charge; `answered` says that the provider has taken it in."""

    @property
    def answered(self) -> bool: ...


class UnknownOwner:
    """An unknown owner: unless `answered`, the charge stays in doubt until an answer confirms it."""

    __slots__ = ("answered",)

    def __init__(self, answered: bool) -> None:
        self.answered = answered


UNANSWERED, ANSWERED = UnknownOwner(False), UnknownOwner(True)
UNIT_WEIGHT = Cost()

Tabbed = tuple[list[Charge], Cost, int, float, ChargeOwner]
"""Charges to be booked: where they go, their cost, the order and the instant of their sending, and whose they are."""


def coalesce_charges(tab: list[Tabbed], confirmed: int) -> list[Tabbed]:
    """Return what is to be booked of a tab, before a reading of the call numbered `confirmed` is taken in.

    The reading drops the confirmed charges at once, so one charge stands for all of them.
    """
    if not confirmed:
        return tab
    costs, latest, rest = [], None, []
    for entry in tab:
        _, cost, order, _, call = entry
        if call.answered and order < confirmed and not cost.produced:
            costs.append(cost)
            latest = entry
        else:
            rest.append(entry)
    if latest is None:
        return rest
    whole = Cost(*map(sum, zip(*costs, strict=True)))._replace(weight=UNIT_WEIGHT.weight)
    return [([], whole, latest[2], latest[3], ANSWERED), *rest]


READ_CALLS = 64
READ_SHARE = 1 / 16
READ_SECONDS = 1.0
"""While all quotas are ample, an answer is read after `READ_CALLS` calls, `READ_SHARE` of the room or `READ_SECONDS`,
whichever comes first. Reading one costs the time of five calls."""


class SamplingBudget:
    """Lasts for `calls` more calls, and until `until` (monotonic seconds)."""

    __slots__ = ("calls", "until")

    def __init__(self) -> None:
        self.calls, self.until = 0, 0.0

    def renew(self, charged: Iterable[tuple[QuotaMirror, int, bool]], cost: Cost, now: float) -> None:
        """Begin again with a call that is read; later ones cost as much, and are `charged` to these mirrors."""
        calls: float = READ_CALLS
        for mirror, place, reserves in charged:
            amount = sum(charge_of(mirror, cost, place, reserves))
            if amount > 0.0:
                calls = min(calls, READ_SHARE * mirror.room / amount)
        self.calls, self.until = int(calls), now + READ_SECONDS


EXPLORE_WAIT = 1.0
"""Seconds of a wait from which on one call tests another charging rule, and first seconds between such calls. Less
costs refusals where the table is right."""

EXPLORE_MAX = 60.0
"""Most seconds between two such calls: the usual window of a quota."""

AMPLE = 0.5
"""Share of every limit above which it does not matter when the next reading comes."""


class QuotaSet:
    """The mirrors of one key by name, from the first reading that names each.

    Those that are `unproven` were known by an earlier run, and no answer has named them yet. `ample` says that more
    than half of each quota is left: from an answer that is read until charges use up a mirror's `room`. Until then
    charges wait on a tab, and are booked together before a mirror is read. `asks` says that the answer to the call
    charged last is to be read.
    """

    __slots__ = (
        "_charged",
        "_clock",
        "_explore_at",
        "_explore_wait",
        "_explorer",
        "_explores",
        "_mirrors",
        "_patience",
        "_portion",
        "_priced",
        "_tab",
        "_whole",
        "ample",
        "asks",
        "default_window",
        "follows_ends",
        "provenance",
        "unproven",
    )

    def __init__(self, default_window: float = DEFAULT_WINDOW) -> None:
        self.default_window = default_window
        self.ample = False
        self.asks = True
        self.follows_ends = False
        self._explorer, self._explore_wait, self._explore_at = 0, EXPLORE_WAIT, 0.0
        self._clock = ServerClock()
        self._explores = False
        self._patience = SamplingBudget()
        self._mirrors: dict[str, QuotaMirror] = {}
        self._charged: list[tuple[QuotaMirror, int, bool]] = []
        self.provenance: dict[str, QuotaProvenance] = {}
        self.unproven: set[str] = set()
        self._tab: list[Tabbed] = []
        # The cost of the last call that asked, and each mirror with its charge and reserve there.
        self._priced: tuple[Cost | None, list[tuple[QuotaMirror, float, float]]] = None, []
        self._portion: SubWindow | None = None
        self._whole: dict[str, float] = {}

    @property
    def mirrors(self) -> dict[str, QuotaMirror]:
        """The mirrors by name, with everything booked."""
        if self._tab:
            self._book()
        return self._mirrors

    @property
    def counted(self) -> dict[str, QuotaMirror]:
        """Return the mirrors by name, with what was used of each; their levels lack what is on the tab."""
        return self._mirrors

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return when every quota has room for `cost`, and the name of the last one to have it."""
        amounts = self._amounts_of(cost)
        if self.ample:
            for mirror, amount, reserve in amounts:
                if amount + reserve > mirror.room:
                    break
            else:
                return now, ""
        latest, binding = now, ""
        if self._tab:
            self._book()
        for mirror, amount, reserve in amounts:
            ready = mirror.ready_at(amount, reserve, now)
            if ready > latest:
                ready = mirror.stated_by(ready, now)
                if ready > latest:
                    latest, binding = ready, mirror.name
        if latest > now + EXPLORE_WAIT and latest > self._explore_at and not self._explorer:
            tested_at = self._may_explore_at(cost, now)
            if tested_at < latest:
                latest = tested_at
                self._explores = True
        return latest, binding if latest > now else ""

    def _amounts_of(self, cost: Cost) -> list[tuple[QuotaMirror, float, float]]:
        """Return each quota of a call, with its charge and reserve, which are kept for the charge that follows."""
        known, amounts = self._priced
        if known is not cost:
            amounts = []
            for mirror, place, reserves in self._charged:
                amount, reserve = charge_of(mirror, cost, place, reserves)
                amounts.append((mirror, amount, reserve))
            self._priced = cost, amounts
        return amounts

    def _may_explore_at(self, cost: Cost, now: float) -> float:
        """Return when one call may test the charging rules: it fits everywhere by a rule that is not refuted."""
        tested_at = max(now, self._explore_at)
        # A quota that has room says so at once; only one without it compares the charging rules.
        for (mirror, place, _), (_, amount, reserve) in zip(self._charged, self._amounts_of(cost), strict=True):
            ready = mirror.stated_by(mirror.ready_at(amount, reserve, now), now)
            if ready > tested_at:
                tested_at = max(tested_at, min(ready, mirror.may_fit_at(cost, place, now)))
        return tested_at

    def _explored(self, order: int, refused: bool, now: float) -> None:
        """End the test by a call: after a refusal, the next one waits twice as long."""
        if order < self._explorer:
            return
        self._explorer = 0
        self._explore_wait = min(EXPLORE_MAX, 2.0 * self._explore_wait) if refused else EXPLORE_WAIT
        self._explore_at = now + self._explore_wait

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

    @property
    def known(self) -> bool:
        return bool(self._mirrors)

    def debit(
        self,
        cost: Cost,
        order: int,
        now: float,
        call: ChargeOwner = UNANSWERED,
        charges: list[Charge] | None = None,
    ) -> list[Charge]:
        """Charge an attempt to every quota it counts against, and add the charges to `charges`, perhaps later."""
        if charges is None:
            charges = []
        if not self._charged:
            return charges
        if not self.ample:
            self.asks = True
            if self._explores:
                self._explores = False
                if not self._explorer and self._exceeds(cost, now):
                    self._explorer = order
            self._charge(charges, cost, order, now)
            return charges
        self._tab.append((charges, cost, order, now, call))
        for mirror, amount, reserve in self._amounts_of(cost):
            mirror.used += amount if amount < mirror.limit else mirror.limit
            room = mirror.room = mirror.room - (amount + reserve)
            if room < 0.0:
                self.ample = False
        if not self.ample or len(self._tab) >= LONGEST_TAB:
            self._book()
        patience = self._patience
        patience.calls -= 1
        self.asks = patience.calls <= 0 or now >= patience.until
        if self.asks:
            patience.renew(self._charged, cost, now)
        return charges

    def _exceeds(self, cost: Cost, now: float) -> bool:
        """Return whether a call goes out although the charging rules in force hold it back."""
        for mirror, place, reserves in self._charged:
            if mirror.charging is not None and not mirror.charging.settled:
                ready = mirror.ready_at(*charge_of(mirror, cost, place, reserves), now)
                if ready > now + EXPLORE_WAIT and mirror.stated_by(ready, now) > now:
                    return True
        return False

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
        """Turn what an attempt had reserved into a charge of what it `produced`;

        `returned` tokens come back. Several charging rules charge `cost` by the one in force, with its `output`
        (tokens; None: unknown).
        """
        if self._tab:
            self._book()
        for charged, debit, reserve in charges:
            mirror = self._mirrors.get(charged.name, charged)
            if debit.by_rule and mirror.charging is not None and mirror.charging.follows_ends:
                table = 0.0
                if cost.produced and mirror.unit in PRODUCED:
                    table = min(produced, mirror.limit)
                elif mirror.unit == HOLDING:
                    table = -returned
                amount = mirror.settle_by_rules(reserve, cost, output, table, order, debit.charged_at, now)
                mirror.used += amount
                self._spend(mirror, max(0.0, amount - reserve))
                continue
            if not reserve and not (returned and charged.unit == HOLDING):
                continue
            amount = min(produced, mirror.limit) if reserve else -returned
            mirror.settle(reserve, amount, order, debit.charged_at, now)
            mirror.used += amount
            self._spend(mirror, max(0.0, amount - reserve))

    def refund(self, charges: Iterable[Charge]) -> None:
        """Take back what a refused request was not charged."""
        if self._tab:
            self._book()
        for charged, debit, reserve in charges:
            mirror = self._mirrors.get(charged.name, charged)
            mirror.used -= debit.amount
            mirror.refund(debit, reserve)

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
        self.follows_ends = False
        for mirror, _, _ in self._charged:
            if mirror.charging is not None and mirror.charging.follows_ends:
                self.follows_ends = True
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
                    self._add(window)
                    self.provenance[told.name].record(Source.REFUSALS, now)
                    return told.name
                if refutes_portion(mirror.limit, mirror.window, let_in):
                    self._whole[mirror.name] = mirror.limit
        return ""

    def _make(self, reading: QuotaReading, now: float, total: bool = False) -> QuotaMirror:
        mirror = mirror_of(reading, now, self.default_window)
        self._add(mirror, total)
        return mirror

    def _add(self, mirror: QuotaMirror, total: bool = False) -> None:
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

    def book(self) -> None:
        if self._tab:
            self._book()

    def _book(self, confirmed: int = 0) -> None:
        """Charge what is on the tab, before a reading of the call numbered `confirmed` is taken in."""
        tab, self._tab = self._tab, []
        for charges, cost, order, now, call in coalesce_charges(tab, confirmed):
            self._charge(charges, cost, order, now, call)

    def _charge(
        self, charges: list[Charge], cost: Cost, order: int, now: float, tabbed: ChargeOwner | None = None
    ) -> None:
        """Charge an attempt; what is `tabbed` (the owner of a charge on the tab) was counted as used before."""
        for (mirror, place, _), (_, amount, reserve) in zip(self._charged, self._amounts_of(cost), strict=True):
            model = mirror.charging
            if amount or reserve or (model is not None and cost.output_bound):
                # What is above the limit goes out alone and is refused there: it leaves an empty quota, and no debt.
                amount, reserve = min(amount, mirror.limit), min(reserve, mirror.limit)
                debit = mirror.debit(amount, reserve, order, now)
                if model is not None:
                    mirror.book(debit, cost, place)
                if tabbed is None:
                    mirror.used += debit.amount
                else:
                    debit.answered = tabbed.answered
                charges.append((mirror, debit, reserve))

    def _find_room(self, now: float) -> None:
        self._priced = None, []
        self.ample = bool(self._mirrors)
        for mirror in self._mirrors.values():
            mirror.room = mirror.level(now) - AMPLE * mirror.limit
            if mirror.room <= 0.0:
                self.ample = False
                return

    def _spend(self, mirror: QuotaMirror, amount: float) -> None:
        mirror.room -= amount
        if mirror.room < 0.0:
            self.ample = False
