"""Time for which a key has answered no call, and whether an outage is the reason.

Theory of operation. A stretch begins with a refusal, or when the breaker opens, and ends with the next answer. The
clocks stop while a reset that the provider named (a cooldown, a quota) is still ahead, because such a wait has a known
end. All instants are monotonic seconds.

The last calls of a program may be those that always fail: then no other call is left that could be answered. Such calls
were outrun before: they failed again after a later call was answered. In an outage, many more calls begin to fail after
the last answer (`FailingCalls`).
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.values import INFINITY, Outcome

NEVER = -INFINITY

OUTAGE_CHANCE = 0.001
"""Chance that the calls which fail have an error of their own, below which their failures are those of an outage.
Chosen: where one call in ten always fails, the last three of them are no outage."""

RECENT_ANSWERS = 128
"""Answers after which a call that was outrun is forgotten. Chosen: more calls than an SDK repeats at once."""


class KeyOutage(NamedTuple):
    """Availability of a key at one instant, in seconds.

    `unanswered` counts since the first refusal or outage after the last answer, `outage` since the breaker opened. Both
    exclude stated resets. `stated_for` is left of the present one. `last` is the newest refusal or failure.
    """

    unanswered: float = 0.0
    outage: float = 0.0
    stated_for: float = 0.0
    last: Outcome | None = None


AVAILABLE = KeyOutage()


class OutageClock:
    """Clocks of one key; `stated_until` is the instant of the latest stated reset.

    `running` says that no call was answered since a refusal or an outage.
    """

    __slots__ = ("_down", "_since", "_stated", "_stated_from", "last", "running", "stated_until")

    def __init__(self) -> None:
        self.running = False
        self._since: tuple[float, float] | None = None
        self._down: tuple[float, float] | None = None
        self._stated = 0.0
        self._stated_from = self.stated_until = NEVER
        self.last: Outcome | None = None

    def refused(self, outcome: Outcome, now: float) -> None:
        self.last = outcome
        self.running = True
        if self._since is None:
            self._since = now, self._stated_by(now)

    def opened(self, now: float) -> None:
        """Record that the breaker is not closed; repeating it changes nothing."""
        if self._down is None:
            self._down = now, self._stated_by(now)

    def closed(self) -> None:
        self._down = None

    def answered(self) -> None:
        self.running = False
        self._since = None

    def stated(self, now: float, until: float) -> None:
        """Stop the clocks until a reset that the provider has named."""
        if until <= now:
            return
        if now >= self.stated_until:
            self._stated = self._stated_by(now)
            self._stated_from = now
        self.stated_until = max(self.stated_until, until)

    def at(self, now: float) -> KeyOutage:
        stated = self._stated_by(now)
        unanswered, outage = (
            0.0 if begun is None else max(0.0, now - begun[0] - (stated - begun[1]))
            for begun in (self._since, self._down)
        )
        return KeyOutage(unanswered, outage, max(0.0, self.stated_until - now), self.last)

    def _stated_by(self, now: float) -> float:
        """Return the seconds for which the clocks have stopped until `now`, in all."""
        if self._stated_from == NEVER:
            return 0.0
        return self._stated + max(0.0, min(now, self.stated_until) - self._stated_from)


class FailingCalls:
    """Calls of one key that fail: those that began to since the last answer, and those that were outrun lately.

    `too_large` is the least cost in tokens of a call that was given back because it never fits.
    """

    __slots__ = ("_after", "_began", "_outrun", "too_large")

    def __init__(self) -> None:
        self._began = self._after = 0
        self._outrun: list[int] = []
        self.too_large = INFINITY

    def began(self, after: int) -> None:
        """Count a call that failed for the first time; `after` is the order of the newest answered attempt."""
        if after != self._after:
            self._began, self._after = 0, after
        self._began += 1

    def outran(self, answers: int) -> None:
        """Count a call that failed again after a later one was answered; `answers` is the number of all answers."""
        self._outrun = [*self._recent(answers), answers]

    def is_no_outage(self, after: int, answers: int) -> bool:
        """Return whether calls that always fail explain the failures since the last answer."""
        outrun = len(self._recent(answers))
        share = min(1.0, (outrun + 1.0) / (min(answers, RECENT_ANSWERS) + 2.0))
        # An SDK repeats a call that was handed back as a new one.
        others = max(0, (self._began if after == self._after else 0) - outrun)
        return answers > 0 and share**others >= OUTAGE_CHANCE

    def _recent(self, answers: int) -> list[int]:
        return [each for each in self._outrun if each > answers - RECENT_ANSWERS]
