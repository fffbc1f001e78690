"""The worth of estimated tokens in the provider's count, and the spread of their error.

Theory of operation. Between two answers a bucket's level falls by what was charged less what came back. Over a span of
a tenth of the limit that is held against what had been estimated, and their ratio is the worth of an estimate. Single
steps say how far estimates are off: the deviation of those that no answer has confirmed yet follows from it.
"""

from __future__ import annotations

SCALE_SPAN = 0.1
SCALE_WEIGHT = 0.3
SCALE_STEP = 2.0
SCALE_NOISE = 0.1
SCALE_BOUNDS = (0.1, 10.0)
"""What a token estimate is worth is read off over spans of a tenth of the limit, three parts new to seven old.

Deviations under a tenth are noise.
"""

FULL = 0.98
"""A bucket this full may have wasted refill: a span that touches it proves nothing."""

NOISE_MEMORY = 0.98
NOISE_DEVIATIONS = 0.5
NOISE_MOST = 0.01
"""Of a token quota so many deviations more are kept in hand, and no more than that share of the limit: by how much the
estimates that no answer has confirmed yet are off, seen from those that were."""


class Worth:
    """The worth of the estimates against one quota; `scale` is what is charged for an estimated token."""

    __slots__ = ("_at", "_clear", "_confirmed", "_estimated", "_level", "_squares", "scale")

    def __init__(self, level: float, now: float) -> None:
        self.scale = 1.0
        self._at, self._level, self._estimated = now, level, 0.0
        self._clear = False
        self._squares = self._confirmed = 0.0

    def confirmed(self, amount: float, estimated: float, deviation: float, rounding: float) -> None:
        """An answer confirmed charges of `amount`, `estimated` before they were scaled.

        It found `deviation` less, or more, than was expected; levels are rounded to `rounding`.
        """
        self._estimated += estimated
        self._squares = NOISE_MEMORY * self._squares + max(0.0, deviation**2 - rounding**2 / 6.0)
        self._confirmed = NOISE_MEMORY * self._confirmed + amount

    def noise(self, outstanding: float, limit: float) -> float:
        """Return what to keep in hand while so much is outstanding."""
        if self._confirmed <= 0.0 or outstanding <= 0.0:
            return 0.0
        deviation: float = (self._squares / self._confirmed * outstanding) ** 0.5
        return min(NOISE_DEVIATIONS * deviation, NOISE_MOST * limit)

    def learn(self, level: float, refilled: float, rate: float, limit: float, sent_at: float, unsure: bool) -> None:
        """Closes a span at an answer that found `level`, where `refilled` would have been with nothing charged since.

        `unsure` says that requests overtake each other just there.
        """
        usable = self._clear and max(level, refilled) < FULL * limit
        if unsure:
            # Overtaking makes both ends of a span unsure: it is closed, or begun, at an anchor that is clear of it.
            self._clear = usable
            return
        charged = self._level + rate * (sent_at - self._at) - level
        usable = usable and charged > 0.0
        if usable and self._estimated < SCALE_SPAN * limit:
            return
        if usable and abs(charged / self._estimated - self.scale) > SCALE_NOISE * self.scale:
            worth = charged / self._estimated
            worth = min(self.scale * SCALE_STEP, max(self.scale / SCALE_STEP, worth))
            low, high = SCALE_BOUNDS
            self.scale = min(high, max(low, (1.0 - SCALE_WEIGHT) * self.scale + SCALE_WEIGHT * worth))
        self._at, self._level, self._estimated = sent_at, level, 0.0
        self._clear = level < FULL * limit
