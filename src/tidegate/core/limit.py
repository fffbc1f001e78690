"""How many calls may be in flight at once: additive increase, multiplicative decrease, with slow start.

Theory of operation. The limit starts at a useful number and grows by one for every success (it doubles each round)
until the first cut: slow start. After a cut (the admission makes one per epoch) it grows back in slow start to just
under where it was cut, then by a small step per round. It grows only while it is what holds calls back: an idle client
proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

SATURATED = 0.8
"""Share of the limit that must be in flight for a success to count towards growth (Inspect AI 0.3.285: 80 %)."""

GROWTH_SHARE = 0.05
"""Step per clean round after a cut, at least 1 (Inspect AI 0.3.285: 5 %; TCP Reno: 1)."""

REGROW_SHARE = 0.9
"""Where slow start after a cut hands over to single steps, as a share of the level that was refused."""


class ConcurrencyLimit:
    """The number of slots of one key: how many calls may be in flight; never below 1, never above `highest`."""

    __slots__ = (
        "_announced",
        "_first",
        "_seeded",
        "_threshold",
        "_trial",
        "_value",
        "cut",
        "highest",
        "scarcity",
        "slots",
    )

    def __init__(self, start: int, highest: int, cut: float) -> None:
        self._value = self._first = float(min(start, highest))
        self._trial = self._seeded = 0.0
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
        if self._trial > 0.0:
            self._trial -= 1.0
            if self._trial <= 0.0:
                self._set(max(self._value, self._first))
        step = 1.0 if self.growing_fast else max(1.0, GROWTH_SHARE * self._value) / self._value
        self._set(self._value + step)
        return int(self._value) > before

    def refused(self, in_flight: int) -> None:
        """Cuts the limit, from the smaller of itself and what was in flight; the caller calls it once per epoch."""
        if self._trial > 0.0:
            self._trial = 0.0
            if in_flight > self._seeded:
                self._threshold = self._seeded
                self._set(self._seeded)
                return
            self._set(self._first)
        level = min(self._value, float(max(1, in_flight)))
        self._threshold = max(1.0, REGROW_SHARE * level)
        self._set(max(1.0, self.cut * level))

    def scarce(self, share: float) -> None:
        """Holds back a part of the slots while `share` (0 to 1) of a quota remains: 20 % of them at 0, 60 % at 10 %.

        Only for quotas that no mirror can pace; promptfoo's scheduler acts at the same 10 % with the same factors.
        """
        self.scarcity = 1.0 if share >= 0.1 else 0.2 + 4.0 * max(0.0, share)
        self._set(self._value)

    def export(self, now: float) -> dict[str, float]:
        """The limit, for a later run; nothing while it is the one it began with."""
        return {"slots": self._value} if self._value != self._first else {}

    def seed(self, plain: Mapping[str, float], now: float) -> None:
        """Begins with the limit of an earlier run, on trial for one round.

        A refusal within it ends the trial: of what the earlier run bore, the limit begins as if nothing had been known;
        of one more, the earlier run was right. A round without one lets a limit that is low begin as any other.
        """
        self._trial = self._seeded = min(float(self.highest), max(1.0, plain.get("slots", self._value)))
        self._set(self._seeded)

    def _set(self, value: float) -> None:
        self._value = min(float(self.highest), value)
        self.slots = max(1, int(self._value * self.scarcity + 1e-9))
