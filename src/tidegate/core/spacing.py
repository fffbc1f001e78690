"""Lets calls go at a rate, one after the other, and alone after a refusal.

Theory of operation. A small bucket that refills at `rate`; a refusal empties it. It holds hardly more than one call:
what a late timer missed may be caught up, what an idle client did not use may not. After a refusal nothing goes for a
while, then one attempt goes *alone*: refusals come back much sooner than answers, so it was let in where nothing was
heard of it for a few refusal round trips, and only then do others follow.
"""

from __future__ import annotations

BURST_SECONDS = 0.05
"""What a late timer may catch up, in seconds of the pace, on top of one call."""

INFINITY = float("inf")


class Spacing:
    """The spacing of one key's calls; `rate` is in calls a second, instants are monotonic seconds.

    An attempt that went alone was let in where nothing was heard of it for `grace` seconds. `waits` counts how often in
    a row one was refused, `wait` is how long the last of them waited, in seconds.
    """

    __slots__ = ("_at", "_judged_at", "_level", "_lone", "grace", "rate", "wait", "waits")

    def __init__(self) -> None:
        self.rate = 0.0
        self.grace = 0.0
        self.waits = 0
        self.wait = 0.0
        self._level = self._at = 0.0
        self._lone = False
        self._judged_at = INFINITY

    def opens_at(self, now: float) -> float:
        """When the next call may go."""
        missing = 1.0 - self._level - self.rate * (now - self._at)
        return now if missing <= 1e-9 else now + missing / self.rate

    def alone(self, now: float) -> bool:
        """Return whether an attempt is under way that nobody may follow before its fate is known."""
        return now < self._judged_at < INFINITY

    def proven(self, now: float) -> bool:
        """Return whether the attempt that went alone has been let in by now; true once for each."""
        if now < self._judged_at:
            return False
        self._judged_at = INFINITY
        return True

    def sent(self, burst: float, now: float) -> tuple[bool, bool]:
        """A call goes out where the provider's bucket holds `burst`.

        Returns whether it goes alone, and whether the pace had been left unused before it.
        """
        level = self._level + self.rate * (now - self._at)
        most = min(burst, 1.0 + BURST_SECONDS * self.rate)
        self._level, self._at = min(level, most) - 1.0, now
        alone, self._lone = self._lone, False
        if alone:
            self._judged_at = now + self.grace
            self._level = min(0.0, 1.0 - self.rate * self.grace)
        return alone, level > most + 1.0

    def withdrawn(self, sent_at: float, now: float) -> None:
        """Undo the call admitted at `sent_at`: the next may go in its stead, alone if it was to go alone."""
        if self._judged_at == sent_at + self.grace:
            self._judged_at = INFINITY
            self._level, self._at, self._lone = 1.0, now, True
        else:
            self._level += 1.0

    def emptied(self, now: float) -> None:
        """A refusal: nothing is left."""
        self._judged_at = INFINITY
        self._level, self._at = min(0.0, self._level + self.rate * (now - self._at)), now

    def ready(self, level: float, now: float) -> None:
        """Has `level` calls to let go at `now`."""
        self._level, self._at = level, now

    def hold_off(self, seconds: float) -> None:
        """Lets nothing go for so long from the refusal that emptied it; never shortens that."""
        self._level = min(self._level, 1.0 - self.rate * seconds)

    def wait_alone(self, seconds: float) -> None:
        """Lets one go alone, `seconds` after the refusal that emptied it."""
        self.waits += 1
        self.wait = seconds
        self._level = 1.0 - self.rate * seconds
        self._lone = True

    def went_on(self) -> None:
        """Enough was let in: the next wait is short again."""
        self.waits, self.wait = 0, 0.0
