"""Base class of quota mirrors (local copies of a quota), and the log of charges that no answer has confirmed.

Theory of operation. A mirror's anchor says how many units were left when one request was admitted. Charges before that
request are in the anchor, and later ones are in the `ChargeLog`, oldest first. So an answer drops the charges up to its
request. It keeps those that it may have overtaken on their way, because the provider had not seen them.

An amount that is not finite, or absurd, would make the sum useless for good. The log books it as zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence

from tidegate.core.charging import RULES, ChargingModel, Unsure, at_admission, at_end
from tidegate.core.values import INFINITY, MAX_AMOUNT, Cost, QuotaReading, Refill

UNSEEN_REQUESTS = 0.5
MAX_UNDERWAY_SECONDS = 5.0
"""Requests by which an answer may show more room than expected without having overtaken any, and most seconds of a
request on its way (openai: DEFAULT_TIMEOUT connect=5.0)."""


OVERTAKEN_SECONDS = 0.1
"""Seconds within which requests may overtake each other, so that an answer may have seen either."""

RETURN_GUARD_SECONDS = 0.02
"""Seconds waited past the return of units, so that a request does not arrive just before it."""

RESIDUE_UNITS = 1e-6
"""Units of reserves below which all calls have ended: sums of floats leave a residue of their rounding."""


class LoggedCharge:
    """One charge against one quota.

    `mark` is the sum of all charges ever made up to this one, also those taken back; `answered` says that its call has
    been. `waited` says that its call went as soon as it had room. `by_rule` has the amount by each charging rule of the
    quota, where there are several.
    """

    __slots__ = ("amount", "answered", "by_rule", "charged_at", "live", "mark", "order", "waited")

    def __init__(self, amount: float, order: int, charged_at: float) -> None:
        self.amount = amount
        self.order = order
        self.charged_at = charged_at
        self.mark = 0.0
        self.answered = self.waited = False
        self.live = True
        self.by_rule: tuple[float, ...] = ()


class ChargeLog:
    """Charges newer than the anchor, oldest first, with their sum; every operation is amortised O(1)."""

    __slots__ = ("_recent", "charged", "dropped", "dropped_by_rule", "entries", "total")

    def __init__(self) -> None:
        self.entries: deque[LoggedCharge] = deque()
        self.total = 0.0
        self.charged = self.dropped = 0.0
        # Since `take_dropped`, by each charging rule.
        self.dropped_by_rule: list[float] = []
        # Forgotten charges with several rules that a request sent about then may have overtaken.
        self._recent: deque[LoggedCharge] = deque()

    def add(self, debit: LoggedCharge) -> None:
        """Book a charge, the newest of all."""
        if not -MAX_AMOUNT <= debit.amount <= MAX_AMOUNT:
            debit.amount = 0.0
        self.entries.append(debit)
        self.total += debit.amount
        self.charged += debit.amount
        debit.mark = self.charged

    def amend(self, debit: LoggedCharge, amount: float) -> float:
        """Set a charge to `amount`; return by how much the sum changed (0 once the anchor has passed it)."""
        if not debit.live or not -MAX_AMOUNT <= amount <= MAX_AMOUNT:
            return 0.0
        change = amount - debit.amount
        debit.amount = amount
        self.total += change
        return change

    def drop_through(
        self,
        order: int,
        sent_at: float = INFINITY,
        reorder: float = -INFINITY,
        seen: float = INFINITY,
        fell: float = -INFINITY,
    ) -> None:
        """Forget the charges numbered up to `order`.

        An unanswered one stays where the request sent at `sent_at` may have overtaken it: if made less than `reorder`
        seconds before, and not more than `seen` units had been charged by then. What the level `fell` by had been
        charged.
        """
        entries = self.entries
        due: list[LoggedCharge] = []
        while entries and entries[0].order <= order:
            due.append(entries.popleft())
        stays: Collection[LoggedCharge] = ()
        for debit in due:
            if not debit.answered:
                pending = [each for each in due if not each.answered]
                stays = _overtaken(due, pending, sent_at, reorder, seen, fell)
                break
        for debit in due:
            if debit not in stays:
                self._forget(debit)
        if stays:
            entries.extendleft(debit for debit in reversed(due) if debit in stays)
        if not entries:
            self.total = 0.0

    def drop_before(self, instant: float) -> None:
        """Forget the charges made before `instant` (monotonic seconds)."""
        while self.entries and self.entries[0].charged_at < instant:
            self._forget(self.entries.popleft())
        if not self.entries:
            self.total = 0.0

    def take_dropped(self) -> list[float]:
        """Return the sums of the charges forgotten since the last call, by each charging rule; empty without rules."""
        dropped = self.dropped_by_rule
        if dropped:
            self.dropped_by_rule = []
        return dropped

    def _forget(self, debit: LoggedCharge) -> None:
        debit.live = False
        self.total -= debit.amount
        self.dropped += debit.amount
        if debit.by_rule:
            before = self.dropped_by_rule
            if before:
                self.dropped_by_rule = [total + each for total, each in zip(before, debit.by_rule, strict=True)]
            else:
                self.dropped_by_rule = list(debit.by_rule)
            recent = self._recent
            while recent and recent[0].charged_at < debit.charged_at - OVERTAKEN_SECONDS:
                recent.popleft()
            recent.append(debit)

    def unsure(self, order: int, sent_at: float, rules: int) -> Unsure:
        """Return the charges of which the answer to the request numbered `order` may have seen others than expected."""
        above, below = [0.0] * rules, [0.0] * rules
        for debit in self.entries:
            if debit.by_rule and debit.charged_at <= sent_at + OVERTAKEN_SECONDS:
                for rule, amount in enumerate(debit.by_rule):
                    (above if amount > 0.0 else below)[rule] += abs(amount)
        for debit in self._recent:
            if debit.by_rule and debit.order != order and debit.charged_at >= sent_at - OVERTAKEN_SECONDS:
                for rule, amount in enumerate(debit.by_rule):
                    (below if amount > 0.0 else above)[rule] += abs(amount)
        return Unsure(above, below)


def _overtaken(
    due: list[LoggedCharge], pending: list[LoggedCharge], sent_at: float, reorder: float, seen: float, fell: float
) -> Collection[LoggedCharge]:
    """Return those of `pending`, the unanswered of `due`, that the provider may not have charged yet."""
    stays = {debit for debit in pending if debit.charged_at >= sent_at - reorder}
    gone = sum(debit.amount for debit in due if debit not in stays)
    for debit in pending:
        if debit in stays and gone + debit.amount <= fell:
            stays.remove(debit)
            gone += debit.amount
    unseen = gone - seen
    for debit in reversed(pending):
        if unseen <= UNSEEN_REQUESTS or debit.charged_at < sent_at - MAX_UNDERWAY_SECONDS:
            break
        if debit not in stays:
            stays.add(debit)
            unseen -= debit.amount
    return stays


class QuotaMirror(ABC):
    """A local copy of one quota: `limit` of `unit`, with the charges since the last answer in `ledger`.

    `reserved` is held for charges at the end of answers. `room` is the units that may be charged before less than half
    of the limit is left. `used` units were charged by this process since the instant `since`, when `stood` units were
    left; the first reading included `found` of them. `stated_at` is when the quota is full, or the next call fits, by
    the provider's newest statement; infinity without one. `charging` is the model of its charging rule, None where
    there is only one.
    """

    __slots__ = (
        "_anchor_order",
        "_stated_order",
        "charging",
        "found",
        "ledger",
        "limit",
        "name",
        "reserved",
        "room",
        "since",
        "stated_at",
        "stood",
        "unit",
        "used",
    )

    def __init__(self, reading: QuotaReading, now: float) -> None:
        self.name = reading.name
        self.unit = reading.unit
        self.limit = max(reading.limit if reading.limit is not None else reading.remaining or 1.0, 1.0)
        self.room = 0.0
        self.used, self.since, self.stood = 0.0, now, reading.remaining or 0.0
        self.found = 0.0
        self.ledger = ChargeLog()
        self.reserved = 0.0
        self._anchor_order = self._stated_order = -1
        self.stated_at = INFINITY
        self.charging = ChargingModel(reading.unit, now) if reading.unit in RULES else None

    @property
    @abstractmethod
    def window(self) -> float:
        """Seconds that the quota counts over."""

    @property
    def declared(self) -> float | None:
        """Return the window where the provider states it, or where it is certain."""
        return self.window

    @property
    def turned(self) -> Refill | None:
        """Return how the quota comes back, where that differs from this mirror's kind."""
        return None

    @property
    def is_predictable(self) -> bool:
        """Return whether the instant of the next free unit is known."""
        return True

    @property
    def margin(self) -> float:
        """Return the units that are kept in hand: a call goes when the level exceeds its charge by as much."""
        return 0.0

    def book(self, debit: LoggedCharge, cost: Cost, place: int) -> None:
        """Note in a charge what it is by each charging rule."""
        model = self.charging
        if model is None or not cost.input_estimate:
            return
        debit.by_rule = at_admission(self.unit, cost, cost[place])

    def may_fit_at(self, cost: Cost, place: int, now: float) -> float:
        """Return when a call fits by another charging rule that is in doubt; infinity without one."""
        model = self.charging
        if model is None or model.settled or not cost.input_estimate:
            return INFINITY
        room = self.anchored_level(now) + self.ledger.total
        amounts = at_admission(self.unit, cost, cost[place])
        # A fall that refutes the rule in force, too, has another cause: other clients.
        excluded = {model.rule, *(model.refuted if model.rule not in model.refuted else ())}
        # Summed by column, as a queue that waits asks for each charge again and again.
        rules = len(amounts)
        by_rule = [debit.by_rule or (debit.amount,) * rules for debit in self.ledger.entries]
        charged = map(sum, zip(*by_rule, strict=True)) if by_rule else (0.0,) * rules
        missing = [
            min(amount, self.limit) - min(self.limit, room - total)
            for rule, (amount, total) in enumerate(zip(amounts, charged, strict=True))
            if rule not in excluded
        ]
        return now + self.refilled_in(max(0.0, min(missing))) if missing else INFINITY

    def refilled_in(self, amount: float) -> float:
        """Return the seconds in which `amount` comes back; infinity where it comes at a boundary."""
        return INFINITY if amount else 0.0

    def anchored_level(self, now: float) -> float:
        """Return the units left by the last answer, less all charges since; other limits are not applied."""
        return self.level(now)

    def begin_charging(self, own: Cost, others: Sequence[Cost], place: int, quantum: float, now: float) -> None:
        """Check the charging rules by the first answer, to `own` with `others` in flight, rounded to `quantum`."""
        if self.charging is None or not own.input_estimate:
            return
        mine = at_admission(self.unit, own, own[place])
        sent = list(mine)
        for cost in others:
            sent = [total + each for total, each in zip(sent, at_admission(self.unit, cost, cost[place]), strict=True)]
        self.charging.first(self.limit - self.stood, mine, sent, quantum, now)

    def take_rule(self) -> None:
        """Charge what no answer has confirmed by the rule that now holds."""
        model = self.charging
        assert model is not None, "only a model changes its rule"
        for debit in self.ledger.entries:
            if debit.by_rule:
                self.amend(debit, debit.by_rule[model.rule])
        self.reserved = 0.0

    def amend(self, debit: LoggedCharge, amount: float) -> None:
        self.ledger.amend(debit, amount)

    def state(self, order: int, until: float) -> None:
        """Take note of what the answer to the request numbered `order` states: the quota is back at `until`."""
        if order >= self._stated_order:
            # A refusal may name both its reset and a time to wait: the earlier one holds.
            self.stated_at = min(self.stated_at, until) if order == self._stated_order else until
            self._stated_order = order

    def stated_by(self, ready: float, now: float) -> float:
        """Return `ready`, but no later than stated, where nothing was charged since the newest statement.

        So a wrong charge or window cannot hold calls back for longer.
        """
        if ready <= self.stated_at or self._anchor_order > self._stated_order or self.reserved > RESIDUE_UNITS:
            return ready
        if any(each.amount for each in self.ledger.entries if not each.answered or each.order > self._stated_order):
            return ready
        return max(now, self.stated_at)

    @abstractmethod
    def level(self, now: float) -> float:
        """Return the units that may be spent at `now`, by the provider's count; negative where reserves exceed them."""

    def resets_at(self, now: float) -> float | None:
        """Return when the whole limit is back at once; None where it comes back bit by bit."""
        return None

    @abstractmethod
    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """Return the earliest instant at which `amount` and `reserve` fit; more than the limit fits alone."""

    @abstractmethod
    def debit(self, amount: float, reserve: float, order: int, now: float) -> LoggedCharge:
        """Charge `amount` now and hold `reserve` until `settle`; return the charge, to be amended or refunded."""

    def settle(self, reserve: float, produced: float, order: int, sent_at: float, now: float) -> None:
        """Turn the reserve of the call sent at `sent_at` into a charge of what it `produced`; below zero: returned."""
        self.reserved = max(0.0, self.reserved - reserve)
        if produced:
            self._charge(LoggedCharge(produced, order, now))

    def settle_by_rules(
        self, reserve: float, cost: Cost, output: float | None, table: float, order: int, sent_at: float, now: float
    ) -> float:
        """Do the same as `settle` where several charging rules are possible; return the charge (below zero: returned).

        `output` is in tokens, None where unknown; `table` is the charge by the provider's table.
        """
        assert self.charging is not None, "only quotas of tokens have several rules"
        by_rule = at_end(self.unit, cost, output, table)
        amount = by_rule[self.charging.rule]
        self.reserved = max(0.0, self.reserved - reserve)
        debit = LoggedCharge(amount, order, now)
        debit.by_rule = by_rule
        debit.answered = True  # the provider charged it before its answer ended
        if any(by_rule):
            self._charge(debit)
        return amount

    @abstractmethod
    def refund(self, debit: LoggedCharge, reserve: float) -> None:
        """Take back the charge of a request that the provider refused: it was not debited there."""

    @abstractmethod
    def on_refused(self, sent_at: float, now: float, retry_after: float | None, amount: float = INFINITY) -> None:
        """Record a refusal of a call of `amount` units sent at `sent_at`; `retry_after` is in seconds, if stated."""

    @abstractmethod
    def observe(
        self, reading: QuotaReading, order: int, sent_at: float, now: float, debit: LoggedCharge | None
    ) -> None:
        """Anchor the copy at the answer to the request numbered `order`, sent at `sent_at`, charged `debit`."""

    def _charge(self, debit: LoggedCharge) -> None:
        self.ledger.add(debit)
