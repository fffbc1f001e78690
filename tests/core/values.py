"""The values that core tests begin with."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.admission.call import GovernedCall
from tidegate.admission.wait_queue import Price, Waiter, Waker
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.values import Cause, Cost, Key, Kind, Outcome, QuotaReading

KEY = Key("provider", "https://provider.test", "0123456789abcdef", "model")

OK = Outcome(Kind.OK)
ABANDONED = Outcome(Kind.ABANDONED)
REFUSED = Outcome(Kind.RATE_LIMIT, Cause.RATE)
OUTAGE = Outcome(Kind.TRANSIENT, Cause.OUTAGE)
UNAVAILABLE = Outcome(Kind.OVERLOADED, Cause.UNAVAILABLE, status=503)
TIMEOUT = Outcome(Kind.TRANSIENT, Cause.NONE)
INVALID = Outcome(Kind.PERMANENT, Cause.INVALID)


def bucket(limit: float | None = 100.0, remaining: float | None = None, **facts: float | str | None) -> QuotaReading:
    """A reading of a continuously refilled request quota of a minute."""
    given: dict[str, object] = {"name": "requests", "unit": "requests", "refill": "continuous", "window": 60.0, **facts}
    return QuotaReading(limit=limit, remaining=limit if remaining is None else remaining, **given)


def fixed(limit: float | None = 100.0, remaining: float | None = None, **facts: float | str | None) -> QuotaReading:
    return bucket(limit, remaining, **{"refill": "fixed", **facts})


def answer(*readings: QuotaReading) -> Outcome:
    return Outcome(Kind.OK, readings=readings)


def refusal(retry_after: float | None = None, *readings: QuotaReading, cause: Cause = Cause.RATE) -> Outcome:
    return Outcome(Kind.RATE_LIMIT, cause, retry_after, readings)


class PricedWaiter(Waiter):
    """A call that stands in a line at a price."""

    def __init__(self, make_waker: Callable[[], Waker], priority: int = 0, price: Price = lambda estimate: Cost()):
        super().__init__(make_waker, priority)
        self.asked = price

    def price(self, estimate: CostEstimator) -> Cost:
        return self.asked(estimate)


class PlainCall(GovernedCall):
    """One request."""

    __slots__ = ()

    def price(self, estimate: CostEstimator) -> Cost:
        return Cost()


class StubWaker:
    """A waker that nobody needs: the test looks by itself."""

    def wake(self) -> bool:
        return True

    def arm(self, until: float) -> bool:
        return True
