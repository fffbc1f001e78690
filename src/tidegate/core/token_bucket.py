"""Token bucket that mirrors a provider's continuously refilling quota, kept exact by its own headers.

Theory of operation. The provider holds `limit` units that refill at `limit / window` a second. Response k says that
`remaining` units were left when request k was admitted. Everything charged after k is known here, so

    level(now) = remaining_k + rate · (now − sent_k) − (charges after k)

Request k is the most recently *sent* request that has been answered. Answers arrive seconds later and out of order, and
an answer to an older request knows less. The first answer counts from its arrival, because a starting program does not
know when its requests really left. The copy is clamped twice, because a full bucket wastes its refill. A second level
(`_ceiling`) starts full and is clamped at every step; the true level is never above either.

`remaining` may be rounded to thousands, and says zero for a debt. Once the window is known, the time until full tells
the level, too (`WindowInference.levels`). Both together bound it, and what was expected is taken within the bounds.

A charge is made when a request is sent. Output that the provider charges as it is generated is reserved at send and
charged when the answer ends. Charges are numbered by `order`, one count for sends and settles.

`SafetyMargin` keeps a reserve, so that inexact knowledge does not overdraw the bucket.

The module has no clock and no randomness, and decides about nothing but this one quota.
"""

from __future__ import annotations

from functools import partial

from tidegate.core.backoff import WHOLE_HINT_SECONDS, rounding_of
from tidegate.core.charging import NOISE_LIMIT_SHARE, RULES
from tidegate.core.quota_base import OVERTAKEN_SECONDS, LoggedCharge, QuotaMirror
from tidegate.core.refill_meter import BUSY_UNITS, RefillCheck, RefillTrial
from tidegate.core.values import INFINITY, MAX_AMOUNT, PAST_WEIGHT_SHARE, Cost, QuotaReading, Refill
from tidegate.core.window_bounds import DEFAULT_WINDOW_SECONDS, overdraws, usable_window
from tidegate.core.window_inference import WindowInference

MAX_ESTIMATE_RATIO = 2.0
"""Most times that a charge exceeds its estimate. Chosen: one by characters may be half of the charge."""

LONGER_WAIT_RATIO = 2.0
"""Times the seconds in which a bucket refills a call: a refusal that states a longer wait is from no bucket."""

MARGIN_REQUESTS = 0.5
MARGIN_SHARE = 0.002
MARGIN_SECONDS = 0.25
"""Margin against jitter between two sends: half a request, or a quarter of a second's refill if less; 0.2 % of a token
limit."""

LONG_WINDOW_SECONDS = 3600.0
"""Seconds of a window above which a refusal is final for its call (a day's), so nothing is spared there."""

MAX_UNSURE_REQUESTS = 1.0
UNSURE_SECONDS = 0.5
"""Margin in requests for the unknown instant of the anchor: within the answer's delay over the quickest one, and within
this time. It protects a client that is slow to send (busy loops, new connections)."""

SLACK_SHARE = 0.005
MAX_SLACK_SHARE = 0.05
"""Further margin after each unexpected refusal: one request, or 0.5 % of a token limit; 5 % in all."""

TOLERATED_REFUSALS_PER_CALL = 0.01
"""Acceptable refusals a call. Each answer takes this share of a step back, so the margin settles at that number.
Source: bound of the drawn families with one user."""


class SafetyMargin:
    """The margin of one bucket, of `requests` or of tokens."""

    __slots__ = ("_quickest", "_requests", "_slack", "_step", "_unsure")

    def __init__(self, requests: bool) -> None:
        self._requests = requests
        self._slack = self._step = 0.0
        self._quickest = INFINITY
        self._unsure = 0.0

    def kept(self, limit: float, rate: float, window: float) -> float:
        if not self._requests:
            base = limit * MARGIN_SHARE
        elif window <= LONG_WINDOW_SECONDS:
            base = min(MARGIN_REQUESTS, MARGIN_SECONDS * rate)
        else:
            base = MARGIN_REQUESTS
        return base + self._slack + self._unsure

    def refused(self, limit: float) -> None:
        """Widen the margin: the provider refused although there seemed to be room."""
        self._step = 1.0 if self._requests else limit * SLACK_SHARE
        self._slack = min(self._slack + self._step, limit * MAX_SLACK_SHARE)

    def explained(self) -> None:
        """Narrow the margin: another cause explains the refusals."""
        self._slack = 0.0

    def anchored(self, rate: float, window: float, took: float) -> None:
        """Take in a new anchor, whose answer came after `took` seconds."""
        if self._slack:
            self._slack = max(0.0, self._slack - TOLERATED_REFUSALS_PER_CALL * self._step)
        if self._requests:
            if took < self._quickest:
                self._quickest = took
            longest = UNSURE_SECONDS if window <= LONG_WINDOW_SECONDS else INFINITY
            late = took - self._quickest
            unsure = rate * (late if late < longest else longest)
            self._unsure = unsure if unsure < MAX_UNSURE_REQUESTS else MAX_UNSURE_REQUESTS


FIRST_REORDER_SECONDS = 0.2
REORDER_BOUNDS_SECONDS = (0.01, 0.5)
REORDER_DECAY = 0.95
"""Seconds within which requests may overtake each other on their way (new connections): learned from what is seen."""

DRAG_MEMORY_SECONDS = 0.3
DRAG_NOISE_SHARE = 0.1
MAX_DRAG_SHARE = 0.9
DRAG_EXPECTED_SECONDS = 2.0
"""Seconds after an answer for which others are expected to take the same share of the refill. The share is a running
mean over `DRAG_MEMORY_SECONDS` seconds, less `DRAG_NOISE_SHARE` of the rate, which is also the most that one answer
counts."""

KNOWN_END_ROUND_TRIPS = 2.0
"""Quickest refusal round trips within which the provider may know an ended call before its answer is here: the
two after which an attempt without a refusal counts as admitted."""

MAX_FRACTIONAL_REQUESTS = 100.0
"""Greatest limit in requests that is read to the fraction: the part that `remaining` leaves out is seconds of it."""

FOLD_WINDOWS = 2.0
"""Windows after which a charge that no header has confirmed is folded into the anchor: by then it has refilled."""


class TokenBucketMirror(QuotaMirror):
    """The mirror of one continuously refilled quota of one key; `rate` is in units that come back per second."""

    __slots__ = (
        "_anchor_at",
        "_anchor_least",
        "_anchor_level",
        "_anchor_remaining",
        "_anchor_stated",
        "_brim",
        "_ceiling",
        "_ceiling_at",
        "_charged_at",
        "_drag",
        "_drag_seen",
        "_held",
        "_hidden",
        "_margin",
        "_overflows",
        "_refill_check",
        "_reorder",
        "_round_trip",
        "_waits_until",
        "period",
        "rate",
        "trial",
        "window",
    )

    window: float

    def __init__(self, reading: QuotaReading, now: float, default_window: float = DEFAULT_WINDOW_SECONDS) -> None:
        super().__init__(reading, now)
        self.limit = min(MAX_AMOUNT, self.limit)
        self.window = usable_window(reading.window, default_window)
        self.rate = self.limit / self.window
        self.period = WindowInference(self.window)
        self._brim = self.limit
        self._anchor_at = now
        self._anchor_level = self._anchor_least = self.limit
        self._ceiling = self.limit
        self._ceiling_at = now
        self._waits_until = -INFINITY
        self._anchor_remaining = self._anchor_stated = self.limit
        self._hidden = False
        self._margin = SafetyMargin(self.unit == "requests")
        self.trial = RefillTrial()
        self._charged_at = -INFINITY
        self._refill_check = RefillCheck()
        self._reorder = FIRST_REORDER_SECONDS
        self._held = 0.0
        self._round_trip = OVERTAKEN_SECONDS
        self._drag = self._drag_seen = 0.0
        # What came back did not fit: the quota holds no more than the most that it was seen to hold.
        self._overflows = False

    @property
    def turned(self) -> Refill | None:
        return self.period.turned

    def level(self, now: float) -> float:
        rate = self.rate
        since = now - self._anchor_at
        anchored = self._anchor_level + rate * since
        if self._drag:
            # The rate may have fallen since the share of others was measured.
            anchored -= min(self._drag, MAX_DRAG_SHARE * rate) * min(since, DRAG_EXPECTED_SECONDS)
        anchored -= self.ledger.total
        ceiling = self._ceiling + rate * (now - self._ceiling_at)
        if ceiling > self._brim:
            ceiling = self._brim
        level = anchored if anchored < ceiling else ceiling
        if self.reserved:
            level -= max(0.0, self.reserved - rate * self._held)
        return level

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        if amount + reserve <= 0.0:
            return now
        need = min(amount + reserve + self.margin, self._brim)
        if (self._overflows or self.period.capacity is not None) and self.trial.peak < need:
            # The units that are to stay were never there.
            need = max(amount + reserve, self.trial.peak)
        missing = need - self.level(now)
        if missing <= 1e-9 * self.limit:
            return now
        slow = DRAG_EXPECTED_SECONDS - (now - self._anchor_at)
        net = self.rate - min(self._drag, MAX_DRAG_SHARE * self.rate)
        if slow <= 0.0 or net <= 0.0:
            return now + missing / self.rate
        return now + (missing / net if missing <= net * slow else slow + (missing - net * slow) / self.rate)

    @property
    def margin(self) -> float:
        return self._margin.kept(self.limit, self.rate, self.window)

    def debit(self, amount: float, reserve: float, order: int, now: float) -> LoggedCharge:
        debit = LoggedCharge(amount, order, now)
        self._advance(now)
        if self._ceiling <= self.limit / 2.0 + BUSY_UNITS and self.rate * (now - self._charged_at) <= BUSY_UNITS:
            debit.waited = self._has_just_room(amount, now)
        self._charged_at = now
        self._ceiling -= debit.amount
        if self._refill_check.since < INFINITY:
            self._refill_check.charged(debit.amount, self.rate, self.limit, now)
        entries = self.ledger.entries
        if entries and entries[0].charged_at < now - FOLD_WINDOWS * self.window:
            self._fold(now)
        self.ledger.add(debit)
        self.reserved += reserve
        return debit

    def _has_just_room(self, amount: float, now: float) -> bool:
        """Return whether the level has little more than a call needs, so that the call has waited for it."""
        need = min(amount + self.margin, self._brim)
        return amount > 0.0 and self.level(now) - need <= max(0.0, self.trial.peak - need) / 2.0 + 1e-9 * self.limit

    def refilled_in(self, amount: float) -> float:
        return amount / self.rate

    def anchored_level(self, now: float) -> float:
        return self._anchor_level + self.rate * (now - self._anchor_at) - self.ledger.total

    def amend(self, debit: LoggedCharge, amount: float) -> None:
        self._ceiling -= self.ledger.amend(debit, amount)

    def settle_by_rules(
        self, reserve: float, cost: Cost, output: float | None, table: float, order: int, sent_at: float, now: float
    ) -> float:
        if reserve:
            self._held += (1.0 - PAST_WEIGHT_SHARE) * (now - sent_at - self._held)
        self._advance(now)
        amount = super().settle_by_rules(reserve, cost, output, table, order, sent_at, now)
        self._ceiling -= amount
        return amount

    def settle(self, reserve: float, produced: float, order: int, sent_at: float, now: float) -> None:
        self.reserved = max(0.0, self.reserved - reserve)
        if reserve:
            self._held += (1.0 - PAST_WEIGHT_SHARE) * (now - sent_at - self._held)
        if produced:
            self._advance(now)
            self._ceiling -= produced
            self.ledger.add(LoggedCharge(produced, order, now))

    def refund(self, debit: LoggedCharge, reserve: float) -> None:
        self._refill_check.refunded(debit.amount, debit.charged_at)
        self.trial.stop()
        self._ceiling -= self.ledger.amend(debit, 0.0)
        if debit.by_rule and self.charging is not None:
            if not debit.live:
                self.charging.refund(debit.by_rule)
            debit.by_rule = ()
        self.reserved = max(0.0, self.reserved - reserve)

    def on_refused(self, sent_at: float, now: float, retry_after: float | None, amount: float = INFINITY) -> None:
        """Keep one more unit in hand for a while: the provider refused although this mirror saw room."""
        self._round_trip = min(self._round_trip, KNOWN_END_ROUND_TRIPS * (now - sent_at))
        if retry_after:
            if self.limit <= MAX_FRACTIONAL_REQUESTS and self.unit == "requests" and self._anchor_remaining <= 0.0:
                self._read_wait(retry_after)
            if self.charging is None or not self.charging.returns:
                self._bound_by_wait(retry_after, sent_at, now, amount)
        shortest = self._shortest_window(sent_at, amount) if self.unit == "requests" else 0.0
        proven = self.trial.refused(sent_at, now, self.window)
        if proven:
            self._take_window(self.period.bound(proven, proven))
            return
        if shortest:
            before = self.window
            shortest = self.trial.within_stated(shortest, before)
            if self.period.is_bounded:
                window = self.period.bound(self.trial.lengthen(shortest, before, now), INFINITY)
            else:
                window = self.period.refuse(before, shortest)
            self._take_window(window)
            if window != before:
                self._margin.explained()
                return
        if self._brim < self.limit:
            return  # its own size refuses what the limit would bear: more in hand would only wait for room it never has
        if sent_at < self.since:
            return  # nothing was known yet
        if sent_at == self._anchor_at:
            # Its reading was rounded: less than the call needed was left.
            self._anchor_level = max(self._anchor_least, min(self._anchor_level, amount))
        self._margin.refused(self.limit)

    def _shortest_window(self, sent_at: float, amount: float) -> float:
        """Return the shortest window that a refusal allows; 0 where the inferred one has no room for the call."""
        later = sum(debit.amount for debit in self.ledger.entries if debit.charged_at > sent_at)
        return self._refill_check.refused(amount, later, self.rate, self.limit, sent_at)

    def _bound_by_wait(self, wait: float, sent_at: float, now: float, amount: float) -> None:
        """Believe only that the refused call has room after the wait, where units come back one by one.

        A bucket has room sooner, and a fixed window is full then; here only a later answer shows what else is back.
        """
        rounding = rounding_of(wait)
        bucket_wait = LONGER_WAIT_RATIO * amount / self.rate
        if wait - rounding <= bucket_wait or not now + wait + WHOLE_HINT_SECONDS + rounding < self.stated_at < INFINITY:
            return
        self._advance(now)
        later = sum(debit.amount for debit in self.ledger.entries if debit.charged_at >= sent_at)
        self._ceiling = min(self._ceiling, amount + self.rate * (rounding - wait) - later)
        self._waits_until = now + wait

    def observe(
        self, reading: QuotaReading, order: int, sent_at: float, now: float, debit: LoggedCharge | None
    ) -> None:
        if reading.remaining is None:
            return
        self._observe_size(reading, sent_at, now, debit is None or debit.amount > 0.0)
        # Written out: `min` and `max` take longer than all else here, and every answer that is read comes here.
        level = self.limit if self.limit < reading.remaining else reading.remaining
        if not level > -self.limit:
            level = -self.limit
        whole, stands = level, False
        if self.limit <= MAX_FRACTIONAL_REQUESTS and self.unit == "requests":
            level = self.period.whole_level(reading, level)
        least = most = level
        if self.unit != "requests":
            half = min(reading.quantum, self.limit) / 2.0 if reading.quantum > 1.0 else 0.0
            overdrawn = overdraws(reading, reading.remaining)
            least, most = self.period.levels(
                reading, -self.limit if overdrawn else level - half, level + half, sent_at, now
            )
            if least > -self.limit:
                level = (least + most) / 2.0
        if debit is not None and self.unit == "requests":
            held = whole + debit.amount
            stands = held == self.trial.peak
            if held > self.trial.peak:
                self.trial.peak, self._overflows = held, False
            if debit.waited:
                self._try_window(reading, held, debit, sent_at, now)
        if order <= self._anchor_order:
            self._overtaken(level, sent_at, now, debit)
            return
        first, changed = self._anchor_order < 0, False
        low, _ = REORDER_BOUNDS_SECONDS
        reorder = self._reorder * REORDER_DECAY
        self._reorder = reorder if reorder > low else low
        seen = self._anchor_level + self.rate * (sent_at - self._anchor_at) - level
        if not seen > 0.0:
            seen = 0.0
        if self.unit != "requests":
            # What is charged is an estimate here, and may be worth no more than half.
            seen = MAX_ESTIMATE_RATIO * seen + most - least
        confirmed, since = -self.ledger.dropped, sent_at - self._anchor_at
        fell = -INFINITY
        if self.charging is not None and self.charging.returns:
            # What came back hides what was taken; but the charges are bounds and no estimates, so the fall is exact.
            seen, fell = INFINITY, self._anchor_level + self.rate * since - most
        elif self.charging is not None and self.charging.exact:
            fell = self._anchor_level + self.rate * since - most
        self.ledger.drop_through(order, sent_at, self._reorder, seen, fell)
        confirmed += self.ledger.dropped
        if self.charging is not None and self.charging.returns:
            self._leave_out_returns(sent_at)
        refilled = self._anchor_level + self.rate * since
        if self.unit == "requests":
            if since > 0.0 and not first and self.period.capacity is None:
                taken = min(self._brim, refilled) - confirmed - level
                if stands and taken > 0.0:
                    # It held as much as ever, so what came back did not fit, and nobody took it.
                    taken, self._overflows = 0.0, True
                self._see_others(taken / since, since)
        else:
            refused = debit is not None and not debit.by_rule
            changed = not first and self._learn_charging(least, level, most, since, refused, order, sent_at, now)
        self._anchor_stated = level
        if most > least and not first:
            # Rounded to the nearest: what was expected is closer, within the rounding.
            expected = min(self._brim, refilled) - confirmed
            level = max(-self.limit, min(most, max(least, expected)))
        if least <= -self.limit:
            self._anchor_stated, self._hidden = level, level <= 0.0
        self._margin.anchored(self.rate, self.window, now - sent_at)
        self._anchor_order, self._anchor_at, self._anchor_level = order, sent_at, level
        self._anchor_remaining, self._anchor_least = level, least
        if changed:
            self.take_rule()
        self._advance(now)
        seen_level = self._seen_level(level, sent_at, now)
        if first or (seen_level > self._ceiling and (sent_at >= self._waits_until or (debit and debit.amount > 0.0))):
            self._ceiling = seen_level

    def _try_window(self, reading: QuotaReading, held: float, debit: LoggedCharge, sent_at: float, now: float) -> None:
        """Take the window that follows from what a call met that waited for room: the quota `held` so much."""
        stated = self.period.stated_by_one(reading, debit.amount, now - sent_at)
        window = self.trial.found(held, debit.mark, self.limit, stated, sent_at, now, self.window)
        if window > self.window:
            self.period.ignore_resets()
        if window != self.window:
            self._take_window(self.period.bound(window, self.trial.proven))

    def _seen_level(self, level: float, sent_at: float, now: float) -> float:
        """Return what is left now, after `level` was left at `sent_at`: a full quota loses its refill.

        At a key of several processes the last charges of others are not known, so the most may be lost.
        """
        refilled = level + self.rate * (now - sent_at)
        if refilled <= self._brim or not self.period.is_bounded:
            return min(refilled, self._brim) - self.ledger.total
        at = sent_at
        for debit in self.ledger.entries:
            if debit.charged_at > at:
                level = min(self._brim, level + self.rate * (debit.charged_at - at))
                at = debit.charged_at
            level -= debit.amount
        return min(self._brim, level + self.rate * (now - at))

    def _leave_out_returns(self, sent_at: float) -> None:
        """Take the anchor to have seen what came back within a round trip of its request: that is not counted again."""
        for debit in self.ledger.entries:
            if debit.charged_at > sent_at + self._round_trip:
                return
            if debit.amount < 0.0:
                self.ledger.amend(debit, 0.0)

    def _learn_charging(
        self,
        least: float,
        level: float,
        most: float,
        since: float,
        refused: bool,
        order: int,
        sent_at: float,
        now: float,
    ) -> bool:
        """Compare the charging rules by the fall since the last anchor; return whether another holds."""
        model, dropped = self.charging, self.ledger.take_dropped()
        if model is None:
            return False
        before = self._anchor_stated
        hidden = least <= -self.limit
        low = high = before + self.rate * since - (most if hidden and not refused else level)
        if max(before + self.rate * since, level) >= (1.0 - NOISE_LIMIT_SHARE) * self.limit:
            low = -INFINITY  # a full quota loses its refill
        elif hidden or self._hidden:
            # What is charged at the end of an answer may leave less than nothing, and headers show zero.
            low, high = (low, INFINITY) if not self._hidden else (-INFINITY, high if not hidden else INFINITY)
        self._hidden = False
        if not dropped:
            dropped = [0.0] * len(RULES[self.unit])
        find_unsure = partial(self.ledger.unsure, order, sent_at, len(dropped))
        if refused:
            outstanding = [debit.by_rule for debit in self.ledger.entries]
            return model.emptied(low, high, dropped, outstanding, self.limit, now, find_unsure)
        rounding = 1.0 if hidden else max(1.0, most - least)
        return model.fell(low, high, dropped, rounding, self.limit, now, find_unsure)

    def _overtaken(self, level: float, sent_at: float, now: float, debit: LoggedCharge | None) -> None:
        # The level that an older request found shows whether it was admitted after the anchor, which then has not seen
        # its charge, or before it: then a charge that was kept in doubt goes.
        if debit is None:
            return
        if level >= self._anchor_remaining and debit.live and debit.order <= self._anchor_order:
            known = self.ledger.amend(debit, 0.0)
            if self.period.capacity is None:  # else the ceiling counts what the little that it holds can bear
                self._ceiling -= known
            return
        if self.unit != "requests":
            return
        # It was admitted after the anchor, and has seen all answered charges, because their answers found more. Other
        # charges stay in doubt until they are answered.
        pending = sum(each.amount for each in self.ledger.entries if not each.answered)
        theirs = level + self.rate * (now - sent_at) - pending
        ours = self._anchor_level + self.rate * (now - self._anchor_at) - self.ledger.total
        if theirs < ours - 0.5:
            for each in self.ledger.entries:
                if each.answered:
                    self.ledger.amend(each, 0.0)
            low, high = REORDER_BOUNDS_SECONDS
            self._reorder = min(high, max(self._reorder, self._anchor_at - sent_at + low))
            self._anchor_remaining = level
            self._anchor_level = level + self.rate * (self._anchor_at - sent_at)

    def _observe_size(self, reading: QuotaReading, sent_at: float, now: float, charged: bool) -> None:
        if reading.limit is not None and reading.limit != self.limit:
            self.limit = min(MAX_AMOUNT, max(reading.limit, 1.0))
            self.period.forget()
            self.trial.forget()
        elif reading.limit is None:
            self.limit = min(MAX_AMOUNT, max(self.limit, reading.remaining or 0.0))
        self._take_window(self.period.window(reading, sent_at, self.window, now - sent_at, charged))

    def _take_window(self, window: float) -> None:
        self.window = window
        self.rate = self.limit / window
        if self.period.capacity is not None:
            self._brim = self.period.capacity
        else:
            self._brim = min(self.limit, self.trial.peak) if self.period.is_bounded else self.limit

    def _read_wait(self, wait: float) -> None:
        # The wait for the next unit shows its present fraction, and the window together with the time until full.
        if wait != int(wait):
            self.window = self.period.waits(self.limit, wait, self.window)
            self.rate = self.limit / self.window
            self._anchor_level = max(self._anchor_level, min(1.0, 1.0 - wait * self.rate))

    def _see_others(self, taken: float, since: float) -> None:
        # What others took, in units a second, shows as less left than came back; one answer alone proves nothing.
        rate = self.rate
        if not taken < rate:
            taken = rate
        elif not taken > -rate:
            taken = -rate
        weight = since / (since + DRAG_MEMORY_SECONDS)
        self._drag_seen += (weight if weight < DRAG_NOISE_SHARE else DRAG_NOISE_SHARE) * (taken - self._drag_seen)
        drag, most = self._drag_seen - DRAG_NOISE_SHARE * rate, MAX_DRAG_SHARE * rate
        if not drag > 0.0:
            drag = 0.0
        self._drag = drag if drag < most else most

    def _advance(self, now: float) -> None:
        if now > self._ceiling_at:
            ceiling = self._ceiling + self.rate * (now - self._ceiling_at)
            self._ceiling = ceiling if ceiling < self._brim else self._brim
            self._ceiling_at = now

    def _fold(self, now: float) -> None:
        # Without fresh headers the ledger would only grow: move the anchor past the oldest charges.
        horizon = now - FOLD_WINDOWS * self.window
        entries = self.ledger.entries
        while entries and entries[0].charged_at < horizon:
            oldest = entries[0]
            refilled = self._anchor_level + self.rate * (oldest.charged_at - self._anchor_at)
            self._anchor_level = min(self.limit, refilled) - oldest.amount
            self._anchor_at = oldest.charged_at
            self._anchor_order = oldest.order
            self.ledger.drop_through(self._anchor_order)
