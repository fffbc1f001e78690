"""Budget of an experiment: how many more rows may start, from what earlier ones have cost.

Theory of operation. A row that starts is finished and counted, with the judgements of its answer. So before it starts,
its cost is reserved, and that of all rows under way. What a row will cost is not known: it is expected to cost the mean
of the rows so far. The reserve for many rows is their mean and a margin for chance. The margin has two parts, the
spread of the rows and the error of the mean, which few rows tell badly. It shrinks as rows end, and then more may
start. When no row is under way and the mean does not fit any more, the budget is reached.

The first row runs alone, and then at most as many rows as have been measured: a mean of three rows says little about
the next thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.core.token_totals import NANO, TokenTotals, dollars
from tidegate.errors import require
from tidegate.runner.item import TASK

DEVIATIONS = 4.0
"""Standard deviations of the margin. Raising it starts fewer rows at once near the end of a budget. Measured
(`tests/runner/test_budget.py`): with 3, one of 20 runs exceeds 2 % where costs have a heavy tail."""

GROWTH = 1
"""Rows that may be under way for each measured row. Raising it measures less before many rows run. Chosen: 1,000 rows
are under way after eleven rounds, and costs with a heavy tail exceed no budget by more than a row."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Most that an experiment may spend: US dollars, tokens (input and output together), or both.

    Raise `ConfigurationError` for a budget without an amount, or an amount that is not above 0.
    """

    usd: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        require(self.usd is not None or self.tokens is not None, "budget", None, "an amount in usd, tokens or both")
        number = isinstance(self.usd, int | float) and not isinstance(self.usd, bool)
        require(self.usd is None or (number and 0.0 < self.usd < math.inf), "budget usd", self.usd, "above 0")
        whole = isinstance(self.tokens, int) and not isinstance(self.tokens, bool)
        require(
            self.tokens is None or (whole and self.tokens > 0), "budget tokens", self.tokens, "a whole number above 0"
        )

    def __str__(self) -> str:
        parts = [] if self.usd is None else [dollars(self.usd)]
        return " and ".join([*parts, *([] if self.tokens is None else [f"{self.tokens} tokens"])])

    def stored(self) -> dict[str, float | int]:
        """Return the budget as JSON values."""
        return {name: value for name in ("usd", "tokens") if (value := getattr(self, name)) is not None}


class StageCosts:
    """Costs of the ended jobs of one stage: their number, their mean, and the spread around it."""

    __slots__ = ("_squares", "count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = self._squares = 0.0

    def add(self, cost: float) -> None:
        """Add the cost of one job (Welford's update)."""
        self.count += 1
        change = cost - self.mean
        self.mean += change / self.count
        self._squares += change * (cost - self.mean)

    @property
    def deviation(self) -> float:
        """Return the standard deviation of a job's cost; the mean, while there is one job."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else self.mean


class SpendLimit:
    """One amount of a budget, what is spent of it, and the costs of the jobs of each stage."""

    def __init__(self, amount: float, spent: float, stages: int) -> None:
        self.amount = amount
        self.spent = spent
        self.costs = [StageCosts() for _ in range(stages)]

    def reserve(self, under_way: Iterable[int]) -> float:
        """Return the expected cost of the items under way, with the margin for chance."""
        mean = variance = 0.0
        for count, costs in zip(under_way, self.costs, strict=True):
            if count and costs.count:
                mean += count * costs.mean
                variance += costs.deviation**2 * count * (1.0 + count / costs.count)
        return mean + DEVIATIONS * math.sqrt(variance)

    @property
    def row(self) -> float:
        """Return the expected cost of one row with its judgements."""
        return sum(costs.mean for costs in self.costs)


class BudgetLedger:
    """Decision whether one more row of a run may start.

    `earlier` has for each stage what earlier claims have spent, and on how many results. `other` is what stages have
    spent that the experiment has no more. The stages are the tasks, then the evaluators.

    `under_way` counts for each stage the items that have started or must follow: each row has one item in each stage.
    At first these are the `unjudged` answers of earlier claims.
    """

    def __init__(
        self, budget: Budget, earlier: Sequence[tuple[TokenTotals, int]], unjudged: Sequence[int], other: TokenTotals
    ) -> None:
        self.budget = budget
        self.under_way = [0, *unjudged]
        self._limits: dict[str, SpendLimit] = {}
        for name, amount in budget.stored().items():
            spent = _amount(name, other) + sum(_amount(name, tokens) for tokens, _ in earlier)
            limit = self._limits[name] = SpendLimit(float(amount), spent, len(earlier))
            for costs, (tokens, results) in zip(limit.costs, earlier, strict=True):
                if results:
                    # The spread is not known any more: the mean counts as one job.
                    costs.add(_amount(name, tokens) / results)

    def may_start(self) -> bool:
        """Return whether one more row may start now."""
        busy = any(self.under_way)
        if busy and self.under_way[TASK] >= GROWTH * min(costs.count for costs in self._any.costs):
            return False
        more = [count + 1 for count in self.under_way]
        return all(
            limit.spent < limit.amount and limit.spent + (limit.reserve(more) if busy else limit.row) <= limit.amount
            for limit in self._limits.values()
        )

    @property
    def reached(self) -> bool:
        """Return whether no further row can start: none is under way, and one more does not fit."""
        return not any(self.under_way) and not self.may_start()

    @property
    def reason(self) -> str:
        """Return the reason of the stop, with what was spent."""
        usd, tokens = self._limits.get("usd"), self._limits.get("tokens")
        spent = [dollars(usd.spent)] if usd is not None else []
        spent += [f"{tokens.spent:.0f} tokens"] if tokens is not None else []
        return f"budget of {self.budget} reached: {' and '.join(spent)} spent; a larger budget continues it"

    def start_row(self) -> None:
        """Count a row whose task starts: its judgements follow."""
        self.under_way = [count + 1 for count in self.under_way]

    def end_task(self, tokens: TokenTotals, answered: bool) -> None:
        """Count the end of a started task; without an answer, no judgement follows."""
        self._spend(TASK, tokens)
        self.under_way[TASK] -= 1
        if not answered:
            self.under_way[1:] = [max(0, count - 1) for count in self.under_way[1:]]

    def end_judgement(self, stage: int, tokens: TokenTotals) -> None:
        """Count the end of a job of an evaluator, whose item may be tried again."""
        self._spend(stage, tokens)

    def close_judgement(self, stage: int) -> None:
        """Count an eval item that has a result, or is not tried any more."""
        self.under_way[stage] = max(0, self.under_way[stage] - 1)

    def _spend(self, stage: int, tokens: TokenTotals) -> None:
        for name, limit in self._limits.items():
            amount = _amount(name, tokens)
            limit.spent += amount
            limit.costs[stage].add(amount)

    @property
    def _any(self) -> SpendLimit:
        return next(iter(self._limits.values()))


def _amount(name: str, tokens: TokenTotals) -> float:
    return tokens.nanodollars * NANO if name == "usd" else float(tokens.input_tokens + tokens.output_tokens)
