"""Charges of the attempts of one key to all its quotas: when a call fits, what it is charged, and what comes back.

Theory of operation. While more than half of every quota is left (`ample`), charges wait to be booked together: each
call adds one cheap entry. During that time `SamplingBudget` says for how long no answer needs to be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tidegate.core.charging import at_admission
from tidegate.core.fixed_window import SubWindow
from tidegate.core.provenance import QuotaProvenance
from tidegate.core.quota_base import LoggedCharge, QuotaMirror
from tidegate.core.server_clock import ServerClock
from tidegate.core.values import HOLDING, INFINITY, MAX_AMOUNT, PLACES, PRODUCED, Cost
from tidegate.core.window_bounds import DEFAULT_WINDOW_SECONDS


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


MAX_TAB_CHARGES = 128
"""Charges that wait to be booked at most, however long no reading comes: a reading books most of them in one."""

Charge = tuple[QuotaMirror, LoggedCharge, float]
"""A mirror, what was charged to it at send, and what is reserved in it until the answer ends."""


class ChargeOwner(Protocol):
    """The owner of a charge; `answered` says that the provider has taken it in."""

    @property
    def answered(self) -> bool: ...


UNANSWERED, ANSWERED = LoggedCharge(0.0, 0, 0.0), LoggedCharge(0.0, 0, 0.0)
"""Unknown owners: unless answered, a charge stays in doubt until an answer confirms it."""

ANSWERED.answered = True
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
    return [([], _sum(costs), latest[2], latest[3], ANSWERED), *rest]


def _sum(costs: list[Cost]) -> Cost:
    """Return the cost of all these calls."""
    return Cost(*map(sum, zip(*costs, strict=True)))._replace(weight=UNIT_WEIGHT.weight)


READ_CALLS = 64
READ_ROOM_SHARE = 1 / 16
READ_SECONDS = 1.0
"""While all quotas are ample, an answer is read after `READ_CALLS` calls, `READ_ROOM_SHARE` of the room or
`READ_SECONDS`, whichever comes first. Reading one costs the time of five calls."""


UNSEEN_ROOM_SHARE = 1 / 4
"""Share of the room that calls may take within a sampling budget while no mirror is looked at. Derived: the sum of a
cost is about four times what one quota is charged."""


class SamplingBudget:
    """Lasts for `calls` more calls, for `units` of the sums of their costs, and until `until` (monotonic seconds).

    Each of these calls is of at most `requests`. The budget is `full` if the room of no quota shortened it.
    """

    __slots__ = ("calls", "full", "requests", "units", "until")

    def __init__(self) -> None:
        self.calls, self.units, self.until = 0, MAX_AMOUNT, 0.0
        self.requests = 0.0
        self.full = False

    def renew(self, charged: Iterable[tuple[QuotaMirror, int, bool]], cost: Cost, now: float) -> None:
        """Begin again with a call that is read; later ones cost as much, and are `charged` to these mirrors."""
        calls, self.units, self.requests = float(READ_CALLS), INFINITY, cost.requests
        for mirror, place, reserves in charged:
            amount = sum(charge_of(mirror, cost, place, reserves))
            if amount > 0.0:
                calls = min(calls, READ_ROOM_SHARE * mirror.room / amount)
            if place:
                # A quota of tokens: no charge exceeds the sum of its cost.
                self.units = min(self.units, UNSEEN_ROOM_SHARE * mirror.room)
        self.calls, self.until, self.full = int(calls), now + READ_SECONDS, calls >= READ_CALLS


EXPLORED_WAIT_SECONDS = 1.0
"""Seconds of a wait from which on one call tests another charging rule, and first seconds between such calls; they
double up to the usual window of a quota. Less costs refusals where the table is right."""

AMPLE_LIMIT_SHARE = 0.5
"""Share of every limit above which it does not matter when the next reading comes."""


class QuotaCharges:
    """The mirrors of one key by name, from the first reading that names each.

    Those that are `unproven` were known by an earlier run, and no answer has named them yet. `ample` says that more
    than half of each quota is left: from an answer that is read until charges use up a mirror's `room`. Until then
    charges wait on a tab, and are booked together before a mirror is read. Within a sampling budget they are not even
    counted before anything looks at a mirror. `asks` says that the answer to the call charged last is to be read.
    """

    __slots__ = (
        "_charged",
        "_clock",
        "_counted",
        "_explore_at",
        "_explore_wait",
        "_explorer",
        "_explores",
        "_follows",
        "_mirrors",
        "_patience",
        "_portion",
        "_priced",
        "_tab",
        "_whole",
        "ample",
        "asks",
        "default_window",
        "provenance",
        "unproven",
    )

    def __init__(self, default_window: float = DEFAULT_WINDOW_SECONDS) -> None:
        self.default_window = default_window
        self.ample = False
        self.asks = True
        self._follows = False
        self._explorer, self._explore_wait, self._explore_at = 0, EXPLORED_WAIT_SECONDS, 0.0
        self._clock = ServerClock()
        self._explores = False
        self._patience = SamplingBudget()
        self._mirrors: dict[str, QuotaMirror] = {}
        self._charged: list[tuple[QuotaMirror, int, bool]] = []
        self.provenance: dict[str, QuotaProvenance] = {}
        self.unproven: set[str] = set()
        self._tab: list[Tabbed] = []
        # Charges of the tab that are counted in the mirrors' rooms.
        self._counted = 0
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
        self._count()
        return self._mirrors

    @property
    def follows_ends(self) -> bool:
        """Return whether the ends of calls show how a quota charges, and so little is left that it matters soon."""
        return self._follows and not (self.ample and self._patience.full)

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """Return when every quota has room for `cost`, and the name of the last one to have it."""
        if self.ample:
            self._count()
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
        if latest > now + EXPLORED_WAIT_SECONDS and latest > self._explore_at and not self._explorer:
            tested_at = self._may_explore_at(cost, now)
            if tested_at < latest:
                latest = tested_at
                self._explores = True
        return latest, binding if latest > now else ""

    def _amounts_of(self, cost: Cost) -> list[tuple[QuotaMirror, float, float]]:
        """Return each quota of a call, with its charge and reserve, which are kept for the charge that follows."""
        known, amounts = self._priced
        if known is not cost and known != cost:
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
        self._explore_wait = min(DEFAULT_WINDOW_SECONDS, 2.0 * self._explore_wait) if refused else EXPLORED_WAIT_SECONDS
        self._explore_at = now + self._explore_wait

    def take(self, permit: Any) -> bool:
        """Charge a permit within the sampling budget, without a look at a mirror; else return False without effect."""
        budget, cost, at = self._patience, permit.cost, permit.sent_at
        left = budget.units - sum(cost)
        # A price may be nonsense, which the full path mends. A comparison with NaN is False.
        if not left >= 0.0 <= min(cost):
            return False
        if not self.ample:
            return not self._charged
        if budget.calls <= 1 or at >= budget.until or cost.requests > budget.requests:
            return False
        budget.calls -= 1
        budget.units = left
        self._tab.append((permit.charges, cost, permit.order, at, permit))
        permit.informs = False
        return True

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
        self._count()
        if not self.ample or len(self._tab) >= MAX_TAB_CHARGES:
            self._book()
        patience = self._patience
        patience.calls -= 1
        self.asks = patience.calls <= 0 or now >= patience.until
        if self.asks:
            patience.renew(self._charged, cost, now)
        return charges

    def _count(self) -> None:
        """Count in the mirrors what was put on the tab without a look at them."""
        costs = [entry[1] for entry in self._tab[self._counted :]]
        if not costs:
            return
        self._counted = len(self._tab)
        for mirror, amount, reserve in self._amounts_of(costs[0] if len(costs) == 1 else _sum(costs)):
            mirror.used += amount if amount < mirror.limit else mirror.limit
            room = mirror.room = mirror.room - (amount + reserve)
            if room < 0.0:
                self.ample = False

    def _exceeds(self, cost: Cost, now: float) -> bool:
        """Return whether a call goes out although the charging rules in force hold it back."""
        for mirror, place, reserves in self._charged:
            if mirror.charging is not None and not mirror.charging.settled:
                ready = mirror.ready_at(*charge_of(mirror, cost, place, reserves), now)
                if ready > now + EXPLORED_WAIT_SECONDS and mirror.stated_by(ready, now) > now:
                    return True
        return False

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

    def book(self) -> None:
        if self._tab:
            self._book()

    def _book(self, confirmed: int = 0) -> None:
        """Charge what is on the tab, before a reading of the call numbered `confirmed` is taken in."""
        self._count()
        tab, self._tab, self._counted = self._tab, [], 0
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
            mirror.room = mirror.level(now) - AMPLE_LIMIT_SHARE * mirror.limit
            if mirror.room <= 0.0 or (mirror.charging is not None and mirror.charging.produces):
                # What is reserved for output is given back at the end of each call, so each end is booked.
                self.ample = False
                return

    def _spend(self, mirror: QuotaMirror, amount: float) -> None:
        mirror.room -= amount
        if mirror.room < 0.0:
            self.ample = False

    @property
    def known(self) -> bool:
        return bool(self._mirrors)
