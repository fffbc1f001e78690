"""Odds that refusals come at random, and not from a bucket whose rate may change at any attempt.

Such a bucket excludes next to nothing, so its outcomes have probabilities. Each attempt is taken in once, so evidence
outlasts it. The odds are bounded: a cause that begins later is believed soon.
"""

from __future__ import annotations

from math import exp, log

from tidegate.core.rate_meter import Burst
from tidegate.core.values import INFINITY

REMEMBERED_ATTEMPTS = 96
"""Attempts that are kept; of answers twice as many. More keep evidence from before a change."""

EXCLUDED_OUTCOME_CHANCE = 0.02
"""Probability of an outcome that a model excludes."""

RATE_RATIO = 1.2
BUCKET_RATES = (0.0, *(RATE_RATIO**power / 60.0 for power in range(60)))
"""Rates of a bucket whose rate may change, in calls a second: 0, and up to 800. The bounds of a level grow at a rate
and at the next one, so no rate is between two. Measured over 36 drawn buckets, 24 of which change: no odds rose above
0."""

RATE_CHANGE_LOG_ODDS = 5.0
"""Logarithm of the odds against a change of the rate at an attempt. Chosen: one change in 150 attempts."""

MAX_RANDOM_SHARE = 0.4
"""Greatest share of attempts that are refused at random: the row `stray-refusals` refuses 0.3."""

PRIOR_CALLS = 10
"""Attempts of which one is refused at random, before any is known: fewer take random clusters for a bucket."""

BELIEVED_LOG_ODDS = 3.0
PROVEN_LOG_ODDS = 4.0 * BELIEVED_LOG_ODDS
MAX_CHANCE_LOG_ODDS = 2.0 * BELIEVED_LOG_ODDS
"""Logarithm of the odds at which another cause is believed (`BELIEVED_LOG_ODDS`) and proven (`PROVEN_LOG_ODDS`), and of
the best odds of chance where nothing makes chance likely (`MAX_CHANCE_LOG_ODDS`)."""


class SentAttempt:
    """One attempt: the instant at which it was sent in monotonic seconds, and the number in flight with it.

    `travel` is the seconds until its refusal arrived.
    """

    __slots__ = ("in_flight", "order", "refused", "sent_at", "travel")

    def __init__(self, order: int, in_flight: int, sent_at: float) -> None:
        self.order = order
        self.in_flight = in_flight
        self.sent_at = sent_at
        self.refused = False
        self.travel = 0.0


class ChanceOdds:
    """Logarithm of the `odds` that refusals come at random, and not from a bucket whose rate may change.

    `newest` is the order of the last attempt that was taken in. The levels begin at the first refusal. `prior` are
    the odds before any outcome. `stray` is the probability that the newest refusal has another cause, even if there is
    such a bucket.
    """

    __slots__ = ("_at", "_calls", "_contents", "_levels", "_refused", "newest", "odds", "prior", "stray")

    def __init__(self, run: Burst, alone: bool) -> None:
        self._contents = [
            float(REMEMBERED_ATTEMPTS) if alone else max(1.0, run.calls - rate * run.seconds) for rate in BUCKET_RATES
        ]
        # For each rate: how much less likely it is than the best one, and the bounds of its level.
        self._levels: list[tuple[float, float, float]] = []
        self._at = 0.0
        self._refused, self._calls = 1.0, float(PRIOR_CALLS)
        self.newest, self.odds, self.prior, self.stray = -1, 0.0, 0.0, 0.0

    def expect(self, prior: float) -> None:
        """Replace the odds that were known before any outcome."""
        self.odds = min(max(MAX_CHANCE_LOG_ODDS, prior), self.odds + prior - self.prior)
        self.prior = prior

    def skip(self, attempt: SentAttempt) -> None:
        """Take in that an attempt went whose outcome does not matter: the levels are not known any more."""
        self.newest = attempt.order
        self._levels = [
            (less, 0.0, content) for (less, _, _), content in zip(self._levels, self._contents, strict=False)
        ]

    def add(self, attempt: SentAttempt) -> None:
        """Take in an attempt; they come in their order."""
        self.newest = attempt.order
        # An attempt of another process may be heard after later ones.
        seconds, self._at = max(0.0, attempt.sent_at - self._at), max(self._at, attempt.sent_at)
        if not self._levels:
            if attempt.refused:
                self._levels = [(0.0, 0.0, 1.0)] * len(BUCKET_RATES)
            return
        changed = min(self._levels)
        changed = (RATE_CHANGE_LOG_ODDS, changed[1], changed[2])
        levels, full = [], []
        for rate, content, level in zip(BUCKET_RATES, self._contents, self._levels, strict=True):
            less, low, high = level if level[0] < RATE_CHANGE_LOG_ODDS else changed
            low = min(content, low + rate * seconds)
            high = min(content, high + RATE_RATIO * rate * seconds)
            admits = 1.0 if low >= 1.0 else 0.0 if high <= 1.0 else (high - 1.0) / (high - low)
            if attempt.refused:
                less -= log(max(EXCLUDED_OUTCOME_CHANCE, 1.0 - admits))
                full.append(less if admits >= 1.0 - EXCLUDED_OUTCOME_CHANCE else INFINITY)
                low, high = (low, min(high, 1.0)) if low < 1.0 else (0.0, high)
            elif admits > EXCLUDED_OUTCOME_CHANCE:
                less -= log((1.0 - EXCLUDED_OUTCOME_CHANCE) * admits)
                low, high = max(low, 1.0) - 1.0, high - 1.0
            else:
                less -= log(EXCLUDED_OUTCOME_CHANCE)
                low, high = 0.0, min(content - 1.0, 1.0)
            levels.append((less, low, high))
        best = min(levels)[0]
        if full:
            self.stray = sum(exp(best - less) for less in full) / sum(exp(best - less) for less, _, _ in levels)
        self._levels = [(less - best, low, high) for less, low, high in levels]
        share = min(MAX_RANDOM_SHARE, self._refused / self._calls)
        odds = self.odds + best + log(share if attempt.refused else 1.0 - share)
        self.odds = max(-PROVEN_LOG_ODDS - BELIEVED_LOG_ODDS, min(max(MAX_CHANCE_LOG_ODDS, self.prior), odds))
        self._refused, self._calls = self._refused + attempt.refused, self._calls + 1.0
        if self._calls > REMEMBERED_ATTEMPTS:
            self._refused, self._calls = 0.5 * self._refused, 0.5 * self._calls
