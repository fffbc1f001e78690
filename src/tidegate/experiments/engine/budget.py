"""Budget of an experiment: how many more rows may start, from what earlier ones have cost.

Theory of operation. A row that starts is finished and counted, with the judgements of its answer. So before it starts,
its cost is reserved, and that of all rows under way (`storage.spend_reserve`). When no row is under way and the next
one does not fit any more, the budget is reached. The first row runs alone, and then at most as many as have been
measured.

Before a function starts, the mean cost of its stage is stored as its usage, which its true usage replaces. So what a
killed process had in flight is counted by the next claim. `engine.spending` raises it while the function spends more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.core.token_totals import TokenTotals, added, dollars
from tidegate.errors import require
from tidegate.experiments.engine.queues import TASK
from tidegate.experiments.storage.spend_reserve import RecentJobs, StageReserve, budget_amount, rows_within


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


class EarlierSpend(NamedTuple):
    """Tokens that earlier claims have spent on the items of a stage, and those of its last items."""

    tokens: TokenTotals = TokenTotals()
    last: Sequence[TokenTotals] = ()


class BudgetLedger:
    """Decision whether one more row of a run may start.

    `earlier` has what earlier claims have spent on each stage: the tasks, then the evaluators. `other` is what stages
    have spent that the experiment has no more.

    `under_way` counts for each stage the items that have started or must follow: each row has one item in each stage.
    At first these are the `unjudged` answers of earlier claims.
    """

    def __init__(
        self, budget: Budget, earlier: Sequence[EarlierSpend], unjudged: Sequence[int], other: TokenTotals
    ) -> None:
        self.budget = budget
        self.under_way = [0, *unjudged]
        self._left_over = any(unjudged)
        self._spent = amounts(budget, added((other, *(each.tokens for each in earlier))))
        self._recent = [RecentJobs(self._spent, each.last) for each in earlier]

    @property
    def may_start(self) -> bool:
        return self._fits(dict(enumerate(self.under_way)))

    def may_judge(self, stage: int, in_flight: int) -> bool:
        """Return whether an evaluator may judge one more answer, while `in_flight` of its jobs run.

        Answers of earlier claims may be many, and nothing was reserved for them.
        """
        if not self._left_over:
            return True
        return self._fits({stage: in_flight})

    def _fits(self, under_way: Mapping[int, int]) -> bool:
        """Return whether one more row fits that needs these stages, of which so many items are under way."""
        return all(
            rows_within(
                amount,
                self._spent[name],
                [
                    StageReserve(count, recent.count, recent.reserve[name])
                    for stage, count in under_way.items()
                    for recent in (self._recent[stage],)
                ],
                1,
            )
            for name, amount in self.budget.stored().items()
        )

    @property
    def stuck(self) -> bool:
        """Return whether nothing can start while no job runs: the answers that wait for a judgement do not fit."""
        waiting = [stage for stage, count in enumerate(self.under_way) if count and stage != TASK]
        return bool(waiting) and not any(self.may_judge(stage, 0) for stage in waiting) and not self.may_start

    @property
    def reached(self) -> bool:
        """Return whether no further row can start: none is under way, and one more does not fit."""
        return not any(self.under_way) and not self.may_start

    @property
    def reason(self) -> str:
        return reached(self.budget, self._spent)

    def expected(self, stage: int) -> TokenTotals | None:
        """Return the mean usage of the last jobs of the stage; None while none has ended."""
        return self._recent[stage].mean

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
        for name in self._spent:
            self._spent[name] += budget_amount(name, tokens)
        self._recent[stage].add(tokens)


def reached(budget: Budget, spent: Mapping[str, float]) -> str:
    """Return the reason of a stop; `spent` has the amounts that the budget names.

    Of two amounts, it names the one of which the larger share is spent: that one must be raised.
    """
    stored = budget.stored()
    name = max(stored, key=lambda each: spent[each] / stored[each])
    budget = Budget(**{name: stored[name]})  # type: ignore[arg-type]
    parts = [dollars(spent["usd"])] if "usd" in spent else []
    parts += [f"{spent['tokens']:.0f} tokens"] if "tokens" in spent else []
    return f"budget of {budget} reached: {' and '.join(parts)} spent; a larger budget continues it"


def budget_options(reason: str) -> list[str]:
    """Return the options of a command that continues a run, if the `reason` of its stop is a spent budget."""
    named, found, _ = reason.removeprefix("budget of ").partition(" reached: ")
    if not found or named == reason:
        return []
    return [
        *(["--budget-usd", "USD"] if "$" in named else []),
        *(["--budget-tokens", "N"] if "tokens" in named else []),
    ]


def amounts(budget: Budget, tokens: TokenTotals) -> dict[str, float]:
    return {name: budget_amount(name, tokens) for name in budget.stored()}
