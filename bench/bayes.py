"""Players that know of a hidden limit its kind and the distribution of its numbers, but not the numbers.

They know more than a client can, which has to find out the kind as well. `filtering` plays a bucket: it keeps all
buckets that the family may draw and that explain all outcomes so far, and sends when a share of them admits. `filling`
plays slots, `searching` a rolling window, `sizing` a fixed one, and `steepening` a limit on growth. Each is one rule,
not the best one, so a better player may exist: what they reach can be reached, and what they miss may still be
possible.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import pairwise

from bench.hidden import BURSTS, FLIPS, RATES
from bench.players import SOONEST, Books, Played
from bench.scenarios import Row

FOREIGN, FOREIGN_BURSTS = (8.0, 40.0), (0.3, 1.5)
"""Lowest and highest rate of the family `foreign-headers`, and bursts as seconds of the rate."""

SHARE = {"tiny-bucket": 0.85, "flips": 0.7, "flips-mixed": 0.7, "foreign-headers": 0.85}
"""Share of the buckets that admit a call when it goes. 8 even seeds: for `tiny-bucket` 0.6 takes 1.005 of the ideal
with 0.041 refusals a call, 0.85 1.006 with 0.020, and 0.9 1.014 with 0.023. For `flips` 0.6 takes 1.022 with 0.049, 0.7
1.045 with 0.042, and 0.85 1.064 with 0.031. Where phases are known to be equally long, `flips` takes 1.001 with 0.014.
"""

LATER = 1e-6
"""Seconds by which a call goes after the instant at which it is admitted: floats of two computations differ."""

SHORTEST = 1.0
"""Seconds of the shortest rolling window of the family."""

LONGER = 1.5
"""Ratio of two waits for the first boundary of a rolling window. Raising it finds the boundary later."""

NARROW = 0.01
"""Share of its period to which a rolling window's boundary is looked for. Raising it costs time, and less refusals."""

WIDEST = 0.2
"""Share of its period to which a fixed window's boundary is looked for; a late window is made up for by the next one.
Over 31 even seeds: 0.02 takes 1.001 with 0.071 refusals a call, 0.2 1.010 with 0.065, and 0.5 1.020 with 0.065."""

GROWTHS = (1.3, 2.0)
"""Least and highest growth of the family `growth`."""


class Candidate:
    """A bucket that may be the provider's: its numbers, its content, and its weight among all.

    Its rate is `rate`, or a quarter of that while it is `low`. It changes at `until`, which is drawn when the earliest
    instant for it has come (infinity: not yet).
    """

    __slots__ = ("_at", "_burst", "_since", "_until", "content", "low", "rate", "weight")

    def __init__(self, rate: float, burst: float, low: bool, weight: float) -> None:
        self.rate, self._burst, self.low, self.weight = rate, burst, low, weight
        self._since, self._until = 0.0, math.inf
        self._at, self.content = 0.0, burst

    def changes(self, lengths: tuple[float, ...]) -> list[Candidate]:
        """Return copies of which each changes its rate after another one of these seconds."""
        copies = []
        for length in lengths:
            copy = Candidate(self.rate, self._burst, self.low, self.weight / len(lengths))
            copy._since, copy._until = self._since, self._since + length
            copy._at, copy.content = self._at, self.content
            copies.append(copy)
        return copies

    def undrawn(self, now: float, shortest: float) -> bool:
        """Return whether it may change by now, and nothing is drawn yet."""
        return self._until == math.inf and now >= self._since + shortest

    def advance(self, now: float) -> None:
        """Refill it up to now."""
        if self._until <= now:
            self._refill(self._until)
            self.low, self._since, self._until = not self.low, self._until, math.inf
        self._refill(now)

    def _refill(self, now: float) -> None:
        self.content = min(self._burst, self.content + self._pace(self.low) * (now - self._at))
        self._at = now

    def _pace(self, low: bool) -> float:
        return self.rate / 4.0 if low else self.rate

    def ready(self, now: float) -> float:
        """Return when it admits a call."""
        missing = 1.0 - self.content
        before = self._pace(self.low) * (self._until - self._at)
        if missing <= before:
            return max(now, self._at + missing / self._pace(self.low))
        return max(now, self._until + (missing - before) / self._pace(not self.low))

    @property
    def state(self) -> tuple[float, ...]:
        """Return what decides about its outcomes to come."""
        since = self._since if self._until == math.inf else 0.0
        return self.rate, self._burst, self.low, self._until, since, round(self.content, 9)


def _numbers(low: float, high: float, digits: int) -> tuple[float, ...]:
    """Return the numbers of so many digits between two of them."""
    least = 10.0 ** (math.floor(math.log10(low)) - digits + 1)
    found = {float(f"{place * least:.{digits}g}") for place in range(round(low / least), round(high / least) + 1)}
    return tuple(sorted(found))


def _bursts(name: str, rate: float) -> list[tuple[int, float]]:
    """Return the bursts that a family may draw for a rate, with their weights."""
    if name == "foreign-headers":
        low, high = FOREIGN_BURSTS
        return [(burst, 1.0) for burst in range(max(2, round(low * rate)), max(2, round(high * rate)) + 1)]
    # `Draw.whole` draws small bursts more often, and `Draw.one` does not.
    flips = name.startswith("flips")
    return [(burst, math.log1p(1.0 / burst) if flips else 1.0) for burst in BURSTS[flips]]


class Filter:
    """Buckets that a family may draw and that explain all outcomes so far, by their probability."""

    def __init__(self, name: str) -> None:
        flips = name.startswith("flips")
        low, high = FOREIGN if name == "foreign-headers" else RATES[flips]
        rates = _numbers(low, high, 3)
        edges = [low, *((one + other) / 2.0 for one, other in pairwise(rates)), high]
        self._kept = [
            # Rates are even in the logarithm.
            Candidate(rate, burst, slow, math.log(until / since) * weight)
            for rate, since, until in zip(rates, edges, edges[1:], strict=False)
            for burst, weight in _bursts(name, rate)
            for slow in ((False, True) if flips else (False,))
        ]
        shortest, longest = FLIPS
        self._lengths = tuple(
            round(shortest + 0.01 * place, 2) for place in range(round(100 * (longest - shortest)) + 1)
        )
        self._flips = flips

    def take(self, at: float, admitted: bool) -> None:
        """Take in the outcome of a call: keep the buckets that explain it."""
        if self._flips:
            shortest = self._lengths[0]
            self._kept = [
                drawn
                for each in self._kept
                for drawn in (each.changes(self._lengths) if each.undrawn(at, shortest) else (each,))
            ]
        kept: dict[tuple[float, ...], Candidate] = {}
        for each in self._kept:
            each.advance(at)
            if (each.content >= 1.0) is not admitted:
                continue
            each.content -= admitted
            alike = kept.setdefault(each.state, each)
            if alike is not each:
                alike.weight += each.weight
        self._kept = list(kept.values())

    def ready(self, now: float, share: float) -> float:
        """Return when so large a share of the buckets admits a call."""
        at = sorted((each.ready(now), each.weight) for each in self._kept)
        enough = share * sum(weight for _, weight in at)
        for ready, weight in at:
            enough -= weight
            if enough <= 0.0:
                return ready
        return at[-1][0]


def filtering(row: Row, seed: int) -> Played:
    """Play a hidden bucket of a family; the phases of one that flips may have different lengths."""
    books, left = Books(row, seed), deque(row.calls(seed))
    known, now = Filter(row.name), 0.0
    while left:
        at = known.ready(now, SHARE[row.name]) + LATER
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


def sizing(row: Row, seed: int) -> Played:
    """Play a fixed window: what is admitted first shows its size, and ever later attempts its first two boundaries.

    Each later boundary lies in an interval that the former ones predict. Its middle is tried while it is wide, else its
    end.
    """
    books, left = Books(row, seed), deque(row.calls(seed))
    now, size = 0.0, 0

    def go(at: float) -> bool:
        if not left or not books.send(left[0], at):
            return False
        left.popleft()
        return True

    while go(now):
        size, now = size + 1, now + SOONEST
    begun: list[tuple[float, float]] = []
    period, most = SHORTEST, math.inf
    while left:
        low, high, place = now, math.inf, len(begun)
        if place:
            low = max(now, *(each[0] + (place - number) * period for number, each in enumerate(begun)))
            high = min(each[1] + (place - number) * most for number, each in enumerate(begun))
        while left:
            if high < math.inf:
                at = high if high - low <= WIDEST * period else 0.5 * (low + high)
            elif not place:
                at = max(0.5 * SHORTEST, 2.0 * low)
            else:
                # No later, because a whole window could pass.
                at = max(low + SOONEST, begun[0][0] + 2.0 * max(period, low - begun[0][1]))
            if go(at):
                break
            low, high = at, high + period if at >= high else high
        begun.append((low, min(at, high)))
        for first, early in enumerate(begun):
            for last, late in enumerate(begun[first + 1 :], first + 1):
                period = max(period, (late[0] - early[1]) / (last - first))
                most = min(most, (late[1] - early[0]) / (last - first))
        period = max(period, begun[0][0])
        now = at + SOONEST
        for _ in range(size - 1):
            go(now)
    return books.played()


def steepening(row: Row, seed: int) -> Played:
    """Play a limit on growth, whose window it knows: bounds of the growth follow from what is admitted and refused."""
    (slope,) = (each for each in row.scenario.limiters if each.kind == "slope")
    books, left = Books(row, seed), deque(row.calls(seed))
    sent: deque[float] = deque()
    running: list[float] = []
    least, low, high = 0, *GROWTHS
    now = 0.0
    while left:
        while running and running[0] + SOONEST <= now:
            heapq.heappop(running)
        if len(running) >= row.callers:
            now = running[0] + SOONEST
            continue
        while sent and sent[0] + 2.0 * slope.window <= now:
            sent.popleft()
        before = sum(at + slope.window <= now for at in sent)
        calls = len(sent) - before + 1
        if least and calls > max(least, 0.5 * (low + high) * before):
            now = min(
                at + windows * slope.window for at in sent for windows in (1, 2) if at + windows * slope.window > now
            )
            continue
        known = calls <= max(least, low * before)
        if books.send(left[0], now):
            left.popleft()
            sent.append(now)
            heapq.heappush(running, books.newest_end)
            if least and calls > least:
                low = max(low, calls / before)
        elif least:
            high = max(low, min(high, calls / before))
        else:
            least = calls - 1
        now += 0.0 if known else SOONEST
    return books.played()
