"""Forecasts of the time that an experiment takes, before it begins and while it runs. Performs no I/O.

Theory of operation. The limits of its keys tell the time. An opening burst is much faster than the rate that follows,
so a recent speed foretells far too little. Each key forecasts when it will have admitted a number of calls, from its
quotas, its pace and its slots (`core.wait_text.estimate_eta`). The latest key decides.

Before a run, the limits are those that an earlier run has saved, and the calls are those of a sample of rows. The range
of the time has two sources: the mean of all calls may differ from that of the sample, and a run loses some time to
refusals. While the run continues, its keys know their limits, and the calls of an item are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.cost_estimator import FIRST_OUTPUT_TOKENS, CostEstimator
from tidegate.core.saved_state import ANSWER, SECONDS, SavedKey, SavedQuota
from tidegate.core.values import HOLDING, INFINITY, Cost, Key, RequestFacts, Unit
from tidegate.core.wait_text import MINUTE_SECONDS, Eta, QueueForecast, QuotaForecast, awaited, estimate_eta, sized
from tidegate.providers import Provider, estimate

RANGE_STANDARD_ERRORS = 2.0
"""Standard errors on either side of a mean that a range covers. Derived: 95 of 100 ranges hold the true mean."""

IDEAL_TIME_FACTOR = 1.05
"""Factor of the time of an ideal client that a run takes at most. Measured: bench/README.md."""

CALLS_AT_ONCE = 1_000
"""Calls of one client in flight at most, where nothing lower is known. Source: the connection pools of the SDKs of
openai and anthropic."""


class Range(NamedTuple):
    """Least and greatest likely amount, and the most likely one between them."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.middle * factor, self.high * factor)

    def plus(self, other: Range) -> Range:
        return Range(self.low + other.low, self.middle + other.middle, self.high + other.high)


def likely_mean(sample: Sequence[float], population: int) -> Range:
    """Return the likely mean of a population of amounts, from a sample of at least one; none is below zero.

    A sample of one is known to be right within a factor of two.
    """
    count = len(sample)
    mean = math.fsum(sample) / count
    if count >= population:
        return Range(mean, mean, mean)
    if count == 1:
        return Range(mean / 2.0, mean, mean * 2.0)
    variance = math.fsum((each - mean) ** 2 for each in sample) / (count - 1)
    # The correction for a finite population: what is in the sample is known.
    error = RANGE_STANDARD_ERRORS * math.sqrt(variance / count * (1.0 - count / population))
    return Range(max(0.0, mean - error), mean, mean + error)


LEARNED_OUTPUT = Range(0.8, 1.0, 1.25)
"""Range of the mean output that an earlier run has learned, as factors. Derived: it is the mean of about ten answers,
whose lengths vary by 40 %."""

ASSUMED_OUTPUT = Range(1.0 / FIRST_OUTPUT_TOKENS, 1.0, 4.0)
"""The same before the first answer: from one token to a long answer."""

ESTIMATE = "estimate"
"""Gate of a saved key with what it has learned of the tokens of its calls."""


class KeyLimits(NamedTuple):
    """Limits of one key as they are known now: quotas, calls a second (0: no learned rate), calls at once.

    `seconds` is the duration of an answer (None: unknown).
    """

    quotas: tuple[SavedQuota, ...] = ()
    pace: float = 0.0
    slots: float = INFINITY
    seconds: float | None = None

    @property
    def known(self) -> bool:
        return bool(self.quotas) or self.pace > 0.0 or self.slots < INFINITY

    @property
    def texts(self) -> list[str]:
        """Return each limit in words."""
        found = [sized(each.name, each.limit, each.window) for each in self.quotas]
        found += [_rate(self.pace)] if self.pace else []
        return [*found, f"{self.slots:.0f} calls at once"] if self.slots < INFINITY else found


def limits_of(saved: SavedKey, age: float) -> KeyLimits:
    """Return the limits that an earlier run has saved, `age` seconds later."""
    gates = saved.gates
    return KeyLimits(
        tuple(each.after(age) for each in saved.quotas),
        gates.get("pace", {}).get("rate", 0.0),
        gates.get("concurrency", {}).get("slots", INFINITY),
        gates.get(ANSWER, {}).get(SECONDS),
    )


class CallCosts(NamedTuple):
    """Number of calls, and the likely mean of what one of them is charged."""

    calls: int
    low: Cost
    middle: Cost
    high: Cost

    def plus(self, other: CallCosts) -> CallCosts:
        """Return the calls of both together."""
        calls = self.calls + other.calls
        if not calls:
            return self
        share = self.calls / calls
        pairs = zip(self[1:], other[1:], strict=True)
        return CallCosts(calls, *(one.times(share).plus(another.times(1.0 - share)) for one, another in pairs))


def expected_costs(
    provider: Provider,
    facts: Sequence[RequestFacts],
    calls: int | None,
    saved: SavedKey,
    measured: tuple[Range, Range] | None,
) -> CallCosts:
    """Return the costs of so many calls (None: unknown) of one key, by the facts of a sample of at least one request.

    The input follows from the lengths of the requests, as the key has learned to estimate it. `measured` are the tokens
    of a call, in and out, by stored answers: they tell the output, and the input where the key has learned nothing.
    """
    learned = saved.gates.get(ESTIMATE, {})
    bound = facts[0].max_output_tokens
    estimator = CostEstimator()
    estimator.seed(learned, 0.0)
    chars = likely_mean([each.input_chars for each in facts], len(facts) if calls is None else calls)
    output = (LEARNED_OUTPUT if learned else ASSUMED_OUTPUT).times(estimator.output_for(bound))
    if measured is not None:
        into, output = measured
        if not learned:
            estimator.seed({"chars_per_token": chars.middle / max(1.0, into.middle)}, 0.0)
            chars = into.times(estimator.chars_per_token)
    costs = []
    for length, written in zip(chars, output, strict=True):
        estimator.mean_output = written
        costs.append(estimate(provider, facts[0]._replace(input_chars=round(length)), estimator))
    return CallCosts(calls or 0, *costs)


class TimeForecast(NamedTuple):
    """Seconds that calls take, and what binds them, in words."""

    seconds: Range
    bound_by: str


def foresee(costs: CallCosts, limits: KeyLimits, at_once: int | None = None) -> TimeForecast | None:
    """Return the time of the calls of one key, of which the user allows so many at once; None where it is unknown."""
    if not costs.calls:
        return TimeForecast(Range(0.0, 0.0, 0.0), "")
    if not limits.known:
        return None
    queues = [_queue(costs.calls, each, limits, at_once) for each in costs[1:]]
    low, middle, high = (estimate_eta(each) for each in queues)
    if low.seconds is None or middle.seconds is None or high.seconds is None:
        return None
    answer = limits.seconds or 0.0
    seconds = sorted((low.seconds + answer, middle.seconds + answer, high.seconds * IDEAL_TIME_FACTOR + answer))
    return TimeForecast(Range(*seconds), bound_text(queues[1], middle))


def longest(forecasts: Iterable[TimeForecast]) -> TimeForecast:
    """Return the time of several keys whose calls go on together; the latest key binds."""
    known = list(forecasts)
    low, middle, high = (max(amounts) for amounts in zip(*(each.seconds for each in known), strict=True))
    return TimeForecast(Range(low, middle, high), max(known, key=lambda each: each.seconds.middle).bound_by)


def _queue(calls: int, cost: Cost, limits: KeyLimits, at_once: int | None) -> QueueForecast:
    slots = min(limits.slots, float(CALLS_AT_ONCE), INFINITY if at_once is None else float(at_once))
    # Without the duration of an answer, slots tell nothing: the quotas alone give the least time.
    return QueueForecast(
        waiting=calls,
        slots=max(1, int(slots)) if limits.seconds is not None else calls,
        latency=limits.seconds,
        quotas=tuple(_quota(each, cost) for each in limits.quotas),
        pace=limits.pace,
    )


def _quota(quota: SavedQuota, cost: Cost) -> QuotaForecast:
    # A window whose end is unknown begins with the first call. A rolling one gives back what it gave, as a bucket does.
    boundary = (quota.window if quota.back_in is None else quota.back_in) if quota.refill == "fixed" else None
    charge = charged_in_all(cost, quota.unit)
    return QuotaForecast(quota.name, quota.level, quota.limit, quota.window, boundary, charge)


def charged_in_all(cost: Cost, unit: Unit) -> float:
    """Return what a call has been charged at its end: without what was held and given back."""
    if unit == HOLDING and cost.held:
        return cost.tokens - cost.held + cost.weight * cost.output_estimate
    return cost.amount(unit) + cost.reserve(unit)


def bound_text(queue: QueueForecast, eta: Eta) -> str:
    """Return what determines the end of a queue, in words."""
    if eta.gate == "pace":
        return _rate(queue.pace)
    if eta.gate == "concurrency":
        return f"{queue.slots} calls at once"
    quotas = {f"quota {each.name}": sized(each.name, each.limit, each.window) for each in queue.quotas}
    return quotas.get(eta.gate) or (awaited(eta.gate) if eta.gate else "the time of an answer")


def _rate(pace: float) -> str:
    rate = f"{pace:.3g} calls/s" if pace >= 1.0 else f"{pace * MINUTE_SECONDS:.3g} calls/min"
    return f"the learned rate of {rate}"


StageRest: TypeAlias = tuple[Key | None, Cost | None, int, int]
"""Key of a stage, cost of a call, number of its finished items, and number of those that are not started."""


class Rest(NamedTuple):
    """Seconds until the last item is done (None: unknown), and what binds them, in words."""

    seconds: float | None
    bound_by: str


UNKNOWN_REST = Rest(None, "")


class RestForecast:
    """Forecast for one run; it counts the answered calls of each key for each finished item from its first use on."""

    def __init__(self, registry: RateLimitRegistry) -> None:
        self._registry = registry
        self._first: dict[Key, tuple[int, int]] = {}

    def rest(self, stages: Iterable[StageRest]) -> Rest:
        """Return when the last item is done; it is unknown where a key is, or foretells nothing."""
        finished: dict[Key, int] = {}
        rest: dict[Key, int] = {}
        costs: dict[Key, Cost] = {}
        for key, cost, done, left in stages:
            if key is None:
                if left:
                    return UNKNOWN_REST
                continue
            finished[key] = finished.get(key, 0) + done
            rest[key] = rest.get(key, 0) + left
            if cost is not None:
                costs[key] = cost
        latest, bound_by = 0.0, ""
        for key, items in rest.items():
            seconds, bound = self._of_key(key, costs.get(key), finished[key], items)
            if seconds is None:
                return UNKNOWN_REST
            if seconds > latest:
                latest, bound_by = seconds, bound
        return Rest(latest, bound_by)

    def _of_key(self, key: Key, cost: Cost | None, finished: int, items: int) -> Rest:
        found = self._registry.forecast(key, cost)
        if found is None:
            return UNKNOWN_REST
        outlook, answered = found
        answered_first, finished_first = self._first.setdefault(key, (answered, finished))
        ended = finished - finished_first
        calls = max(1.0, (answered - answered_first) / ended) if ended else 1.0
        queue = outlook._replace(waiting=outlook.waiting + math.ceil(items * calls))
        eta = estimate_eta(queue)
        return (
            UNKNOWN_REST
            if eta.seconds is None
            else Rest(eta.seconds + (outlook.latency or 0.0), bound_text(queue, eta))
        )
