"""Rate that a provider admits between refusals, and the spacing of calls at a pace.

Theory of operation. Refusals return at once, so an attempt that was not refused was admitted. A refusal says that the
hidden quota was empty when the refused attempt was sent. Between two such instants (the last one is the *zero*) the
provider admitted exactly the units that came back. So `admitted / seconds` is its rate (`RateMeter`), however large its
bucket is. The calls admitted before the very first refusal are the content of the bucket, except for the units that
came back.

`PacingBucket` is a small token bucket that refills at `rate`; a refusal empties it. It holds one call, and what came
back while a call waited, because a late event loop catches up. After an idle time it holds what the provider's bucket
kept. After a refusal nothing goes for a while, then one attempt goes *alone*. Since refusals return much sooner than
answers, it was admitted if it is not refused within a few refusal round trips. Only then do others follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from tidegate.core.values import INFINITY

BEST_RATE_KEPT_SHARE = 0.93
"""Share that is left of the best rate at each measurement, so that ten of them forget it."""

REMEMBERED_SENDS = 512
"""Sends whose instants are kept, at 16 bytes each. Chosen: all are read at each refusal."""

DEEP_BUCKET_SECONDS = 3.0
"""Seconds of its rate that a deep bucket holds: right after it was drained, little is admitted at first."""


class Burst(NamedTuple):
    """Calls that were admitted within `seconds` before a refused one, since the key was last idle."""

    calls: int
    seconds: float


class RateMeter:
    """The counts of one key. Rates are in calls a second: `rate` was measured last (0: never), `best` of all recently.

    `burst` is what the hidden bucket seems to hold, in calls; `price` is how many refusals the next measurement has
    cost so far. `last` is what `rate` was taken from: calls and seconds. The newest refusal `stated` between which
    instants the next call is admitted, None where it did not.
    """

    __slots__ = (
        "_least_content",
        "_refused",
        "_refused_mark",
        "_seen",
        "_sends",
        "_zero_at",
        "_zero_count",
        "_zero_mark",
        "_zero_stated",
        "best",
        "burst",
        "consistent",
        "doubted",
        "first",
        "first_at",
        "high",
        "last",
        "low",
        "price",
        "rate",
        "sent",
        "stated",
    )

    def __init__(self) -> None:
        self.rate = self.best = self.low = 0.0
        self.high = INFINITY
        self.burst = 1.0
        self.consistent = True
        self.doubted = False
        self.last = (0, 0.0)
        self.sent = self.price = self._refused = 0
        self._zero_at, self._zero_count = 0.0, 0
        self._zero_mark = self._refused_mark = -1
        self._seen = -1
        self.first: Burst | None = None
        self.first_at = 0.0
        self._least_content = 1.0
        self._sends: deque[tuple[int, float]] | None = None
        self.stated: tuple[float, float] | None = None
        self._zero_stated: tuple[float, float] | None = None

    @property
    def let_in(self) -> int:
        """Calls admitted, or not known to have been refused."""
        return self.sent - self._refused

    def note(self, run: Burst, at: float = 0.0, alone: bool = False) -> None:
        """Record that the first refusal ended `run`; calls before one that went `alone` show no content."""
        if self.first is None:
            self.first, self.first_at = run, at
            self._least_content = INFINITY if alone else 1.0
            # Most that the bucket may hold, until its rate is measured.
            self.burst = max(self.burst, float(run.calls))

    def begin(self, at: float) -> None:
        """Count from here on: the hidden quota was empty."""
        self._zero_at, self._zero_count, self._zero_mark = at, self.sent - self._refused, self.sent - 1
        self._zero_stated = self.stated
        self._seen = self._zero_count
        self.price = 0

    def went(self, now: float) -> None:
        if self._sends is None:
            self._sends = deque(maxlen=REMEMBERED_SENDS)
        self._sends.append((self.sent, now))
        self.sent += 1

    def bounds(self, mark: int, sent_at: float) -> tuple[float, float]:
        """Return the least and the highest rate that explain the calls since the zero and the refusal of `sent_at`.

        Where no rate does, another cause refused or the rate has changed: `consistent` is False then.
        """
        count, seconds = self.since_zero(mark - self._refused, sent_at)
        # Before the first measurement, the calls since the zero tell the rate roughly.
        content = self._content_at(self.rate or (count / seconds if seconds > 0.0 else 0.0))
        low, high = self._bounds(mark, sent_at, content)
        self.consistent = low <= high
        return min(low, high), high

    def _bounds(self, mark: int, sent_at: float, content: float) -> tuple[float, float]:
        times = [at for index, at in self._sends or () if self._zero_mark < index < mark]
        seconds = sent_at - self._zero_at
        if seconds <= 0.0:
            return 0.0, INFINITY
        low, high = 0.0, (len(times) + 1.0) / seconds
        for place, at in enumerate(times):
            after = len(times) - place + 1.0 - content
            if after > 0.0 and sent_at > at:
                high = max(high, after / (sent_at - at))
            if at > self._zero_at:
                low = max(low, place / (at - self._zero_at))
        last = times[-1] if times else sent_at
        for place, at in enumerate(times):
            if last > at:
                low = max(low, (len(times) - place - content) / (last - at))
        if self.stated is not None:
            # After the last call the bucket was not below zero, so a unit takes at least from then until it is back.
            next_low, next_high = self.stated
            if next_low > last:
                high = min(high, 1.0 / (next_low - last))
            if self._zero_stated is not None:
                # Between the two instants that were stated, exactly the admitted units came back.
                zero_low, zero_high = self._zero_stated
                if next_high > zero_low:
                    low = max(low, len(times) / (next_high - zero_low))
                if next_low > zero_high and content >= len(times):
                    high = min(high, len(times) / (next_low - zero_high))
        return low, high

    @property
    def informed(self) -> bool:
        """Return whether it is known what the bucket holds, and a rate explains the calls since the zero."""
        return self.content < INFINITY and self.consistent and not self.doubted

    def believe(self, least: float, highest: float) -> bool:
        """Narrow the bounds of the rate; return False where they contradict the former ones: the rate has changed."""
        if least > self.high or highest < self.low:
            self.low, self.high = least, highest
            return False
        self.low, self.high = max(self.low, least), min(self.high, highest)
        return True

    @property
    def content(self) -> float:
        """Return the most calls that the bucket may hold, by the run before the first refusal."""
        return self._content_at(self.rate)

    def _content_at(self, rate: float) -> float:
        """Return the same at a rate: what came back during that run was no content."""
        if self.first is None:
            return self.burst
        return max(self._least_content, float(ceil(self.first.calls - rate * self.first.seconds)))

    def refused(self, mark: int) -> int:
        """Count a refusal of the attempt sent after `mark` others; return how many of those were admitted."""
        self.price += 1
        let_in = mark - self._refused
        self._refused, self._refused_mark = self._refused + 1, mark
        self._forget(mark)
        return let_in

    def _forget(self, mark: int) -> None:
        sends = self._sends
        if sends is None:
            return
        for place in range(len(sends) - 1, -1, -1):
            if sends[place][0] <= mark:
                if sends[place][0] == mark:
                    del sends[place]
                return

    def withdrawn(self) -> None:
        """Take back a call that was counted as sent: it never was, so it was not admitted, and cost nothing."""
        self._refused += 1

    @property
    def sends(self) -> Iterable[tuple[int, float]]:
        """Numbers and instants of the newest calls that are not known to have been refused."""
        return self._sends or ()

    def since_zero(self, let_in: int, sent_at: float) -> tuple[int, float]:
        return let_in - self._zero_count, sent_at - self._zero_at

    @property
    def zero_at(self) -> float:
        return self._zero_at

    @property
    def first_since_zero(self) -> float:
        return next((at for _, at in self._sends or () if at > self._zero_at), 0.0)

    def pace(self, now: float) -> float:
        """Return the calls a second since the zero that were admitted, or are not known to have been refused."""
        count, seconds = self.since_zero(self.let_in, now)
        return count / seconds if seconds > 0.0 else 0.0

    def nothing_new(self, let_in: int) -> bool:
        """Return whether nothing was admitted since the last refusal that was asked about."""
        before, self._seen = self._seen, let_in
        return let_in == before

    def zero(self, let_in: int, sent_at: float) -> None:
        """Count from the refusal on that was counted last."""
        self._zero_stated = self.stated
        self._zero_at, self._zero_count, self._zero_mark = sent_at, let_in, self._refused_mark

    def measured(self, count: int, seconds: float) -> None:
        """Take in a measurement: `count` calls came back in `seconds`."""
        self.rate = count / seconds
        self.best = max(self.rate, self.best * BEST_RATE_KEPT_SHARE)
        self.last = (count, seconds)
        self.price = 0
        if self.first is not None:
            self.burst = max(1.0, self.first.calls - self.rate * self.first.seconds)

    def deep(self, pace: float) -> bool:
        return self.burst > DEEP_BUCKET_SECONDS * pace


class PacingBucket:
    """The spacing of one key's calls; `rate` is in calls a second, instants are monotonic seconds.

    An attempt that went alone was admitted where nothing was heard of it for `grace` seconds. `waits` counts how often
    in a row one was refused, `wait` is how long the last of them waited, in seconds.
    """

    __slots__ = ("_at", "_judged_at", "_level", "_lone", "_rate", "_saved", "grace", "wait", "waits")

    def __init__(self) -> None:
        self._rate = 0.0
        self.grace = 0.0
        self.waits = 0
        self.wait = 0.0
        self._level = self._at = 0.0
        self._lone = False
        self._saved = 0.0
        self._judged_at = INFINITY

    @property
    def rate(self) -> float:
        return self._rate

    def set_rate(self, rate: float, now: float) -> None:
        """Change the pace from `now` on: what came back so far stays, and a wait below zero keeps its seconds."""
        self._level += self._rate * (now - self._at)
        if self._level < 0.0 < self._rate:
            self._level *= rate / self._rate
        self._rate, self._at = rate, now

    def opens_at(self, now: float) -> float:
        missing = 1.0 - self._level - self._rate * (now - self._at)
        return now if missing <= 1e-9 else now + missing / self._rate

    def opened_at(self) -> float:
        """Return when the next call may go, or could have gone."""
        return self._at + (1.0 - self._level) / self._rate

    def alone(self, now: float) -> bool:
        """Return whether an attempt is under way that no call may follow before its fate is known."""
        return now < self._judged_at < INFINITY

    @property
    def lone(self) -> bool:
        return self._lone

    def proven(self, now: float) -> bool:
        """Return whether the attempt that went alone has been admitted by now; true once for each."""
        if now < self._judged_at:
            return False
        self._judged_at = INFINITY
        return True

    def sent(self, burst: float, now: float, waited: float = 0.0) -> tuple[bool, float]:
        """Count a call that waited for `waited` seconds, where the provider's bucket holds `burst`.

        Return whether it goes alone, and the seconds for which the pace was unused before. A bucket kept what came back
        to an idle client.
        """
        level = self._level + self._rate * (now - self._at)
        most = 1.0 + self._rate * waited + self._saved
        unused = (level - most) / self._rate if level > most + 1.0 else 0.0
        if unused:
            self._saved = most = min(level, burst)
        self._saved = max(0.0, min(self._saved, level) - 1.0)
        self._level, self._at = min(level, most, burst) - 1.0, now
        alone, self._lone = self._lone, False
        if alone:
            self._judged_at = now + self.grace
            self._level = min(0.0, 1.0 - self._rate * self.grace)
        return alone, unused

    def owe_at_most(self, calls: float) -> None:
        """Forget what was sent in excess of the pace by more than some calls."""
        self._level = max(self._level, -calls)

    def withdrawn(self, sent_at: float, now: float) -> None:
        """Undo the call admitted at `sent_at`: the next may go in its stead, alone if it was to go alone."""
        if self._judged_at == sent_at + self.grace:
            self._judged_at = INFINITY
            self._level, self._at, self._lone = 1.0, now, True
        else:
            self._level += 1.0

    def emptied(self, now: float) -> None:
        """Record a refusal: nothing is left."""
        self._judged_at = INFINITY
        self._level, self._at = min(0.0, self._level + self._rate * (now - self._at)), now

    def ready(self, level: float, now: float) -> None:
        self._level, self._at = level, now

    def paused(self, seconds: float, rate: float) -> None:
        """Save what comes back at `rate` in `seconds` without calls; then one may go, and nothing goes alone."""
        self._saved = rate * seconds
        self._level = min(self._level, max(1.0, self._saved) - self._rate * seconds)
        self._lone = False

    def burst(self, calls: int, now: float) -> None:
        self._level, self._at, self._saved, self._lone = float(calls), now, calls - 1.0, False

    def hold_off(self, seconds: float) -> None:
        """Let nothing go for this time from the refusal that emptied the bucket; never shorten that."""
        self._level = min(self._level, 1.0 - self._rate * seconds)

    def wait_alone(self, seconds: float) -> None:
        """Let one attempt go alone, `seconds` after the refusal that emptied the bucket."""
        self.waits += 1
        self.wait = seconds
        self._level = 1.0 - self._rate * seconds
        self._lone = True

    def reset_backoff(self) -> None:
        """Make the next wait short again: enough was admitted."""
        self.waits, self.wait = 0, 0.0
