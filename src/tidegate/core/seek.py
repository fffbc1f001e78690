"""The pace while the rate is not known: it grows until it is refused."""

from __future__ import annotations

from tidegate.core.gauge import Run
from tidegate.core.holding import PATIENCE_SECONDS

FIRST_WAITS = 4.0
"""The first pace spreads the run over so many first waits more than it took."""

SEEK_STEP = 1.5
SEEK_CALLS = 3
SEEK_BACK = 0.5
SEEK_LEAD = 2.0
"""While the rate is not known the pace grows by half when so many calls were let in; a refusal halves it at most. It
runs ahead of what was let in so far by no more than this (as a rise: `RISE_MOST`), or only after `PATIENCE_SECONDS`:
the faster it is when it is refused, the more calls are under way, and are refused or charged later."""


class Seek:
    """The search of one key; paces are in calls a second."""

    __slots__ = ("_lead_until",)

    def __init__(self) -> None:
        self._lead_until = 0.0

    def first(self, run: Run, wait: float) -> float:
        """The first pace after what came after `run` was refused, and nobody went for `wait` seconds."""
        return run.calls / (run.seconds + FIRST_WAITS * wait)

    def begin(self, now: float) -> None:
        """A pace is tried from now on."""
        self._lead_until = now + PATIENCE_SECONDS

    def back(self, pace: float, count: int, seconds: float) -> float:
        """The pace after one at which only `count` calls were let in, in so many seconds."""
        return min(pace, max(pace * SEEK_BACK, (count + 0.5) / seconds))

    def step(self, pace: float, let_in: float, now: float) -> float:
        """The pace after one that was not refused; `let_in` is how many calls a second were, since the search began."""
        if now < self._lead_until and pace * SEEK_STEP > SEEK_LEAD * let_in:
            return pace
        self.begin(now)
        return pace * SEEK_STEP
