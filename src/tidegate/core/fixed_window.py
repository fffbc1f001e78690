"""Fixed window that mirrors a provider's quota, which comes back all at once at a boundary.

Theory of operation. In a fixed window nothing refills until the boundary, then the whole limit is available. Response k
says how many units were left when request k was admitted, and perhaps the rounded time until the boundary. A refusal's
retry-after says that time too. If `remaining` jumps up between two sends, a boundary was passed.

Each such sign is an interval of *send* instants in which the boundary lies (`core.reset_schedule.ResetSchedule`).

Where the boundary is unknown, `CautiousRamp` tries an empty window: a few requests (one of a small limit), then twice
as many after each step. A step is a few refusal round trips without a refusal. A copy that is only `supposed` to be a
window, because nothing states its refill, does so after its first boundary. If little is back then, the quota refills
continuously, and `turned` says so.

`SubWindow` mirrors a quota that is enforced over a shorter window than announced. A minute's 600 requests may be
admitted as ten a second (provider-facts.md sections 1, 2, 5 and 6). No header says so: the refusal's own reading shows
plenty. `portion_of` finds it by two facts: the latest admitted requests make up such a portion, and the refusal names a
time within the shorter window.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tidegate.core.backoff import FIRST_GRACE_SECONDS, GRACE_BOUNDS_SECONDS, GRACE_ROUND_TRIPS, MAX_BACKOFF_SECONDS
from tidegate.core.quota_base import OVERTAKEN_SECONDS, RETURN_GUARD_SECONDS, LoggedCharge, QuotaMirror
from tidegate.core.reset_schedule import ResetSchedule, boundary_of
from tidegate.core.values import INFINITY, QuotaReading, Refill
from tidegate.core.window_bounds import DEFAULT_WINDOW_SECONDS, MONTH_SECONDS, usable_window

CAREFUL_STEP_SHARES = (1.0 / 256.0, 1.0 / 8.0)
"""Shares of the limit, one request at least, that the first and the last careful steps send."""


class CautiousRamp:
    """Sending carefully from `began` on: a few of `limit` units, then up to twice as many in each step of `seconds`.

    While `trying`, the quota is known to be empty; else it is expected to be full again.
    """

    __slots__ = ("_at", "_left", "_most", "_size", "began", "seconds", "trying")

    def __init__(self, limit: float, seconds: float, began: float, trying: bool) -> None:
        self.trying = trying
        low, high = CAREFUL_STEP_SHARES
        self._size = self._left = max(1.0, low * limit)
        self._most = max(1.0, high * limit)
        self._at = self.began = began
        self.seconds = seconds

    def left(self, now: float) -> float:
        if self._left > 0.0:
            return self._left
        return min(self._most, 2.0 * self._size) if now >= self._at + self.seconds else 0.0

    def ready_at(self, now: float) -> float:
        return now if self._left > 0.0 else max(now, self._at + self.seconds)

    def charge(self, amount: float, now: float) -> None:
        if self._left <= 0.0:
            self._size = self._left = min(self._most, 2.0 * self._size)
        self._left -= amount
        self._at = now


SHORTER_WINDOW_SECONDS = (1.0, 10.0)
"""Windows in seconds over which a longer quota is enforced (provider-facts.md section 2: of 1 s or 10 s)."""

SEEN_PORTION_SHARE = 0.25
WHOLE_PORTION_SHARE = 0.9
EXCEEDED_PORTION_SHARE = 2.0 - WHOLE_PORTION_SHARE
"""Shares of a portion that must have been admitted recently: `SEEN_PORTION_SHARE` where only the calls in flight are
known, `WHOLE_PORTION_SHARE` where all are. More than `EXCEEDED_PORTION_SHARE` of a portion does not fit into it: as
far above a whole one as `WHOLE_PORTION_SHARE` is below. A window is proven where `WHOLE_PORTION_SHARE` of its limit go
out unrefused."""

PORTION_REFUSALS = 3
WINDOWS_PER_REFUSAL = 5.0
"""Refusals that a portion may explain before it counts as none: `PORTION_REFUSALS`, and one more for each
`WINDOWS_PER_REFUSAL` windows."""


class SubWindow:
    """The mirror of the shorter quota, and what was announced when it was found: the limit of the quota `parent`."""

    __slots__ = ("_limit", "_strikes", "mirror", "parent")

    def __init__(self, mirror: FixedWindowMirror, parent: str, limit: float) -> None:
        self.mirror = mirror
        self.parent = parent
        self._limit = limit
        self._strikes = 0

    def explains(self, now: float) -> bool:
        """Return whether more than half of it is spent, which explains one more refusal."""
        return self.mirror.level(now) < 0.5 * self.mirror.limit

    def fails(self, limit: float, now: float) -> bool:
        """Return whether no such portion exists: the quota changed its `limit` or refill, or refuses more often."""
        allowed = PORTION_REFUSALS + (now - self.mirror.since) / (WINDOWS_PER_REFUSAL * self.mirror.window)
        return limit != self._limit or self.mirror.turned is not None or self._strikes > allowed

    def refused(self) -> None:
        self._strikes += 1


class AdmittedBurst(NamedTuple):
    """Calls admitted before a refused request: `calls` in `seconds` since the first of them.

    `under_way` has the seconds between each call in flight and the refused request.
    """

    under_way: list[float]
    calls: int
    seconds: float


def portion_of(name: str, limit: float, window: float, let_in: AdmittedBurst, wait: float) -> QuotaReading | None:
    """Return a reading of the shorter quota that a refusal names;

    None where it names none. `name`, `limit` and `window` (seconds) are the announced quota's; the refusal asks to
    `wait`.
    """
    for shorter in SHORTER_WINDOW_SECONDS:
        portion = float(round(limit * shorter / window))
        known = let_in.seconds <= shorter
        recently = let_in.calls if known else sum(ago <= shorter for ago in let_in.under_way)
        least = portion * (WHOLE_PORTION_SHARE if known else SEEN_PORTION_SHARE)
        fits = max(1.0, least) <= recently <= int(EXCEEDED_PORTION_SHARE * portion)
        # All calls so far went within this number of windows at most, wherever the boundaries are.
        windows = let_in.seconds // shorter + 2.0
        fits = fits and let_in.calls <= windows * max(1.0, EXCEEDED_PORTION_SHARE * portion)
        if 2.0 * shorter <= window and wait <= shorter and fits:
            # The window may be known roughly only: what was admitted fits in.
            whole = max(1.0, portion, float(recently))
            return QuotaReading(f"{name}-{shorter:g}s", "requests", "fixed", whole, 0.0, None, shorter)
    return None


def refutes_portion(limit: float, window: float, let_in: AdmittedBurst) -> bool:
    """Return whether a refusal came before the least portion was admitted, where all admitted calls are known."""
    shortest = SHORTER_WINDOW_SECONDS[0]
    return let_in.seconds <= shortest and let_in.calls < WHOLE_PORTION_SHARE * limit * shortest / window


FIRST_PROBE_SECONDS = 1.0
"""First seconds between probes of an empty window whose boundary is unknown. They double, up to a quarter of the window
and a minute."""

MAX_STEP_WINDOWS = 1.0 / 24.0
"""Most windows that a careful step takes, so that the twelve steps of the whole limit take half of one."""

WIDE_BOUNDARY_SHARE = 0.2
"""Uncertainty of a boundary, as a share of a period, above which a try shows more than waiting."""

PASSED_LIMIT_SHARE = 0.5
UNPASSED_LIMIT_SHARE = 0.25
"""Shares of the limit: `PASSED_LIMIT_SHARE` more than expected is left where a boundary was passed, less than
`UNPASSED_LIMIT_SHARE` where none was."""


CONTINUOUS_MOVES = 2
"""Answers that move a boundary in one window, after which the quota counts as continuous. Chosen: the least number that
is not a single coincidence."""


class FixedWindowMirror(QuotaMirror):
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
        "_moved",
        "_named",
        "_probe_at",
        "_probe_delay",
        "_remaining",
        "_step",
        "_supposed",
        "_tells",
        "_unproven",
        "_usual",
        "is_refuted",
        "turned",
    )

    turned: Refill | None

    def __init__(
        self,
        reading: QuotaReading,
        now: float,
        default_window: float = DEFAULT_WINDOW_SECONDS,
        supposed: bool = False,
        inferred: bool = False,
    ) -> None:
        """Begin with a first reading; that it is a window is `inferred` from its resets, or `supposed` without any."""
        super().__init__(reading, now)
        self.turned, self.is_refuted = None, False
        # The window of a quota that states none, as long as nothing proves another one.
        self._usual = default_window if reading.window is None else 0.0
        self._boundaries = ResetSchedule(usable_window(reading.window, default_window), reading.window is not None)
        self._supposed, self._unproven = supposed, supposed or inferred
        self._tells = False
        self._remaining = self._ceiling = self.limit
        self._anchor_at = now
        self._began_at = float("-inf")
        self._late: deque[LoggedCharge] = deque()
        self._lately = 0.0
        self._exhausted = False
        self._named, self._moved = (-INFINITY, INFINITY, now), 0
        self._probe_at = 0.0
        self._probe_delay = FIRST_PROBE_SECONDS
        self._careful: CautiousRamp | None = None
        self._step = FIRST_GRACE_SECONDS

    @property
    def window(self) -> float:
        """Seconds from one boundary to the next."""
        return self._boundaries.period

    @property
    def declared(self) -> float | None:
        return self._boundaries.period if self._boundaries.known else None

    @property
    def _certain(self) -> bool:
        # Whether waiting for the boundary is right, and no try would show more.
        boundaries = self._boundaries
        if boundaries.low is None or boundaries.high is None or not boundaries.certain:
            return False
        return boundaries.high - boundaries.low <= WIDE_BOUNDARY_SHARE * boundaries.period

    @property
    def is_predictable(self) -> bool:
        return self._boundaries.high is not None

    def level(self, now: float) -> float:
        self._roll(now)
        level = self._unspent()
        if self._exhausted:
            return min(0.0, level)
        return level if self._careful is None else min(level, self._careful.left(now))

    def resets_at(self, now: float) -> float | None:
        """When the whole limit is there again; at the latest, where no boundary is known."""
        self._roll(now)
        high = self._boundaries.high
        return high + RETURN_GUARD_SECONDS if high is not None else now + self.window

    def state(self, order: int, until: float) -> None:
        """Take note of the boundary that an answer states; a request must not arrive just before it."""
        super().state(order, until + RETURN_GUARD_SECONDS)

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """Return when `amount` and `reserve` fit: now, after the boundary, or when the next may try."""
        if amount + reserve <= 0.0:
            return now
        self._roll(now)
        # Where answers state the boundary, the one that is under way will: nothing is gained by trying.
        waits = self._certain or (self._tells and bool(self.ledger.entries))
        if not self._exhausted:
            fits = self._unspent() >= min(amount + reserve, self.limit) - 1e-9
            careful = self._careful
            if fits or not waits:
                return now if careful is None or not (fits or careful.trying) else careful.ready_at(now)
        if self._boundaries.high is None:
            return max(now, self._probe_at)
        boundary = self._boundaries.high + RETURN_GUARD_SECONDS
        return boundary if waits else min(boundary, max(now, self._probe_at))

    def debit(self, amount: float, reserve: float, order: int, now: float) -> LoggedCharge:
        self._roll(now)
        trying = self._careful is not None and self._careful.trying
        lacks = self._exhausted or self._unspent() < min(amount, self.limit) - 1e-9
        if not trying and lacks:
            self._exhausted, self._careful = False, CautiousRamp(self.limit, self._step, now, trying=True)
        if self._careful is not None:
            self._careful.charge(amount, now)
        debit = LoggedCharge(amount, order, now)
        self._charge(debit)
        self.reserved += reserve
        return debit

    def refund(self, debit: LoggedCharge, reserve: float) -> None:
        if debit.charged_at >= self._began_at:
            self._ceiling += debit.amount
        if self._late and debit.charged_at >= self._late[0].charged_at:
            self._lately -= debit.amount
        self.ledger.amend(debit, 0.0)
        debit.amount = 0.0
        self.reserved = max(0.0, self.reserved - reserve)

    def on_refused(self, sent_at: float, now: float, retry_after: float | None, amount: float = INFINITY) -> None:
        """Record that the window is empty, whatever was counted; `retry_after` (seconds) names its boundary."""
        self._roll(now)
        if (
            self._unproven
            and self._anchor_at < self._began_at <= sent_at
            and self.ledger.total < UNPASSED_LIMIT_SHARE * self.limit
        ):
            self.turned, self.is_refuted = "continuous", True
        low, high = GRACE_BOUNDS_SECONDS
        self._step = min(high, MAX_STEP_WINDOWS * self.window, max(low, GRACE_ROUND_TRIPS * (now - sent_at)))
        self._exhausted, self._careful = True, None
        self._probe_at = now + self._probe_delay
        self._probe_delay = min(2.0 * self._probe_delay, MAX_BACKOFF_SECONDS, self.window / 4)
        if retry_after:
            # Whole seconds are rounded up by those who send them.
            rounding = 1.0 if retry_after == int(retry_after) else 0.0
            self._boundaries.lies(sent_at + retry_after - rounding, now + retry_after, told=True)

    def observe(
        self, reading: QuotaReading, order: int, sent_at: float, now: float, debit: LoggedCharge | None
    ) -> None:
        if reading.limit is not None:
            self.limit = max(reading.limit, 1.0)
        elif reading.remaining is not None and reading.remaining > self.limit:
            self.limit = reading.remaining
        if reading.window is not None:
            self._usual = 0.0
            self._boundaries.declare(usable_window(reading.window, self.window))
        self._roll(now)
        told = reading.reset_after if reading.reset_after is not None and reading.reset_after <= MONTH_SECONDS else None
        if told is not None and self._usual:
            self._compare_boundaries(*boundary_of(reading, sent_at, now), sent_at)
        if order <= self._anchor_order or sent_at < self._began_at:
            return
        if told is not None:
            self._tells = True
            self._boundaries.lies(*boundary_of(reading, sent_at, now), told=True, instant=reading.instant)
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
        while self._late and self._late[0].charged_at < sent_at - OVERTAKEN_SECONDS:
            self._lately -= self._late.popleft().amount
        mine = debit.amount if debit is not None else 0.0
        self._ceiling = max(self._ceiling, self._remaining - max(0.0, self._lately - mine))

    def _unspent(self) -> float:
        # Requests overtake each other, and a reading may not have seen what was sent before it: so the second level,
        # of which only these charges were taken since the window began.
        return min(self._remaining - self.ledger.total, self._ceiling) - self.reserved

    def _charge(self, debit: LoggedCharge) -> None:
        self.ledger.add(debit)
        self._ceiling -= debit.amount
        self._late.append(debit)
        self._lately += debit.amount

    def _judge(self, remaining: float, expected: float, sent_at: float) -> None:
        # What a first answer after a boundary shows, and whether one was passed without a statement.
        fresh = self._anchor_at < self._began_at
        if fresh:
            if remaining >= expected - UNPASSED_LIMIT_SHARE * self.limit:
                self._supposed = self._unproven = False
            elif self._unproven and remaining < UNPASSED_LIMIT_SHARE * self.limit:
                self.turned, self.is_refuted = "continuous", True
        elif sent_at > self._anchor_at + OVERTAKEN_SECONDS and remaining > expected + max(
            0.5, PASSED_LIMIT_SHARE * self.limit
        ):
            # It jumped up between the two sends: one period later it will do so again.
            self._boundaries.lies(self._anchor_at, sent_at, told=False)
            self._probe_delay = FIRST_PROBE_SECONDS

    def _roll(self, now: float) -> None:
        passed = self._boundaries.passed(now)
        if passed is not None:
            self._begin(*passed)

    def _compare_boundaries(self, low: float, high: float, sent_at: float) -> None:
        """Count an answer that moves a boundary which was not passed: only the time until a bucket is full moves."""
        last_low, last_high, last_sent_at = self._named
        self._named = low, high, sent_at
        apart = max(low - last_high, last_low - high)
        if apart > OVERTAKEN_SECONDS and min(low, last_low) > max(sent_at, last_sent_at):
            self._moved += 1
            if self._moved >= CONTINUOUS_MOVES:
                self._turn_continuous()

    def _turn_continuous(self) -> None:
        self.turned = "continuous"
        if self._usual:
            # No window was stated, and the instants that seemed to be boundaries were none.
            self._boundaries.known = False

    def _begin(self, low: float, high: float) -> None:
        self._moved = 0
        short = False
        if self._exhausted and self._began_at > -INFINITY:
            short = self.limit - self._ceiling < UNPASSED_LIMIT_SHARE * self.limit
        if self._unproven and not self._exhausted and self._began_at > float("-inf"):
            self._unproven = self.ledger.total < WHOLE_PORTION_SHARE * self.limit
            self._supposed = self._supposed and self._unproven
        self.ledger.drop_before(low)
        self._remaining = self.limit
        self._ceiling = self.limit - self.ledger.total
        self._exhausted, self._began_at = False, high
        # A window that admitted little before it refused shows that this one may, too.
        careful = self._supposed or short
        self._careful = CautiousRamp(self.limit, self._step, high, trying=False) if careful else None
        self._probe_delay = FIRST_PROBE_SECONDS
        self._probe_at = high
