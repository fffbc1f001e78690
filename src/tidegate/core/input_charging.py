"""Learned charge of one call's input: as estimated, with cached input counted otherwise, or at least a minimum.

Theory of operation. The charging rule says which parts of a call are charged (`core.charging`). This module says what
one call is charged where the provider departs from the estimate call by call. Sums over many calls show the mean only.
Steps of few calls show each charge (`core.charge_steps`).

The minimum has a free number: each step has one minimum that explains it exactly, and so have all of them together. Of
some of these, the best one is taken. The estimate has a free number, too: the worth of an estimated token.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tidegate.core.charge_steps import ChargeStep
from tidegate.core.values import Unit

COUNTED, CACHED, LEAST = range(3)
"""Hypotheses: the estimate, the estimate with cached input counted the other way than by the table, a minimum."""

UNITS: frozenset[Unit] = frozenset({"tokens", "input_tokens"})
"""Units whose charge includes the input."""

WORTH_MOST = 4.0
"""Greatest worth of an estimated token, and inverse of the least. Source: `CHARS_PER_TOKEN`, which is 1 in other
scripts."""


class InputChargingModel:
    """The charge of one call's input at one quota: `kind` is the hypothesis in force, `least` the minimum (tokens)."""

    __slots__ = ("kind", "least")

    def __init__(self) -> None:
        self.kind = COUNTED
        self.least = 0.0

    @property
    def words(self) -> str:
        """Return the hypothesis in force, for display; '' for the estimate."""
        if self.kind == LEAST:
            return f"at least {self.least:.0f} a call"
        return "cached input counted otherwise" if self.kind == CACHED else ""

    def charge(self, counted: float, cached: float) -> float:
        """Return the charge of a call that is `counted` by the rule, and changes by `cached` with its cached input."""
        if self.kind == LEAST:
            return max(self.least, counted)
        if self.kind == CACHED:
            return max(min(1.0, counted), counted + cached)
        return counted

    def errors(self, steps: Sequence[ChargeStep], rule: int, newest: float) -> tuple[list[float], float]:
        """Return the error of each hypothesis over the steps, where `rule` holds, and the best minimum.

        A call sent before any usage was known counts with the cached share of the `newest` one.
        """
        counted = [[call.by_rule[rule] for call in step.calls] for step in steps]
        cached = [[call.cached or newest for call in step.calls if call.by_rule[rule]] for step in steps]
        pairs = list(zip(steps, counted, strict=True))
        plain = estimate_error(steps, [sum(each) for each in counted])
        read = sum(
            [step.error(max(0.0, sum(each) + sum(change))) for (step, each), change in zip(pairs, cached, strict=True)]
        )
        found = [(least_of(step.fall, each), min(each)) for step, each in pairs]
        shown = sorted(least for least, lowest in found if least > lowest)
        together = least_of(sum(step.fall for step in steps), [each for charges in counted for each in charges])
        minima = {self.least, together, *(shown[len(shown) * part // 8] for part in range(1, 8, 2) if shown)}
        error, least = min(
            (sum([step.error(charged_above(each, least)) for step, each in pairs]), least) for least in minima
        )
        return [plain, read, error], least

    def charged(self, step: ChargeStep, rule: int, newest: float) -> float:
        return sum([self.charge(call.by_rule[rule], call.cached or newest) for call in step.calls])


def estimate_error(steps: Sequence[ChargeStep], charged: Sequence[float]) -> float:
    """Return the error of charges over the steps, at the best worth of an estimated token."""
    # Calls that overtook each other do not move the median.
    worth = median([step.fall / max(1.0, each) for step, each in zip(steps, charged, strict=True)])
    worth = min(WORTH_MOST, max(1.0 / WORTH_MOST, worth))
    return sum([step.error(worth * each) for step, each in zip(steps, charged, strict=True)])


def charged_above(counted: Sequence[float], least: float) -> float:
    return sum([least if each < least else each for each in counted])


def least_of(fall: float, counted: Sequence[float]) -> float:
    """Return the minimum charge of a call with which calls that are `counted` so sum to `fall`; 0 where none does."""
    left, number = fall, len(counted)
    for each in sorted(counted, reverse=True):
        # All from here on are charged the same, unless even that is below the dearest of them.
        if left >= number * each:
            return left / number
        left -= each
        number -= 1
    return 0.0
