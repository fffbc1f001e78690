"""The steps by which a pace that had held is raised, until one is refused."""

from __future__ import annotations

from tidegate.core.holding import PATIENCE_SECONDS, TOP

STEP = 1.25
STEP_MOST = 2.0
STEP_SECONDS = 0.15
STEP_CALLS = 2
RISE_MOST = 2.0
"""The first step of a rise; each that holds for so long and so many calls is followed by its square, up to double. Far
under the best rate it begins with that. Beyond twice the best a step has to hold for `PATIENCE_SECONDS`."""


class Rise:
    """The next rise of one key; paces are in calls a second."""

    __slots__ = ("_factor", "_highest")

    def __init__(self) -> None:
        self._factor, self._highest = STEP, 0.0

    def prepare(self, pace: float, best: float) -> None:
        """It will go up from `pace`, where `best` was known."""
        self._factor = STEP if pace >= TOP * best else STEP_MOST
        self._highest = RISE_MOST * best

    def step(self, pace: float) -> tuple[float, float]:
        """The pace to try after `pace`, and the seconds for which it has to hold."""
        tried = pace * self._factor
        self._factor = min(STEP_MOST, self._factor * self._factor)
        if tried <= self._highest:
            return tried, STEP_SECONDS
        # Twice the best was never known: it is believed where it holds for a while.
        if pace >= self._highest:
            self._highest *= RISE_MOST
        return min(tried, self._highest), PATIENCE_SECONDS
