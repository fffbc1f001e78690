"""Charging rules of token quotas, and the choice among them by the provider's own `remaining`.

Theory of operation. The provider's table states how a call is charged: its input, its input and output bound, or its
output as it is produced. The table may be wrong (a gateway, a change). So each charge is booked by every rule at once.
Between two answers the level falls by the charges, less the refill, and each rule predicts that fall. Requests overtake
each other, so for calls sent about when the answered one was, it is `Unsure` whether they are in the fall.

- The first answer bounds what was charged so far: at least its own call, at most all calls sent until then. The table's
  rule is dropped at once where it fits into no such bounds and another rule does.
- Later, over spans of `SPAN_LIMIT_SHARE` of the limit, the rule with the smallest error takes over if it is clearly
better.

Once a rule was confirmed by `SETTLED_SPANS` spans, charges at the end of answers are followed only where the rule has
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate.core.values import INFINITY, Cost, Unit

SPAN_LIMIT_SHARE = 0.05
"""Share of the limit that a span uses: less lets single odd answers count."""

NOISE_LIMIT_SHARE = 0.01
"""Share of the limit below which a fall counts as none: providers round, and other clients take a little."""

EARLIER_SPANS_WEIGHT = 0.7
"""Weight of the earlier spans when one ends: about the last three, because estimates of single calls err."""

RIGHT_RELATIVE_ERROR = 0.2
"""Relative error of a prediction that counts as right: estimates of the output are no better."""

BETTER_ERROR_SHARE = 1 / 3
"""Error of a rule, as a share of that of the rule in force, at which it takes over."""

CONFIRMING_SPANS = 2
"""Spans in a row that a better rule needs (one at half the error): another client may have called in one."""

SETTLED_SPANS = 8
"""Spans after which the rule in force is no longer in doubt, unless it errs by more than `RIGHT_RELATIVE_ERROR`
again."""

RULES: dict[Unit, tuple[str, ...]] = {
    "tokens": ("table", "input", "input + bound", "input + bound, unused returned", "input + output"),
    "output_tokens": ("table", "bound", "bound, unused returned", "output"),
}
"""Charging rules by the unit of the quota. The first one is the provider table's."""

RETURNING = frozenset({"input + bound, unused returned", "bound, unused returned"})
PRODUCING = frozenset({"input + output", "output"})


def at_admission(unit: Unit, cost: Cost, amount: float) -> tuple[float, ...]:
    """Return the charge at admission by each rule; `amount` is the table's."""
    given, bound = cost.input_estimate, cost.output_bound
    if unit == "tokens":
        return amount, given, given + bound, given + bound, given
    return amount, bound, bound, 0.0


def at_end(unit: Unit, cost: Cost, output: float | None, amount: float) -> tuple[float, ...]:
    """Return the charge at the end of the answer by each rule (below zero: returned);

    `amount` is the table's. `output` is in tokens; where it is None, the estimate stands for it.
    """
    produced = cost.output_estimate if output is None else output
    returned = -max(0.0, cost.output_bound - produced)
    if unit == "tokens":
        return amount, 0.0, 0.0, returned, produced * cost.weight
    return amount, 0.0, returned, produced * cost.weight


class ChargingEvidence(NamedTuple):
    """The rule in force for one quota: its name, the instant since which it holds, and the spans that confirmed it.

    `refuted` names the rules that the newest span contradicts.
    """

    rule: str
    since: float
    spans: int
    refuted: tuple[str, ...] = ()


class Unsure(NamedTuple):
    """Charges, by each rule, of calls that may have overtaken the answered one, or have been overtaken by it.

    The fall of the level may include `above` beside the predicted charges, and may lack `below` of them.
    """

    above: Sequence[float]
    below: Sequence[float]


class ChargingModel:
    """The charging rule of one token quota; `rule` is its place in `RULES`, 0 for the table's.

    `follows_ends` says that charges at the end of answers must be booked, `produces` that the rule charges the output
    then, and `returns` that it gives back the unused part of the bound.
    """

    __slots__ = (
        "_above",
        "_below",
        "_better",
        "_high",
        "_low",
        "_needed",
        "_predicted",
        "_refused_below",
        "_scores",
        "_since_span",
        "_spans",
        "_votes",
        "follows_ends",
        "produces",
        "refuted",
        "returns",
        "rule",
        "since",
        "unit",
    )

    def __init__(self, unit: Unit, now: float) -> None:
        self.unit = unit
        self.rule = 0
        self.since = now
        self.follows_ends = True
        self.produces = self.returns = False
        self._spans = 0
        self._better = self._votes = 0
        self.refuted: tuple[int, ...] = ()
        # Of the newest answer, where it was a refusal: what is unsure of it, the other way round.
        self._refused_below: Sequence[float] | None = None
        self._scores = [0.0] * len(RULES[unit])
        self.forget_span()

    @property
    def evidence(self) -> ChargingEvidence:
        rules = RULES[self.unit]
        refuted = tuple(rules[each] for each in self.refuted)
        return ChargingEvidence(rules[self.rule], self.since, self._spans, refuted)

    @property
    def exact(self) -> bool:
        """Return whether a charge is mostly the request's bound of the output, which is no estimate."""
        return self.returns or (self.rule > 0 and self.unit == "output_tokens")

    @property
    def settled(self) -> bool:
        return self._spans >= SETTLED_SPANS

    def forget_span(self) -> None:
        self._low = self._high = 0.0
        self._predicted = [0.0] * len(RULES[self.unit])
        # Of the answer that began the span, the other way round.
        self._above = [0.0] * len(RULES[self.unit])
        self._below = [0.0] * len(RULES[self.unit])
        self._since_span = self._needed = 0.0

    def refund(self, by_rule: Sequence[float]) -> None:
        self._predicted = [total - each for total, each in zip(self._predicted, by_rule, strict=True)]

    def first(self, used: float, own: Sequence[float], sent: Sequence[float], quantum: float, now: float) -> bool:
        """Check the rules by the first answer; return whether another one holds from now on.

        `used` units, rounded to `quantum`, were taken when the answered call was admitted: by each rule its `own`
        charge, and at most the charges of all calls `sent` until then.
        """
        slack = RIGHT_RELATIVE_ERROR * used + quantum
        fits = [low <= used + slack and used <= high + slack for low, high in zip(own, sent, strict=True)]
        if fits[0] or not any(fits):
            return False
        # Of the rules that fit, the dearest overdraws nothing; the spans find the right one.
        best = max((each for each, fit in enumerate(fits) if fit), key=lambda each: (sent[each], -each))
        return self._take(best, now)

    def fell(
        self,
        low: float,
        high: float,
        predicted: Sequence[float],
        rounding: float,
        limit: float,
        now: float,
        find_unsure: Callable[[], Unsure] | None = None,
    ) -> bool:
        """Add the fall of the level between two answers; return whether another rule holds from now on.

        The fall is from `low` to `high`; infinity where a full or empty quota hides a part. Levels are rounded to
        `rounding`.
        """
        self._add(low, high, predicted)
        self._refused_below = None
        if self._since_span < max(self._needed, SPAN_LIMIT_SHARE * limit + rounding):
            return False
        unsure = find_unsure() if find_unsure is not None else None
        least, most = self._low - rounding, self._high + rounding
        errors = self._errors(least, most, unsure, limit)
        wrong = errors[self.rule] > RIGHT_RELATIVE_ERROR
        if unsure is not None and not wrong:
            self._needed = SPAN_LIMIT_SHARE * limit + rounding + unsure.above[self.rule] + unsure.below[self.rule]
            if self._since_span < self._needed:
                return False  # it may fit only because so much is unsure
        self._scores = self._scored(errors)
        best = self._best(self._scores, least, most, BETTER_ERROR_SHARE)
        proves = least > -INFINITY and most < INFINITY
        if proves:
            self.refuted = tuple(each for each, error in enumerate(errors) if error > RIGHT_RELATIVE_ERROR)
            self._end_span(unsure)
        else:
            self.forget_span()
        if not wrong or errors[best] > BETTER_ERROR_SHARE * errors[self.rule]:
            self._votes = 0
            self._spans += proves and not wrong
            self.follows_ends = (
                self._spans < SETTLED_SPANS or wrong or RULES[self.unit][self.rule] in RETURNING | PRODUCING
            )
            return False
        self._votes = self._votes + 1 if best == self._better else 1
        self._better = best
        self.follows_ends = True
        needed = 1 if errors[self.rule] > 0.5 else CONFIRMING_SPANS
        if self._votes < needed:
            return False
        return self._take(best, now)

    def emptied(
        self,
        low: float,
        high: float,
        predicted: Sequence[float],
        outstanding: Sequence[tuple[float, ...]],
        limit: float,
        now: float,
        find_unsure: Callable[[], Unsure] | None = None,
    ) -> bool:
        """Add a fall that a refusal shows, as `fell` does; return whether another rule holds from now on.

        Calls overtake each other, so at most all calls that are `outstanding` are in the fall. A rule that predicts
        less with all of them is refuted.
        """
        if self._low == -INFINITY:
            self.forget_span()  # this fall alone says more
        self._add(low, high, predicted)
        unsure = find_unsure() if find_unsure is not None else None
        begun, self._refused_below = self._refused_below, unsure.below if unsure is not None else self._below
        refuted = self._refuted_by_fall(self._low, self._predicted, self._above, outstanding, limit)
        if refuted is None and begun is not None:
            # The span since another refusal may refute the rule where the whole one does not.
            refuted = self._refuted_by_fall(low, predicted, begun, outstanding, limit)
        if refuted is None:
            return False
        self.refuted = refuted
        errors = self._errors(self._low, self._high, unsure, limit)
        for each in self.refuted:
            errors[each] = INFINITY
        scores = self._scored(errors)
        # Of the rules that fit, the dearest overdraws nothing, as after the first answer.
        best = min(
            range(len(scores)), key=lambda each: (max(0.0, scores[each] - RIGHT_RELATIVE_ERROR), -self._predicted[each])
        )
        return best != self.rule and self._take(best, now)

    def _refuted_by_fall(
        self,
        low: float,
        predicted: Sequence[float],
        above: Sequence[float],
        outstanding: Sequence[tuple[float, ...]],
        limit: float,
    ) -> tuple[int, ...] | None:
        """Return the rules that a fall by at least `low` refutes; None where the one in force is not refuted."""
        if low < SPAN_LIMIT_SHARE * limit:
            return None
        shown = low - RIGHT_RELATIVE_ERROR * abs(low) - NOISE_LIMIT_SHARE * limit
        most = [
            total + more + sum(max(0.0, each[rule]) for each in outstanding if each)
            for rule, (total, more) in enumerate(zip(predicted, above, strict=True))
        ]
        if most[self.rule] >= shown or max(most) < shown:
            return None
        return tuple(each for each in range(len(most)) if most[each] < shown)

    def _errors(self, least: float, most: float, unsure: Unsure | None, limit: float) -> list[float]:
        """Return the relative error of each rule over the span, where the fall is from `least` to `most`."""
        errors = []
        shown = NOISE_LIMIT_SHARE * limit
        if least > -INFINITY or most < INFINITY:
            shown = max(shown, min(abs(least), abs(most)))
        for rule, guess in enumerate(self._predicted):
            low = least
            # Until it was replaced, a table that predicts too little is not excused: it causes refusals.
            if self.rule or guess > self._predicted[0]:
                low -= self._above[rule] + (unsure.above[rule] if unsure is not None else 0.0)
            high = most + self._below[rule] + (unsure.below[rule] if unsure is not None else 0.0)
            errors.append(max(low - guess, guess - high, 0.0) / max(shown, abs(guess)))
        return errors

    def _scored(self, errors: Sequence[float]) -> list[float]:
        return [
            EARLIER_SPANS_WEIGHT * score + (1.0 - EARLIER_SPANS_WEIGHT) * error
            for score, error in zip(self._scores, errors, strict=True)
        ]

    def _best(self, errors: Sequence[float], least: float, most: float, clearly: float = 1.0) -> int:
        """Return the rule that fits best: within `RIGHT_RELATIVE_ERROR`, the one that predicts the fall best if none
        overtook another.

        It must be better than the rule in force: its error at most the share `clearly`. Where only one end of the fall
        is known, that end is the likeliest.
        """
        low, high = (least if least > -INFINITY else most), (most if most < INFINITY else least)
        shown = min(abs(low), abs(high))
        plain = [max(low - guess, guess - high, 0.0) / max(shown, abs(guess), 1.0) for guess in self._predicted]
        better = [each for each in range(len(errors)) if each == self.rule or plain[each] < clearly * plain[self.rule]]
        return min(better, key=lambda each: (errors[each], plain[each]))

    def _end_span(self, unsure: Unsure | None) -> None:
        self._low, self._high = EARLIER_SPANS_WEIGHT * self._low, EARLIER_SPANS_WEIGHT * self._high
        self._predicted = [EARLIER_SPANS_WEIGHT * each for each in self._predicted]
        self._above = [EARLIER_SPANS_WEIGHT * each for each in self._above]
        self._below = [EARLIER_SPANS_WEIGHT * each for each in self._below]
        if unsure is not None:
            # Overtaken charges show in the span before, or in this one: only the difference of weights is left.
            rest = 1.0 - EARLIER_SPANS_WEIGHT
            self._above = [total + rest * each for total, each in zip(self._above, unsure.below, strict=True)]
            self._below = [total + rest * each for total, each in zip(self._below, unsure.above, strict=True)]
        self._since_span = self._needed = 0.0

    def _add(self, low: float, high: float, predicted: Sequence[float]) -> None:
        self._low, self._high = self._low + low, self._high + high
        self._predicted = [total + each for total, each in zip(self._predicted, predicted, strict=True)]
        self._since_span += max(abs(low) if low > -INFINITY else abs(high), abs(predicted[self.rule]))

    def _take(self, rule: int, now: float) -> bool:
        self.rule, self.since = rule, now
        self.produces = RULES[self.unit][rule] in PRODUCING
        self.returns = RULES[self.unit][rule] in RETURNING
        self.follows_ends = True
        self._spans = self._votes = 0
        return True
