"""How many calls may be in flight at once: additive increase, multiplicative decrease, with slow start.

Theory of operation. The limit starts at a useful number and grows by one for every success (it doubles each round)
until the first cut: slow start. After a cut (the admission makes one per epoch) it grows back in slow start to just
under where it was cut, then by a small step per round. It grows only while it is what holds calls back: an idle client
proves nothing.
"""

from __future__ import annotations

SATURATED = 0.8
"""Share of the limit that must be in flight for a success to count towards growth (Inspect AI 0.3.285: 80 %)."""

GROWTH_SHARE = 0.05
"""Step per clean round after a cut, at least 1 (Inspect AI 0.3.285: 5 %; TCP Reno: 1)."""

REGROW_SHARE = 0.9
"""Where slow start after a cut hands over to single steps, as a share of the level that was refused."""


class ConcurrencyLimit:
    """The number of slots of one key: how many calls may be in flight; never below 1, never above `highest`."""

    __slots__ = ("_announced", "_threshold", "_value", "cut", "highest", "scarcity", "slots")

    def __init__(self, start: int, highest: int, cut: float) -> None:
        self._value = float(min(start, highest))
        self._threshold = float("inf")
        self._announced = False
        self.highest = highest
        self.cut = cut
        self.scarcity = 1.0
        self.slots = 1
        self._set(self._value)

    @property
    def growing_fast(self) -> bool:
        """Whether the limit is in slow start."""
        return self._value < self._threshold

    def announced(self, remaining: float) -> None:
        """A first header said that `remaining` requests stand ready: in the first slow start the limit goes there."""
        if not self._announced and self._threshold == float("inf"):
            self._set(max(self._value, remaining))
        self._announced = True

    def succeeded(self, in_flight: int) -> bool:
        """Counts a success with `in_flight` calls under way, itself included; returns whether a whole slot was won."""
        if in_flight < SATURATED * self.slots or self.scarcity < 1.0 or self._value >= self.highest:
            return False
        before = int(self._value)
        step = 1.0 if self.growing_fast else max(1.0, GROWTH_SHARE * self._value) / self._value
        self._set(self._value + step)
        return int(self._value) > before

    def refused(self, in_flight: int) -> None:
        """Cuts the limit, from the smaller of itself and what was in flight; the caller calls it once per epoch."""
        level = min(self._value, float(max(1, in_flight)))
        self._threshold = max(1.0, REGROW_SHARE * level)
        self._set(max(1.0, self.cut * level))

    def scarce(self, share: float) -> None:
        """Holds back a part of the slots while `share` (0 to 1) of a quota remains: 20 % of them at 0, 60 % at 10 %.

        Only for quotas that no mirror can pace; promptfoo's scheduler acts at the same 10 % with the same factors.
        """
        self.scarcity = 1.0 if share >= 0.1 else 0.2 + 4.0 * max(0.0, share)
        self._set(self._value)

    def _set(self, value: float) -> None:
        self._value = min(float(self.highest), value)
        self.slots = max(1, int(self._value * self.scarcity + 1e-9))
