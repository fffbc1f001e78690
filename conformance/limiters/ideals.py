"""The least time in which each kind of limiter answers a number of calls: the schedule of a client that knows its rule.

Each function returns the instants at which the calls are answered, in seconds since the first one is sent. A call is
answered one latency after its admission.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

Latency = Callable[[], float]
"""Draws the seconds that the server behind the limiter takes for one call."""

Ideal = Callable[[int, Latency], Sequence[float]]
"""Instants of the answers to a number of calls."""

MEDIAN_LATENCY_SECONDS = 0.25
LATENCY_SIGMA = 0.3
"""Latency of the stub: lognormal, as measured latencies of short answers are; the longest of 100 is about 0.5 s."""

DRAWS = 25
"""Drawn schedules, of which the median counts: the last answer of one schedule varies by a fifth of a second."""


def latencies(seed: int) -> Latency:
    """Return a source of latencies."""
    generator = random.Random(seed)
    return lambda: MEDIAN_LATENCY_SECONDS * generator.lognormvariate(0.0, LATENCY_SIGMA)


def ideal_seconds(ideal: Ideal, calls: int) -> float:
    """Return the median time until the last call is answered."""
    return statistics.median(max(ideal(calls, latencies(seed))) for seed in range(DRAWS))


def bucket(rate: float, burst: int) -> Ideal:
    """Token bucket, or a leaky one: `burst` calls at once, then `rate` a second."""

    def ends(calls: int, latency: Latency) -> list[float]:
        return [max(0.0, (number - burst + 1) / rate) + latency() for number in range(calls)]

    return ends


def windows(limit: int, seconds: float, first: float | None = None) -> Ideal:
    """Fixed or moving windows: `limit` calls at the begin of each; the first window ends after `first` seconds."""

    def ends(calls: int, latency: Latency) -> list[float]:
        starts = itertools.chain([0.0], itertools.count(seconds if first is None else first, seconds))
        admitted = (start for start in starts for _ in range(limit))
        return [start + latency() for start in itertools.islice(admitted, calls)]

    return ends


def sliding_counter(limit: int, seconds: float, first: float | None = None) -> Ideal:
    """Count of the current window, and of the one before by the share of it that is in the last `seconds`.

    A full window before leaves room for one call each `seconds / limit`: the first one excepted, calls trickle.
    """

    def admitted() -> Iterator[float]:
        yield from itertools.repeat(0.0, limit)
        begin = seconds if first is None else first
        for start in itertools.count(begin, seconds):
            yield from (start + (number + 1) * seconds / limit for number in range(limit))

    def ends(calls: int, latency: Latency) -> list[float]:
        return [start + latency() for start in itertools.islice(admitted(), calls)]

    return ends


def slots(count: int, rate: float = float("inf"), burst: int = 1) -> Ideal:
    """`count` calls in flight, perhaps behind a bucket too: each call begins when both have room."""

    def ends(calls: int, latency: Latency) -> list[float]:
        free = [0.0] * count
        done = []
        for number in range(calls):
            begin = max(heapq.heappop(free), (number - burst + 1) / rate)
            done.append(begin + latency())
            heapq.heappush(free, done[-1])
        return done

    return ends


def window_and_burst(limit: int, seconds: float, extra: int, extra_seconds: float) -> Ideal:
    """Two fixed windows: `extra` calls of the longer one go beside the `limit` of each shorter one."""

    def ends(calls: int, latency: Latency) -> list[float]:
        short = (number * seconds for number in itertools.count() for _ in range(limit))
        long = (number * extra_seconds for number in itertools.count() for _ in range(extra))
        admitted = itertools.islice(heapq.merge(short, long), calls)
        return [start + latency() for start in admitted]

    return ends


def delays(after: int, seconds: float) -> Ideal:
    """No refusals: call k of a window is held for k times `seconds`, the first `after` excepted.

    All calls at once are the best schedule as long as the longest delay is less than the window.
    """

    def ends(calls: int, latency: Latency) -> list[float]:
        held = (number * seconds if number > after else 0.0 for number in range(1, calls + 1))
        return [delay + latency() for delay in held]

    return ends
