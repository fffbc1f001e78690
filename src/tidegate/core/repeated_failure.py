"""Failures of one call in a row: whether the call itself is their cause, and not the key.

Theory of operation. A request that can never be admitted looks like one that waits for capacity. What tells them apart
is the fate of other calls: those sent after a failed attempt are answered. That happens by chance too, so the share of
calls that fail at first decides how many failures in a row prove it. Repetitions are left out of that share, because
calls that never fit are repeated most. Where all workers of a program have such a call, no other is left to be
answered. So a failure also proves something while calls that always fail explain all failures since the last answer.
In an outage, calls begin to fail that did not before, and its failures prove nothing.

A call may also be refused because it comes just after others used a hidden limit up, so a refusal proves something only
where others go all the time. Calls of other processes count as well: they use up the same limit, and their refusals
show how many calls it refuses.
"""

from __future__ import annotations

from tidegate.core.limiter_state import LimiterState, Permit
from tidegate.core.values import INFINITY

OWN_TRIES = 3
"""Failures in a row from which on the call may be their cause."""

OVERTAKEN_ATTEMPTS = 2
"""Failed attempts overtaken by an answered one from which on the call lets others go first. Fewer change the order
where refusals are many."""

MAX_CHANCE = 1e-7
"""Greatest probability of these failures by chance: at 10 % of random refusals, one call in ten million."""

OWN_SECONDS = 20.0
"""Seconds of refusals before a call is given back as their cause: an error comes 30 s late at most."""

LARGER_COST_FACTOR = 2.0
"""Cost, as a multiple of the last answered call's, above which a call may wait for room that the other did not need.
Chosen: estimates of equal calls differ by less."""

LARGER_SECONDS = 26.0
"""The same as `OWN_SECONDS` for a call that costs far more than others. Derived: an error shows at most 30 s later than
without tidegate, and the refusal that shows it comes up to a wait of 4 s later."""

HOLD_SECONDS = 15.0
"""Seconds for which a large refused call holds others, so that room for it can come. Derived: the rest of
`LARGER_SECONDS` shows beside other calls whether the call never fits."""

MAX_PENDING = 32
"""Failures that are kept until a later call is answered. Chosen: those of three minutes, far above a slow answer."""

STEADY_CALLS_PER_SECOND = 1.0
"""Calls a second admitted between two refusals of a call from which on the later one shows something about the call. A
slower key may be at the end of a hidden window."""

SLOW_KEY_REFUSALS = 8
"""Refusals that others outran from which on they show as much at a slow key. Derived: at a hidden window that others
use up before half of the tries, one call in 256 has no luck."""


class RepeatedFailure:
    """Failures of one call since its last change of kind; `tries` counts them, `overtaken` those that others outran.

    `is_larger` says that the call costs far more than the one that was answered last: it may wait for room.
    """

    __slots__ = (
        "_attempts",
        "_began_at",
        "_cost",
        "_failed",
        "_order",
        "_outrun",
        "_pending",
        "_sent_at",
        "_served",
        "_state",
        "_telling",
        "is_larger",
        "overtaken",
        "tries",
    )

    def __init__(self, state: LimiterState, now: float) -> None:
        self._attempts, self._failed = _first_attempts(state)
        self._began_at, self._order, self._state = now, 0, state
        self._pending: list[int] = []
        # Failures that prove something: an outage does not explain them.
        self._telling = 0
        self.tries = self.overtaken = 0
        self.is_larger, self._cost = False, 0.0
        # Failures between which other calls were admitted at `STEADY_CALLS_PER_SECOND`, and what is needed to count
        # them.
        self._outrun, self._sent_at, self._served = 0, now, 0
        state.failing.began(state.admitted_order)

    def failed(self, permit: Permit) -> None:
        counts = permit.state.all_counts
        served = counts.attempts - counts.refused - counts.failed
        failing, answered, latest = permit.state.failing, permit.state.counts.answered, permit.state.admitted_order
        # An answer may take longer than the way to the next failure, so all that no later call outran are kept.
        pending = [order for order in self._pending if order >= latest]
        is_outrun = len(pending) < len(self._pending)
        if is_outrun:
            if not self.overtaken:
                failing.outran(answered)
            self.overtaken += 1
            self._outrun += served - self._served >= STEADY_CALLS_PER_SECOND * (permit.sent_at - self._sent_at)
        self._telling += is_outrun or failing.is_no_outage(latest, answered, anew=False)
        self._pending = [*pending[1 - MAX_PENDING :], permit.order]
        self._order, self._sent_at, self._served = permit.order, permit.sent_at, served
        self._cost = permit.cost.tokens
        self.is_larger = permit.cost.tokens > LARGER_COST_FACTOR * permit.state.admitted_cost.tokens
        self.tries += 1
        failing.repeated += self.tries > 1

    def paced_until(self, now: float) -> float:
        pacer = self._state.pacer
        return pacer.spacing.opens_at(now) if pacer.active else now

    def repeats(self, state: LimiterState) -> bool:
        """Return whether a failure was repeated here without any answer to a later call since."""
        return self.tries > 1 and state.admitted_order < self._order and not self.overtaken

    def is_own(self, state: LimiterState, now: float, refused: bool) -> bool:
        """Return whether the call is the cause of its failures; `refused` says that the last one was a refusal."""
        if self.tries < OWN_TRIES or self.overtaken < OVERTAKEN_ATTEMPTS:
            return False
        if not refused:
            return True
        steady = self._outrun >= OVERTAKEN_ATTEMPTS or self.overtaken >= SLOW_KEY_REFUSALS
        seconds = LARGER_SECONDS if self.is_larger else OWN_SECONDS
        return steady and now - self._began_at >= seconds and self._share(state) ** self._telling < MAX_CHANCE

    def given_back(self, state: LimiterState) -> None:
        """Record that the call was given back as the cause of its refusals: one that is larger still never fits."""
        if self.is_larger:
            state.failing.too_large = min(state.failing.too_large, self._cost)

    def answered(self, state: LimiterState) -> None:
        if self._cost >= state.failing.too_large:
            state.failing.too_large = INFINITY

    def holds(self, state: LimiterState, now: float) -> bool:
        """Return whether the refused call waits for room that smaller ones would take."""
        return self.is_larger and now - self._began_at < HOLD_SECONDS and self._cost < state.failing.too_large

    def _share(self, state: LimiterState) -> float:
        """Return the share of other calls that failed at first: recently or ever, whichever is greater."""
        attempts, failed = _first_attempts(state)
        lately = (failed - self._failed + 1.0) / (max(0, attempts - self._attempts) + 2.0)
        return min(1.0, max(lately, (failed + 1.0) / (max(0, attempts) + 1.0)))


def _first_attempts(state: LimiterState) -> tuple[int, int]:
    """Return the attempts, and the failed ones, without the repetitions by this process."""
    counts, failing = state.all_counts, state.failing
    return counts.attempts - state.counts.resent, counts.refused + counts.failed - failing.repeated
