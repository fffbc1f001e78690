"""Steps of a quota's level: the fall between two answers, and the calls that were sent in between.

Theory of operation. Calls are numbered in the order of their sending. An answer states the level after its call. The
fall between two answers whose calls are close together is the charge of the calls in between. Answers that arrive late
give steps, too, so a first burst is known before most of it is answered. Where levels are rounded coarsely, a step
takes more calls. A reset that is an instant states the fall to its own rounding, whenever a call was admitted.

Calls overtake each other on their way, and other clients take a part. So a single step proves nothing, and errors of a
step are relative and bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tidegate.core.values import INFINITY, ResetInstant, Unit

FIRST_CHECK = 4
"""Steps before the first comparison; fewer fit any rule. Each next comparison comes after half as many again."""

MOST_STEPS = 64
"""Steps that are kept, and steps between two comparisons. Chosen: a comparison costs time for each step."""

MOST_CALLS = 256
"""Calls that are kept. Chosen: a large burst fits."""

REST = 4096
"""Calls that are left out after a comparison of `MOST_STEPS` that changed nothing: a compared call costs 20 us more."""

FARTHEST = 16
"""Most calls of a step where the level is not rounded: a longer step hides its single calls."""

APART = 2.0
"""Roundings of the level that a step falls at least: less shows rounding, more hides single calls."""

MOST_ERROR = 0.5
"""Greatest relative error of a step: calls that overtook each other err more."""


class SentCall(NamedTuple):
    """Call that was sent: its charge at admission by each rule, and its change by the cache.

    `ended` is the sum of all charges at the end of answers until then, by each rule.
    """

    by_rule: Sequence[float]
    cached: float
    ended: Sequence[float]


class FoundLevel(NamedTuple):
    """Level that an answer states for the request of `sent_at`, rounded to `rounding`, and its reset if an instant.

    After `full_in` seconds the quota is full, and loses its refill from then on.
    """

    level: float
    rounding: float
    full_in: float
    sent_at: float
    instant: ResetInstant | None


class ChargeStep(NamedTuple):
    """Fall of the level, its rounding, the calls in it, and the charges at the end of answers meanwhile, by rule."""

    fall: float
    rounding: float
    calls: tuple[SentCall, ...]
    ended: Sequence[float]

    def error(self, predicted: float) -> float:
        """Return the relative error of a prediction that the rounding does not explain, at most `MOST_ERROR`."""
        off = abs(self.fall - predicted) - self.rounding
        return min(MOST_ERROR, off / max(abs(self.fall), abs(predicted))) if off > 0.0 else 0.0

    def deviation(self, predicted: float) -> float:
        """Return the relative error of a prediction with that of the fall itself: how well the charge is known."""
        return (abs(self.fall - predicted) + self.rounding) / max(abs(self.fall), abs(predicted), 1.0)

    def charged(self, rule: int) -> float:
        return sum([call.by_rule[rule] for call in self.calls]) + self.ended[rule]


class ChargeSteps:
    """The latest calls and steps of one quota; `cached` is the change by the cache of the newest call."""

    __slots__ = ("_calls", "_ended", "_first", "_found", "_next", "_rest", "_rules", "_seen", "cached", "steps")

    def __init__(self, rules: int) -> None:
        self._rules = rules
        self._first = 1
        self._calls: deque[SentCall] = deque()
        self._found: dict[int, FoundLevel] = {}
        self.cached = 0.0
        self.steps: deque[ChargeStep] = deque(maxlen=MOST_STEPS)
        self.begin()

    def begin(self) -> None:
        self._first += len(self._calls)
        self._calls.clear()
        self._found.clear()
        self.steps.clear()
        self._ended: Sequence[float] = (0.0,) * self._rules
        self._seen, self._next, self._rest = 0, FIRST_CHECK, 0

    def rest(self) -> None:
        """Leave out the next calls, if the steps have confirmed what is known."""
        if len(self.steps) == MOST_STEPS:
            self._rest = REST

    def wake(self) -> None:
        """End a rest: something unexpected happened."""
        if self._rest:
            self.begin()

    def sent(self, by_rule: Sequence[float], cached: float) -> int:
        """Add a call that is sent, and return its number; infinite charges stand for several calls.

        It is 0 for a call that is left out.
        """
        if self._rest:
            self._rest -= 1
            if not self._rest:
                self.begin()
            return 0
        calls = self._calls
        calls.append(SentCall(by_rule, cached, self._ended))
        self.cached = cached
        if len(calls) > MOST_CALLS:
            calls.popleft()
            self._found.pop(self._first, None)
            self._first += 1
        return self._first + len(calls) - 1

    def ended(self, by_rule: Sequence[float]) -> None:
        """Add what a call is charged at its end by each rule; below zero it gets it back."""
        if self._rest:
            return
        self._ended = tuple([total + each for total, each in zip(self._ended, by_rule, strict=True)])

    def refund(self, number: int) -> None:
        place = number - self._first
        if place >= 0:
            call = self._calls[place]
            self._calls[place] = call._replace(by_rule=(0.0,) * len(call.by_rule), cached=0.0)

    def call(self, number: int) -> SentCall | None:
        """Return the call of that number; None where it is too long ago."""
        place = number - self._first
        return self._calls[place] if place >= 0 else None

    def answered(self, number: int, found: FoundLevel, rate: float, unsure: float, rule: int) -> bool:
        """Add what the answer to call `number` states; return whether a comparison is due."""
        if number < self._first:
            return False
        instant = found.instant
        if instant is not None and instant.rounding * (rate + unsure) < found.rounding:
            found = found._replace(rounding=instant.rounding * (rate + unsure))
        elif instant is not None:
            found = found._replace(instant=None)
        self._found[number] = found
        reach = FARTHEST if found.rounding <= 1.0 else MOST_CALLS
        last = self._first + len(self._calls)
        self._step(
            self._near(found, range(number, max(self._first, number - reach), -1), -1, rule), number, rate, unsure
        )
        self._step(number, self._near(found, range(number + 1, min(last, number + 1 + reach)), 0, rule), rate, unsure)
        if self._seen < self._next:
            return False
        self._next = self._seen + min(self._seen // 2, MOST_STEPS)
        return True

    def _near(self, found: FoundLevel, numbers: range, offset: int, rule: int) -> int:
        """Return the nearest answered call from which on the charges outweigh the rounding; 0 for none."""
        calls, first = self._calls, self._first
        total, needed = 0.0, APART * found.rounding if found.rounding > 1.0 else 0.0
        for number in numbers:
            total += calls[number - first].by_rule[rule]
            if total >= needed and number + offset in self._found:
                return number + offset
        return 0

    def _step(self, before: int, after: int, rate: float, unsure: float) -> None:
        if not before or not after:
            return
        old, new = self._found[before], self._found[after]
        if old.instant is not None and new.instant is not None:
            # The instant at which all is back moves by what is charged, and by nothing else.
            since = new.instant.reset - old.instant.reset
            fall = since * rate
        else:
            since = new.sent_at - old.sent_at
            fall = old.level - new.level + rate * since
        if new.sent_at - old.sent_at > old.full_in:
            return
        calls = tuple([self._calls[number - self._first] for number in range(before, after + 1)])
        if any(call.by_rule[0] == INFINITY for call in calls):
            return
        ended = [last - begin for begin, last in zip(calls[0].ended, calls[-1].ended, strict=True)]
        rounding = max(1.0, old.rounding, new.rounding) + unsure * abs(since)
        self.steps.append(ChargeStep(fall, rounding, calls[1:], ended))
        self._seen += 1


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
