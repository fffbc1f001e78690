"""Players that know of a hidden limit its kind and the distribution of its numbers, but not the numbers.

They know more than a client can, which has to find out the kind as well. `filtering` plays a bucket: it keeps some
buckets of the family that explain all outcomes so far (a particle filter), and sends when a share of them admits.
`filling` plays slots, and `searching` a rolling window. Each is one rule, not the best one, so a better player may
exist: what they reach can be reached, and what they miss may still be possible.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from functools import cache

from bench.hidden import HIDDEN
from bench.players import SOONEST, Books, Played
from bench.scenarios import Row

DRAWN_FROM = 1000
"""Seed of the first bucket of the prior. Chosen: the bench reports far smaller seeds."""

DRAWN = 1152
"""Buckets of the prior. Raising it takes longer."""

KEPT = 48
"""Buckets from whose third on others are drawn near the remaining ones. Raising it takes longer."""

TRIES = 4
"""Draws for each bucket that is missing, at each outcome that leaves too few. Raising it takes longer."""

SPREAD = 0.001
"""Least standard deviation of the logarithm of a drawn rate. Raising it draws more buckets in vain."""

SHARE = 0.85
"""Share of the buckets that admit a call when it goes. Over 8 even seeds of `tiny-bucket`: 0.6 takes 1.000 of the ideal
with 0.080 refusals a call, 0.85 1.013 with 0.046, and 0.95 1.165 with 0.009."""

SHORTEST = 1.0
"""Seconds of the shortest rolling window of the family."""

LONGER = 1.5
"""Ratio of two waits for the first boundary of a rolling window. Raising it finds the boundary later."""

NARROW = 0.01
"""Share of its period to which a rolling window's boundary is looked for. Raising it costs time, and less refusals."""


class Candidate:
    """A bucket that may be the provider's: its numbers, its content, and how many outcomes it does not explain."""

    __slots__ = ("_at", "_content", "burst", "misfits", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate, self.burst = rate, burst
        self._content, self._at, self.misfits = burst, 0.0, 0

    def take(self, at: float, admitted: bool) -> None:
        """Take in the outcome of a call."""
        content = min(self.burst, self._content + self.rate * (at - self._at))
        self._at = at
        self.misfits += (content >= 1.0 - 1e-9) is not admitted
        self._content = max(0.0, content - 1.0) if admitted else min(content, 1.0 - 1e-6)

    def ready(self, now: float) -> float:
        """Return when it admits a call."""
        return max(now, self._at + (1.0 - self._content) / self.rate)


@cache
def prior(name: str) -> tuple[tuple[float, float], ...]:
    """Return rate and content of buckets that are drawn as those of the family are."""
    (family,) = (each for each in HIDDEN if each.name == name)
    limits = (family.row(DRAWN_FROM + seed).scenario.limiters[0] for seed in range(DRAWN))
    return tuple((each.limit / each.window, each.limit if each.burst is None else each.burst) for each in limits)


class Filter:
    """Candidates of one run, all of which explain the outcomes so far equally well."""

    def __init__(self, name: str, seed: int) -> None:
        self._random = random.Random(f"bayes {name} {seed}")
        self._outcomes: list[tuple[float, bool]] = []
        self._kept = [Candidate(*each) for each in prior(name)]
        self._most = max(each.burst for each in self._kept)

    def take(self, at: float, admitted: bool) -> None:
        """Take in an outcome: keep those that explain most, and draw others near to them."""
        self._outcomes.append((at, admitted))
        for each in self._kept:
            each.take(at, admitted)
        least = min(each.misfits for each in self._kept)
        self._kept = [each for each in self._kept if each.misfits == least]
        if len(self._kept) < KEPT // 3:
            self._draw(least)

    def ready(self, now: float, share: float) -> float:
        """Return when so large a share of the candidates admits a call."""
        at = sorted(each.ready(now) for each in self._kept)
        return at[min(len(at) - 1, int(share * len(at)))]

    def _draw(self, least: int) -> None:
        near = list(self._kept)
        rates = [each.rate for each in near]
        spread = max(SPREAD, math.log(max(rates) / min(rates)) / 2.0)
        for _ in range(TRIES * (KEPT - len(near))):
            model = self._random.choice(near)
            rate = model.rate * math.exp(self._random.gauss(0.0, spread))
            burst = min(self._most, max(1.0, model.burst + self._random.choice((-1, 0, 0, 0, 1))))
            drawn = Candidate(rate, burst)
            for at, admitted in self._outcomes:
                drawn.take(at, admitted)
                if drawn.misfits > least:
                    break
            else:
                self._kept.append(drawn)


def filtering(row: Row, seed: int) -> Played:
    """Play a hidden bucket of a family."""
    books, left = Books(row, seed), deque(row.calls(seed))
    known, now = Filter(row.name, seed), 0.0
    while left:
        at = known.ready(now, SHARE)
        admitted = books.send(left[0], at)
        known.take(at, admitted)
        if admitted:
            left.popleft()
        now = at + SOONEST
    return books.played()


def filling(row: Row, seed: int) -> Played:
    """Play slots: one call after the other until one is refused, which shows their number."""
    books, left = Books(row, seed), deque(row.calls(seed))
    now, slots = 0.0, math.inf
    running: list[float] = []
    while left:
        while running and running[0] + SOONEST <= now:
            heapq.heappop(running)
        if len(running) >= slots:
            now = running[0] + SOONEST
        elif books.send(left[0], now):
            left.popleft()
            heapq.heappush(running, books.newest_end)
            now += 0.0 if slots < math.inf else SOONEST
        else:
            slots, now = len(running), now + SOONEST
    return books.played()


def searching(row: Row, seed: int) -> Played:
    """Play a rolling window: what is admitted first shows its size, and ever longer waits show its period.

    From then on the first call of each round halves the interval in which the period lies, while that is wide.
    """
    books, left = Books(row, seed), deque(row.calls(seed))
    sent: list[float] = []

    def go(at: float) -> bool:
        if not left or not books.send(left[0], at):
            return False
        left.popleft()
        sent.append(at)
        return True

    now = 0.0
    while go(now):
        now += SOONEST
    size, low, high = len(sent), now - sent[0], math.inf
    wait = max(SHORTEST, low)
    while left:
        first = sent[-size]
        if high < math.inf:
            wait = 0.5 * (low + high) if high - low > NARROW * high else high
        now = max(now, first + wait)
        if go(now):
            high = min(high, now - first)
            for _ in range(size - 1):
                now = max(now, sent[-size] + high)
                if not go(now):
                    break
            continue
        low, now = now - first, now + SOONEST
        wait = low * LONGER
    return books.played()
