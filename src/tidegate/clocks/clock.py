"""One clock of a framework: what it measures, how long it is, where it can be set, how far it is stretched."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidegate.clocks.dials import Default, Variable

LIFTED = 31_536_000
"""Seconds of a clock that is as good as off: a year, the bound of `Settings.max_wait`."""


@dataclass(frozen=True)
class Clock:
    """A row of the table; `seconds` is the default of the version that `source` names.

    `framework` is the distribution, as its metadata has it; `measures` is what the clock runs over, and `then` what
    the framework does when it has run out. One of the `whole_run` is as long as the run has rows: no number of seconds
    is right for it.
    """

    framework: str
    measures: str
    seconds: float
    then: str
    dials: tuple[Default | Variable, ...]
    source: str
    whole_run: bool = False

    def stretched(self, seconds: float, max_wait: float) -> int:
        """Return how many seconds it gets in place of `seconds`, a whole number: some frameworks read no other.

        The longest a call may wait, and what the framework found long enough for a call that does not: so a hung call
        still ends. A clock of the whole run is lifted, for its rows end by clocks of their own.
        """
        return LIFTED if self.whole_run else math.ceil(max_wait + seconds)


def shown(seconds: float) -> str:
    """A clock's length as people read it."""
    return "a year" if seconds == LIFTED else f"{seconds:g} s"
