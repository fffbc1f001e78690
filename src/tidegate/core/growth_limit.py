"""Model of a limit on growth: a period admits at most a multiple of the calls of the period before.

Theory of operation. A provider that limits growth (slope) admits the `least` calls in any period, and more where the
period before it had more: `growth` times as many. So the calls that it admits are a geometric climb. `GrowthLimit`
learns the three numbers from outcomes:

- *Least*: the first run of calls, up to the first refusal.
- *Period*: after the run single attempts go until one is admitted. By then the first call of the run has left the
  period. So the period lies between the last attempt that was refused and the one that was admitted. Several periods of
  that interval are kept. Each outcome may contradict some of them, and the one that explains most outcomes holds.
- *Growth*: a call beyond what is known to be allowed is a trial. Where it is admitted, the growth is at least the ratio
  of its period to the one before, else it is less. Trials go up to the middle of both bounds, in batches, each twice as
  large as the one before.

Calls arrive later than they were sent, for instance when connections are made. So an outcome counts only as far as it
proves the same for an arrival `LATE_GRACES` graces later.

All instants and durations are in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log

from tidegate.core.chance_odds import BELIEVED_LOG_ODDS, EXCLUDED_OUTCOME_CHANCE, PROVEN_LOG_ODDS
from tidegate.core.rate_meter import Burst
from tidegate.core.values import INFINITY
from tidegate.core.window_bounds import NATURAL_WINDOWS_SECONDS

INTERVAL_PERIODS = 4
"""Periods of the interval that are kept beside a natural one: more of them take longer. Measured (16 drawn limits that
no refusal names): at 2 and at 8 the slower half takes longer, because no period is near the true one or all are
alike."""

LATE_GRACES = 2.0
"""Graces by which calls may arrive late. Measured: 1 took delays for a smaller growth, at 0.5 refusals a call (drawn
providers)."""

MAX_PERIOD_CALLS = 1 << 13
"""Calls of two periods from which on the model is given up, because of its memory and checkpoints."""

PERIOD_TICK_SECONDS = 1e-6
"""Seconds after its period at which a call has left it: sums of instants are not exact."""

Sends = list[tuple[float, int]]
"""Instants and numbers of calls, in their order."""


class GrowthPeriod:
    """A period that may be the provider's, with the bounds of the growth under it.

    `misfits` counts the outcomes that contradict others.
    """

    __slots__ = ("high", "low", "misfits", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.low, self.high = 1.0, INFINITY
        self.misfits = 0

    def counts(self, sends: Sends, place: int, at: float) -> tuple[int, int]:
        """Return how many of the first `place` calls are in the period that ends at `at`, and in the one before."""
        begun = bisect_right(sends, (at - self.seconds, INFINITY), 0, place)
        return place - begun, begun - bisect_right(sends, (at - 2.0 * self.seconds, INFINITY), 0, begun)

    def admitted(self, lately: int, before: int) -> None:
        """Take in that a period admitted `lately` calls, more than the least, after one with `before`."""
        if not before:
            return
        self.low = max(self.low, lately / before)
        if self.low > self.high:
            self.misfits += 1
            self.high = INFINITY

    def refused(self, lately: int, before: int, least: int) -> None:
        """Take in that a period refused the last of `lately` calls, after one with `before`."""
        if lately <= least:
            self.misfits += 1
        elif before:
            growth = max(1.0, lately / before)
            if growth <= self.low:
                self.misfits += 1
                self.low = min(self.low, max(1.0, (lately - 1) / before))
            self.high = min(self.high, growth)


def _misfits(period: GrowthPeriod) -> int:
    return period.misfits


class GrowthLimit:
    """Limit on growth of one key, whose first refusal, of a call sent at `refused_at`, came after the `run`.

    `least` is the number of calls that each period admits. `rate` is the pace of what is known to be allowed now, in
    calls a second.
    """

    __slots__ = (
        "_batch",
        "_begun_at",
        "_best",
        "_heard_at",
        "_left",
        "_periods",
        "_refused_at",
        "_sends",
        "_shortest",
        "_tried",
        "_tried_at",
        "least",
        "rate",
    )

    def __init__(self, run: Burst, refused_at: float) -> None:
        self.least, self.rate = run.calls, 0.0
        # The run, until the period is known.
        self._begun_at, self._refused_at = refused_at - run.seconds, refused_at
        self._shortest = 0.0
        # Admitted calls of the last two periods, and those whose refusal may come.
        self._sends: Sends = []
        self._periods: list[GrowthPeriod] = []
        self._best = GrowthPeriod(INFINITY)
        # Calls of the present batch, those that are left of it, and when the newest call went that proves something.
        self._batch = self._left = 0
        self._tried_at = -INFINITY
        # Calls whose admission proves something, and is not known yet.
        self._tried: Sends = []
        # When the calls have been heard of that went before the newest refusal was known.
        self._heard_at = -INFINITY

    @property
    def known(self) -> bool:
        """Return whether the period is known; until then, attempts go alone."""
        return bool(self._periods)

    @property
    def period(self) -> float:
        """Return the period that explains most outcomes, in seconds."""
        return self._best.seconds

    @property
    def refuted(self) -> bool:
        """Return whether no period admits more calls than the one before: there is no limit on growth."""
        return self._best.high <= 1.0

    @property
    def overgrown(self) -> bool:
        return len(self._sends) > MAX_PERIOD_CALLS

    def late(self) -> None:
        """Take in the refusal of a call that went before the first refusal was known."""
        if not self.known:
            self.least = max(1, self.least - 1)

    def silent(self, sent_at: float) -> None:
        """Take in that a single attempt was refused: no call of the run has left the period."""
        self._shortest = sent_at - self._begun_at

    def found(self, sent_at: float, number: int) -> bool:
        """Take in that a single attempt was admitted; return whether that shows the period.

        It does not after a silence shorter than the run, whose calls may then leave the period at any time.
        """
        run = self._refused_at - self._begun_at
        if not self._shortest or sent_at - self._refused_at < run or self.least > MAX_PERIOD_CALLS:
            return False
        longest = sent_at - self._begun_at
        width = (longest - self._shortest) / INTERVAL_PERIODS
        natural = [each for each in NATURAL_WINDOWS_SECONDS if self._shortest < each <= longest]
        parts = [self._shortest + part * width for part in range(INTERVAL_PERIODS, 0, -1)]
        self._periods = [GrowthPeriod(each) for each in (*natural, *parts)]
        self._best = self._periods[0]
        self._sends = [(self._begun_at + place * run / self.least, -1) for place in range(self.least)]
        self._sends.append((sent_at, number))
        return True

    def sent(self, now: float, number: int) -> None:
        sends, tried = self._sends, self._tried
        sends.append((now, number))
        self._left -= 1
        lately, before = self._best.counts(sends, len(sends), now)
        if lately > max(self.least, self._best.low * before) or len(self._periods) > 1:
            # Of calls that go at the same instant, the last one proves most.
            if tried and tried[-1][0] == now:
                tried.pop()
            tried.append((now, number))
            self._tried_at = now

    def next_at(self, now: float, grace: float) -> float:
        """Return when the next call may go; nothing is heard of an admitted call for `grace` seconds."""
        self._settle(now, grace)
        now = max(now, self._heard_at)
        best, sends = self._best, self._sends
        lately, before = best.counts(sends, len(sends), now)
        sure = max(self.least, best.low * before)
        self.rate = sure / best.seconds
        if lately + 1 <= sure:
            return now
        # A trial proves something only if it is within the middle of the bounds even where it arrives late.
        late = LATE_GRACES * grace
        for at in (now, now + late) if best.high == INFINITY else (now,):
            lately, before = best.counts(sends, len(sends), at - late)
            middle = (best.low + best.high) / 2.0 * before if before else 0.0
            if lately + 1 <= middle and self._tells(at + late):
                break
        else:
            self._batch = self._left = 0
            return self._opens(now)
        if self._left > 0 and at == now:
            return now
        self._left = self._batch = max(1, 2 * self._batch)
        return min(max(at, self._tried_at + grace), self._opens(now))

    def _tells(self, at: float) -> bool:
        """Return whether a trial that is admitted as late as `at` raises the least growth."""
        lately, before = self._best.counts(self._sends, len(self._sends), at)
        return lately + 1 > max(self.least, self._best.low * before)

    def _opens(self, now: float) -> float:
        """Return when enough calls have left the period."""
        sends, period, least, low = self._sends, self._best.seconds, self.least, self._best.low
        for place in range(bisect_right(sends, (now - period, INFINITY)), len(sends)):
            at = sends[place][0] + period + PERIOD_TICK_SECONDS
            gone = bisect_right(sends, (at - 2.0 * period, INFINITY))
            if len(sends) - place <= max(least, low * (place + 1 - gone)):
                return max(now, at)
        return now + period

    def refused(self, number: int, sent_at: float, now: float, grace: float) -> None:
        sends = self._sends
        place = next((place for place in range(len(sends) - 1, -1, -1) if sends[place][1] == number), -1)
        if place < 0:
            return
        for each in self._periods:
            each.refused(*each.counts(sends, place + 1, sent_at - LATE_GRACES * grace), self.least)
        self._choose()
        self._remove(place)
        self._batch = self._left = 0
        self._tried_at = now
        self._heard_at = now + (now - sent_at)

    def withdrawn(self, sent_at: float) -> None:
        place = bisect_right(self._sends, (sent_at, INFINITY)) - 1
        if place >= 0 and self._sends[place][0] == sent_at:
            self._remove(place)

    def _remove(self, place: int) -> None:
        sends, tried = self._sends, self._tried
        removed = sends.pop(place)
        for index, each in enumerate(tried):
            if each == removed:
                # Of the other calls of the same instant, the last one proves most.
                same = place > 0 and sends[place - 1][0] == removed[0]
                tried[index : index + 1] = [sends[place - 1]] if same else []
                return

    def _choose(self) -> None:
        """Change to the period that explains most outcomes; a natural one is left only for a decisively better one."""
        fits = min(self._periods, key=_misfits)
        least = PROVEN_LOG_ODDS if self._best.seconds in NATURAL_WINDOWS_SECONDS else BELIEVED_LOG_ODDS
        if (self._best.misfits - fits.misfits) * -log(EXCLUDED_OUTCOME_CHANCE) > least:
            self._best = fits

    def _settle(self, now: float, grace: float) -> None:
        """Take in the calls that were admitted by now."""
        sends, tried = self._sends, self._tried
        late = LATE_GRACES * grace
        while tried and tried[0][0] + late <= now:
            sent_at, number = tried.pop(0)
            place = bisect_right(sends, (sent_at, number))
            for each in self._periods:
                lately, before = each.counts(sends, place, sent_at + late)
                if lately > max(self.least, each.low * before):
                    each.admitted(lately, before)
            self._choose()
            gone = bisect_right(sends, (now - 2.0 * max(each.seconds for each in self._periods), INFINITY))
            if 2 * gone > len(sends):
                del sends[:gone]
