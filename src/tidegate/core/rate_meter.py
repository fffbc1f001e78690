"""Rate that a provider admits between refusals, and the spacing of calls at a pace.

Theory of operation. Refusals return at once, so an attempt that was not refused was admitted. A refusal says that the
hidden quota was empty when the refused attempt was sent. Between two such instants (the last one is the *zero*) the
provider admitted exactly the units that came back. So `admitted / seconds` is its rate (`RateMeter`), however large its
bucket is. The calls admitted before the very first refusal are the content of the bucket, except for the units that
came back.

`PacingBucket` is a small token bucket that refills at `rate`; a refusal empties it. It holds one call, and what came
back while a call waited: a late event loop catches up, but an idle client does not. After a refusal nothing goes for a
while, then one attempt goes *alone*. Since refusals return much sooner than answers, it was admitted if it is not
refused within a few refusal round trips. Only then do others follow.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.values import INFINITY

BEST_FADES = 0.93
"""What is left of the best rate at each measurement: it is forgotten over some ten of them."""

DEEP = 3.0
"""Seconds of its rate that a bucket must hold to be deep: right after it was drained, little is admitted at first."""


class Burst(NamedTuple):
    """Calls that were admitted within `seconds` before a refusal, since the key was last idle.

    `most` is the rate of the fastest announced quota of requests, in calls a second; infinity without any.
    """

    calls: int
    seconds: float
    most: float


class RateMeter:
    """The counts of one key. Rates are in calls a second: `rate` was measured last (0: never), `best` of all recently.

    `burst` is what the hidden bucket seems to hold, in calls; `price` is how many refusals the next measurement has
    cost so far. `last` is what `rate` was taken from: calls and seconds.
    """

    __slots__ = (
        "_first",
        "_refused",
        "_seen",
        "_zero_at",
        "_zero_count",
        "best",
        "burst",
        "last",
        "price",
        "rate",
        "sent",
    )

    def __init__(self) -> None:
        self.rate = self.best = 0.0
        self.burst = 1.0
        self.last = (0, 0.0)
        self.sent = self.price = self._refused = 0
        self._zero_at, self._zero_count = 0.0, 0
        self._seen = -1
        self._first: Burst | None = None

    @property
    def let_in(self) -> int:
        """Calls that were admitted, or are not known to have been refused."""
        return self.sent - self._refused

    def note(self, run: Burst) -> None:
        """The first refusal of all came after `run`; repeating it does nothing."""
        if self._first is None:
            self._first = run
            # Most that the bucket may hold, until its rate is measured.
            self.burst = max(self.burst, float(run.calls))

    def begin(self, at: float) -> None:
        """Counts from here on, where the hidden quota was empty."""
        self._zero_at, self._zero_count = at, self.sent - self._refused
        self._seen = self._zero_count
        self.price = 0

    def refused(self, mark: int) -> int:
        """Counts a refusal of what was sent after `mark` others; returns how many of those were admitted."""
        self.price += 1
        let_in = mark - self._refused
        self._refused += 1
        return let_in

    def withdrawn(self) -> None:
        """Take back a call that was counted as sent: it never was, so it was not admitted, and cost nothing."""
        self._refused += 1

    def since_zero(self, let_in: int, sent_at: float) -> tuple[int, float]:
        """Calls that were admitted since the zero, and the seconds it took."""
        return let_in - self._zero_count, sent_at - self._zero_at

    def pace(self, now: float) -> float:
        """Calls a second that were admitted since the zero, or are not known to have been refused."""
        count, seconds = self.since_zero(self.let_in, now)
        return count / seconds if seconds > 0.0 else 0.0

    def nothing_new(self, let_in: int) -> bool:
        """Return whether nothing was admitted since the last refusal that was asked about."""
        before, self._seen = self._seen, let_in
        return let_in == before

    def zero(self, let_in: int, sent_at: float) -> None:
        """Counts from this refusal on."""
        self._zero_at, self._zero_count = sent_at, let_in

    def measured(self, count: int, seconds: float) -> None:
        """Takes in a measurement: `count` calls came back in `seconds`."""
        self.rate = count / seconds
        self.best = max(self.rate, self.best * BEST_FADES)
        self.last = (count, seconds)
        self.price = 0
        if self._first is not None:
            self.burst = max(1.0, self._first.calls - self.rate * self._first.seconds)

    def deep(self, pace: float) -> bool:
        """Return whether the bucket holds seconds of this pace."""
        return self.burst > DEEP * pace


class PacingBucket:
    """The spacing of one key's calls; `rate` is in calls a second, instants are monotonic seconds.

    An attempt that went alone was admitted where nothing was heard of it for `grace` seconds. `waits` counts how often
    in a row one was refused, `wait` is how long the last of them waited, in seconds.
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
        """Return whether the attempt that went alone has been admitted by now; true once for each."""
        if now < self._judged_at:
            return False
        self._judged_at = INFINITY
        return True

    def sent(self, burst: float, now: float, waited: float = 0.0) -> tuple[bool, bool]:
        """A call goes out that has waited for `waited` seconds, where the provider's bucket holds `burst`.

        Returns whether it goes alone, and whether the pace had been left unused before it.
        """
        level = self._level + self.rate * (now - self._at)
        most = 1.0 + self.rate * waited
        self._level, self._at = min(level, most, burst) - 1.0, now
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

    def reset_backoff(self) -> None:
        """Enough was admitted: the next wait is short again."""
        self.waits, self.wait = 0, 0.0
