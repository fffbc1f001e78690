"""The pace under a limit on how fast a client may become faster (slope): it grows steadily."""

from __future__ import annotations

from tidegate.core.gauge import Run

CLIMB_FROM = 1.2
CLIMB = 1.1
CLIMB_SECONDS = 0.15
CLIMB_SOONER = 0.8
CLIMB_SLOWER = 1.2
"""Under a slope limit: the first pace, times what was let in during a second; its growth at each step; seconds to the
first step, and how they change with a step that holds and one that is refused."""


class Climb:
    """The climb of one key; a step is made each `seconds`."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = CLIMB_SECONDS

    def first(self, run: Run) -> float:
        """The first pace, in calls a second, after the refusal of what came after `run`."""
        return CLIMB_FROM * run.calls / max(1.0, run.seconds)

    def step(self, pace: float) -> float:
        """The pace after one that was let in."""
        self.seconds = max(CLIMB_SECONDS, self.seconds * CLIMB_SOONER)
        return pace * CLIMB

    def refused(self) -> None:
        """It was too steep."""
        self.seconds *= CLIMB_SLOWER
