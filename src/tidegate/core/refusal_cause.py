"""Model comparison that names the cause of unexplained refusals: a number of slots, or a rate.

Theory of operation. From the first refusal on, `RefusalCause` keeps the last attempts: when each was sent, how many
were in flight then, and whether it was refused. It also keeps the instants of the last answers. Two models predict
which attempts are refused:

- *Slots*: N calls run at once, so an attempt is refused where N run already. An answer on its way to the client has
  left its slot. So the provider ran as many calls as were in flight, except for the answers that the client received
  within a refusal round trip after the attempt was sent.
- *Bucket*: units come back at a rate, up to a content. The content is known from the calls before the first refusal.
  Several rates are tried, and the best one counts. The level is an interval: a refusal shows that it was below one
  unit, an admitted call that it was not.

`log_odds` compares the likelihoods of both. `random_odds` compares the bucket with a third model, under which a share
of all attempts is refused at random, whatever the pace. No outcome is impossible under slots or a bucket: an attempt
may have another cause, with the probability `STRAY`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import log

from tidegate.core.rate_meter import Burst
from tidegate.core.values import INFINITY

REMEMBERED = 96
"""Attempts that are kept, and twice as many answers. Raising it keeps evidence from before a change for longer."""

STRAY = 0.02
"""Probability of an outcome that a model excludes. Raising it needs more attempts for the same odds."""

JITTER = 0.25
"""Share of a round trip by which travel times may differ. Raising it makes attempts sent close to an answer prove less.
"""

TRIED_RATES = 16
RATE_STEP = 1.3
SLOWER = 0.5
"""Rates that are tried for the bucket, and the ratio of each to the one before; the first is this share of the mean.
Raising the number lets faster rates explain refusals; raising the ratio makes the best fit worse."""

EVIDENCE = 3.0
DECISIVE = 4.0 * EVIDENCE
"""Logarithm of the odds from which another cause is believed, and from which it is proven. Raising them keeps a wrong
cause for longer."""


class SentAttempt:
    """One attempt: the instant at which it was sent in monotonic seconds, and the number in flight with it."""

    __slots__ = ("in_flight", "order", "refused", "sent_at")

    def __init__(self, order: int, in_flight: int, sent_at: float) -> None:
        self.order = order
        self.in_flight = in_flight
        self.sent_at = sent_at
        self.refused = False


class RefusalCause:
    """Last attempts of one key. The first refusal came after `run`.

    Where it came with nothing else in flight (`alone`), the run does not show the content of a bucket.
    """

    __slots__ = ("_alone", "_answers", "_attempts", "_fitted", "_fitted_at", "_round_trip", "_run")

    def __init__(self, run: Burst, alone: bool = False) -> None:
        self._run = run
        self._alone = alone
        # Both kinds of odds need the same fits at each refusal.
        self._fitted: tuple[list[int], list[float]] = ([], [])
        self._fitted_at = -INFINITY
        self._round_trip = INFINITY
        self._attempts: deque[SentAttempt] = deque(maxlen=REMEMBERED)
        self._answers: deque[float] = deque(maxlen=2 * REMEMBERED)

    def sent(self, order: int, in_flight: int, now: float) -> None:
        """Record an attempt; attempts come in their order."""
        self._attempts.append(SentAttempt(order, in_flight, now))
        self._fitted_at = -INFINITY

    def answered(self, now: float) -> None:
        """Record an answer, which freed a slot."""
        self._answers.append(now)

    def refused(self, order: int, sent_at: float, now: float) -> None:
        """Record the refusal of what was sent at `sent_at`."""
        self._round_trip = min(self._round_trip, now - sent_at)
        self._fitted_at = -INFINITY
        for attempt in reversed(self._attempts):
            if attempt.order <= order:
                attempt.refused = attempt.order == order
                return

    def withdrawn(self, order: int) -> None:
        """Forget an attempt that was never sent."""
        self._fitted_at = -INFINITY
        self._attempts = deque((each for each in self._attempts if each.order != order), REMEMBERED)

    def slots(self, now: float) -> int:
        """Return the number of slots that explains most outcomes."""
        return self._best_slots(self._known(now))[1]

    def log_odds(self, now: float) -> float:
        """Return the logarithm of the odds that a bucket refused, and not the slots; 0 where no refusal is kept.

        An attempt without a refusal counts as admitted after two refusal round trips.
        """
        known = self._known(now)
        if not any(each.refused for each in known):
            return 0.0
        return (self._best_slots(known)[0] - self._bucket_misfits(known, now)) * -log(STRAY)

    def random_odds(self, now: float) -> float:
        """Return the logarithm of the odds that a share of all attempts is refused at random, and no bucket refuses."""
        known = self._known(now)
        refused = sum(each.refused for each in known)
        if not refused or refused == len(known):
            return -INFINITY
        share = refused / len(known)
        random = refused * log(share) + (len(known) - refused) * log(1.0 - share)
        misfits = self._bucket_misfits(known, now)
        return random - misfits * log(STRAY) - (len(known) - misfits) * log(1.0 - STRAY)

    def _known(self, now: float) -> list[SentAttempt]:
        settled = now - 2.0 * self._round_trip
        return [each for each in self._attempts if each.refused or each.sent_at <= settled]

    def _best_slots(self, known: list[SentAttempt]) -> tuple[int, int]:
        """Return the fewest outcomes that slots exclude, and their number, which explains the newest refusal."""
        answers = list(self._answers)
        most = max(1, next((each.in_flight for each in reversed(known) if each.refused), 2) - 1)
        excluded = [0] * (most + 1)
        for each in known:
            before = bisect_right(answers, each.sent_at)
            least = (
                each.in_flight - 1 - bisect_right(answers, each.sent_at + (1.0 + JITTER) * self._round_trip) + before
            )
            running = (
                each.in_flight - 1 - bisect_right(answers, each.sent_at + (1.0 - JITTER) * self._round_trip) + before
            )
            # An admitted attempt excludes as many slots as ran already, a refused one all numbers above that.
            low, high = (running + 1, most) if each.refused else (0, max(0, least))
            for number in range(low, min(high, most) + 1):
                excluded[number] += 1
        return min((excluded[number], number) for number in range(1, most + 1))

    def rate(self, now: float) -> float:
        """Return the slowest rate in calls a second of a bucket that explains nearly all outcomes; 0: not known."""
        known = self._known(now)
        if not any(each.refused for each in known):
            return 0.0
        misfits, rates = self._fits(known, now)
        return next(rate for rate, count in zip(rates, misfits, strict=True) if count <= min(misfits) + 1)

    def _bucket_misfits(self, known: list[SentAttempt], now: float) -> int:
        """Return the fewest outcomes that a bucket does not explain."""
        return min(self._fits(known, now)[0])

    def _fits(self, known: list[SentAttempt], now: float) -> tuple[list[int], list[float]]:
        """Return the outcomes that buckets of several rates do not explain, and these rates."""
        if self._fitted_at == now:
            return self._fitted
        # Before the first refusal that is still kept, the level is not known.
        known = known[next(place for place, each in enumerate(known) if each.refused) :]
        seconds = max(known[-1].sent_at - known[0].sent_at, 1e-3)
        slowest = SLOWER * max(1, sum(not each.refused for each in known)) / seconds
        rates = [slowest * RATE_STEP**step for step in range(TRIED_RATES)]
        self._fitted, self._fitted_at = ([self._misfits(known, rate) for rate in rates], rates), now
        return self._fitted

    def _misfits(self, known: list[SentAttempt], rate: float) -> int:
        content = INFINITY if self._alone else max(1.0, self._run.calls - rate * self._run.seconds)
        least, most, at, misfits = 0.0, 1.0, known[0].sent_at, 0
        for each in known:
            back, at = rate * (each.sent_at - at), each.sent_at
            least, most = min(content, least + back), min(content, most + back)
            if each.refused:
                if least >= 1.0:
                    misfits, least = misfits + 1, 0.0
                most = min(most, 1.0)
            elif most >= 1.0:
                least, most = max(least, 1.0) - 1.0, most - 1.0
            else:
                misfits, least, most = misfits + 1, 0.0, content - 1.0
        return misfits
