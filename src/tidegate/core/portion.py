"""A quota that is enforced over a shorter window than the one it is announced for.

A minute's 600 requests may be let in as ten a second (OpenAI's and xAI's documents, Anthropic's, Azure's; PROVIDERS.md
sections 1, 2, 5 and 6), and no header says so: the refusal's own reading shows plenty. What tells it is that the
requests let in lately make up such a portion, and that the refusal names a time within the shorter window.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.vocabulary import Reading
from tidegate.core.window import Window

SHORTER = (1.0, 10.0)
"""Windows in seconds over which a longer quota is enforced (PROVIDERS.md section 2: Azure's are of 1 s or 10 s)."""

SEEN = 0.25
WHOLE = 0.9
MORE = 1.1
"""Shares of a portion that must have been let in lately: where only what is still under way is known (the rest may have
been answered meanwhile), and where all of it is; and that may have been."""

STRIKES = 3
STRIKES_WINDOWS = 5.0
"""Refusals that a portion may explain before it counts as none: so many, and one more for each so many windows."""


class Portion:
    """The mirror of the shorter quota, and what was announced when it was found: the limit of the quota `parent`."""

    __slots__ = ("_limit", "_strikes", "mirror", "parent")

    def __init__(self, mirror: Window, parent: str, limit: float) -> None:
        self.mirror = mirror
        self.parent = parent
        self._limit = limit
        self._strikes = 0

    def explains(self, now: float) -> bool:
        """Return whether it explains one more refusal, as one of which half had been spent."""
        return self.mirror.level(now) < 0.5 * self.mirror.limit

    def fails(self, limit: float, now: float) -> bool:
        """Return whether it was none: its quota has another `limit` now, refills otherwise, or refuses on."""
        allowed = STRIKES + (now - self.mirror.since) / (STRIKES_WINDOWS * self.mirror.window)
        return limit != self._limit or self.mirror.turned is not None or self._strikes > allowed

    def refused(self) -> None:
        """It explained a refusal."""
        self._strikes += 1


class LetIn(NamedTuple):
    """The calls let in before a refused request: seconds before it, of those under way; how many in all since the first
    of them, in so many seconds.
    """

    under_way: list[float]
    calls: int
    seconds: float


def portion_of(name: str, limit: float, window: float, let_in: LetIn, wait: float) -> Reading | None:
    """The shorter quota that a refusal speaks of, told as a reading of it, or None where it speaks of none.

    `name`, `limit` and `window` (seconds) are the announced quota's, `wait` is how many seconds the refusal asks for.
    """
    for shorter in SHORTER:
        portion = float(round(limit * shorter / window))
        known = let_in.seconds <= shorter
        lately = let_in.calls if known else sum(ago <= shorter for ago in let_in.under_way)
        least = portion * (WHOLE if known else SEEN)
        if 2.0 * shorter <= window and wait <= shorter and least <= lately <= int(MORE * portion):
            # The window may be known roughly only: what was let in fits in.
            whole = max(1.0, portion, float(lately))
            return Reading(f"{name}-{shorter:g}s", "requests", "fixed", whole, 0.0, None, shorter)
    return None
