"""A local copy of a provider's quota that comes back all at once, at a boundary.

Theory of operation. In a fixed window nothing refills until the boundary, then the whole limit is there. Response k
says what remained when request k was admitted, and perhaps how long until the boundary, rounded; a refusal's
retry-after says that too, and a remaining that jumped up between two sends says that one was passed. Each such sign is
an interval in which the boundary lies; `Boundaries` makes of them when the next one comes.

Where that is not known, an empty window is tried carefully: one request, and twice as many whenever a step of a few
refusal round trips has gone by without a refusal. So does a copy after its first boundary that is only `supposed` to
be of a window, because nothing told how the quota comes back. Where little is back then, it refills continuously, and
`turned` says so.
"""

from __future__ import annotations

from collections import deque

from tidegate.core.boundaries import Boundaries
from tidegate.core.derive import DEFAULT_WINDOW, MONTH, usable_window
from tidegate.core.ledger import Debit
from tidegate.core.mirror import OVERTAKEN, Mirror
from tidegate.core.steps import Steps
from tidegate.core.vocabulary import Reading, Refill

PROBE_FIRST = 1.0
PROBE_GROWTH = 1.5
PROBE_LAST = 15.0
"""Seconds between probes of an empty window whose boundary is unknown: a quarter of a minute at most."""

BOUNDARY_GUARD = 0.02
"""Seconds waited past a boundary, so that a request does not arrive just before it."""

STEP_ROUND_TRIPS = 3.0
STEP_FIRST = 0.25
STEP_BOUNDS = (0.02, 2.0)
STEP_WINDOWS = 1.0 / 24.0
"""Seconds in which a refusal would have come back: three refusal round trips, as in `pause`; and at most such a part of
a window that the whole limit, which takes twelve steps, is out in half of it."""

PROVEN = 0.9
"""Share of the limit that goes out within one window, unrefused, where what was supposed to be one is one."""

WIDE = 0.2
"""Share of a period: where a boundary is less sure than that, trying tells more than waiting."""

BACK = 0.5
LITTLE = 0.25
"""Shares of the limit: so much more than expected is left where a boundary was passed, and so little where none was."""


class Window(Mirror):
    """The mirror of one fixed-window quota of one key."""

    __slots__ = (
        "_anchor_at",
        "_began_at",
        "_boundaries",
        "_careful",
        "_ceiling",
        "_exhausted",
        "_late",
        "_lately",
        "_probe_at",
        "_probe_delay",
        "_remaining",
        "_step",
        "_supposed",
        "_tells",
        "turned",
    )

    turned: Refill | None

    def __init__(
        self, reading: Reading, now: float, default_window: float = DEFAULT_WINDOW, supposed: bool = False
    ) -> None:
        super().__init__(reading, now)
        self.turned = None
        self._boundaries = Boundaries(usable_window(reading.window, default_window), reading.window is not None)
        self._supposed = supposed
        self._tells = False
        self._remaining = self._ceiling = self.limit
        self._anchor_at = now
        self._began_at = float("-inf")
        self._late: deque[Debit] = deque()
        self._lately = 0.0
        self._exhausted = False
        self._probe_at = 0.0
        self._probe_delay = PROBE_FIRST
        self._careful: Steps | None = None
        self._step = STEP_FIRST

    @property
    def window(self) -> float:
        """Seconds from one boundary to the next."""
        return self._boundaries.period

    @property
    def declared(self) -> float | None:
        """Its window where that is certain."""
        return self._boundaries.period if self._boundaries.known else None

    @property
    def _certain(self) -> bool:
        # Whether waiting for the boundary is right, and no try would tell more.
        boundaries = self._boundaries
        if boundaries.low is None or boundaries.high is None or not boundaries.certain:
            return False
        return boundaries.high - boundaries.low <= WIDE * boundaries.period

    @property
    def paces(self) -> bool:
        """Return whether the instant at which the quota comes back is known."""
        return self._boundaries.high is not None

    def level(self, now: float) -> float:
        """Units that may be spent at `now`."""
        self._roll(now)
        level = self._unspent()
        if self._exhausted:
            return min(0.0, level)
        return level if self._careful is None else min(level, self._careful.left(now))

    def comes_back_at(self, now: float) -> float | None:
        """When the whole limit is there again; at the latest, where no boundary is known."""
        self._roll(now)
        high = self._boundaries.high
        return high + BOUNDARY_GUARD if high is not None else now + self.window

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which both fit: now, after the boundary, or when the next may try."""
        if amount + reserve <= 0.0:
            return now
        self._roll(now)
        # Where answers tell of the boundary, the one that is under way will: nothing is gained by trying.
        waits = self._certain or (self._tells and bool(self.ledger.entries))
        if not self._exhausted:
            fits = self._unspent() >= min(amount + reserve, self.limit) - 1e-9
            careful = self._careful
            if fits or not waits:
                return now if careful is None or not (fits or careful.trying) else careful.ready_at(now)
        if self._boundaries.high is None:
            return max(now, self._probe_at)
        boundary = self._boundaries.high + BOUNDARY_GUARD
        return boundary if waits else min(boundary, max(now, self._probe_at))

    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` now and holds `reserve` until `settle`; returns the charge."""
        self._roll(now)
        trying = self._careful is not None and self._careful.trying
        if not trying and (self._exhausted or self._unspent() < min(amount, self.limit) - 1e-9):
            self._exhausted, self._careful = False, Steps(self.limit, self._step, now, trying=True)
        if self._careful is not None:
            self._careful.charge(amount, now)
        debit = Debit(amount, order, now)
        self._charge(debit)
        self.reserved += reserve
        return debit

    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back the charge of a request that the provider refused."""
        if debit.charged_at >= self._began_at:
            self._ceiling += debit.amount
        if self._late and debit.charged_at >= self._late[0].charged_at:
            self._lately -= debit.amount
        self.ledger.amend(debit, 0.0)
        debit.amount = 0.0
        self.reserved = max(0.0, self.reserved - reserve)

    def overdrawn(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """The provider refused what was sent at `sent_at`: the window is empty, whatever was counted.

        `retry_after` (seconds) tells its boundary.
        """
        self._roll(now)
        if self._supposed and self._anchor_at < self._began_at <= sent_at and self.ledger.total < LITTLE * self.limit:
            self.turned = "continuous"
        low, high = STEP_BOUNDS
        self._step = min(high, STEP_WINDOWS * self.window, max(low, STEP_ROUND_TRIPS * (now - sent_at)))
        self._exhausted, self._careful = True, None
        self._probe_at = now + self._probe_delay
        self._probe_delay = min(self._probe_delay * PROBE_GROWTH, PROBE_LAST, self.window / 4)
        if retry_after:
            # Whole seconds are rounded up by those who send them.
            rounding = 1.0 if retry_after == int(retry_after) else 0.0
            self._boundaries.lies(sent_at + retry_after - rounding, now + retry_after, told=True)

    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Re-anchors the copy by the answer to the request numbered `order`, sent at `sent_at`."""
        if reading.limit is not None:
            self.limit = max(reading.limit, 1.0)
        elif reading.remaining is not None and reading.remaining > self.limit:
            self.limit = reading.remaining
        if reading.window is not None:
            self._boundaries.declare(usable_window(reading.window, self.window))
        self._roll(now)
        if order <= self._anchor_order or sent_at < self._began_at:
            return
        if reading.reset_after is not None and reading.reset_after <= MONTH:
            self._tells = True
            rounding = reading.resolution if reading.resolution >= 0.5 else 0.0
            self._boundaries.lies(
                sent_at + reading.reset_after - rounding, now + reading.reset_after + rounding, told=True
            )
        if reading.remaining is None:
            return
        before, outstanding = self._remaining, self.ledger.total
        self.ledger.drop_through(order)
        expected = before - (outstanding - self.ledger.total)
        if self._anchor_order >= 0:
            self._judge(reading.remaining, expected, sent_at)
        self._remaining = max(0.0, min(reading.remaining, self.limit))
        if self._remaining > 0.0:
            self._exhausted = False
            if self._careful is not None and sent_at >= self._careful.began:
                self._careful = None
        self._anchor_order, self._anchor_at = order, sent_at
        while self._late and self._late[0].charged_at < sent_at - OVERTAKEN:
            self._lately -= self._late.popleft().amount
        mine = debit.amount if debit is not None else 0.0
        self._ceiling = max(self._ceiling, self._remaining - max(0.0, self._lately - mine))

    def _unspent(self) -> float:
        # Requests overtake each other, and a reading may not have seen what was sent before it: so the second level,
        # of which only these charges were taken since the window began.
        return min(self._remaining - self.ledger.total, self._ceiling) - self.reserved

    def _charge(self, debit: Debit) -> None:
        self.ledger.add(debit)
        self._ceiling -= debit.amount
        self._late.append(debit)
        self._lately += debit.amount

    def _judge(self, remaining: float, expected: float, sent_at: float) -> None:
        # What a first answer after a boundary shows, and whether one was passed that nobody told of.
        fresh = self._anchor_at < self._began_at
        if fresh:
            if remaining >= expected - LITTLE * self.limit:
                self._supposed = False
            elif self._supposed and remaining < LITTLE * self.limit:
                self.turned = "continuous"
        elif sent_at > self._anchor_at + OVERTAKEN and remaining > expected + max(0.5, BACK * self.limit):
            # It jumped up between the two sends: one period later it will do so again.
            self._boundaries.lies(self._anchor_at, sent_at, told=False)
            self._probe_delay = PROBE_FIRST

    def _roll(self, now: float) -> None:
        passed = self._boundaries.passed(now)
        if passed is None:
            return
        low, high = passed
        if self._supposed and not self._exhausted and self._began_at > float("-inf"):
            self._supposed = self.ledger.total < PROVEN * self.limit
        self.ledger.drop_before(low)
        self._remaining = self.limit
        self._ceiling = self.limit - self.ledger.total
        self._exhausted, self._began_at = False, high
        self._careful = Steps(self.limit, self._step, high, trying=False) if self._supposed else None
        self._probe_delay = PROBE_FIRST
        self._probe_at = high
