"""Phase of the pacer in which the provider refuses fast growth (slope).

Theory of operation. After the first refusal single attempts go until one is admitted. From then on the model of a limit
on growth (`GrowthLimit`) says when the next call may go. Where the silence shows no period, the pacer seeks a rate.
"""

from __future__ import annotations

from tidegate.core.growth_limit import LATE_GRACES, GrowthLimit
from tidegate.core.pacer_phases import LEAST_CALLS_PER_SECOND, MAX_WAITS
from tidegate.core.rate_meter import Burst, PacingBucket
from tidegate.core.values import INFINITY, Cause


class RampPhase:
    """The climb of one key by the `growth` model."""

    __slots__ = ("_lone_at", "_refused_at", "_resumed_at", "_told", "_waves", "growth")

    def __init__(self) -> None:
        self.growth: GrowthLimit | None = None
        self._lone_at = 0.0
        # Refusals name the limit on growth.
        self._told = True
        # Waves of refusals since a call was admitted, when the newest one came, and when the first call after it went.
        self._waves, self._refused_at, self._resumed_at = 0, -INFINITY, INFINITY

    def expects(self, cause: Cause) -> bool:
        """Return whether the model explains refusals of this cause."""
        return cause is Cause.SLOPE or not self._told

    def continue_by(self, growth: GrowthLimit, spacing: PacingBucket, number: int, sent_at: float, now: float) -> None:
        """Continue by a model that no refusal named, whose newest refusal is that of call `number`."""
        self.growth, self._told = growth, False
        self.too_steep(spacing, number, sent_at, now)

    def first(self, run: Burst, sent_at: float) -> float:
        """Return the first pace, in calls a second, after the refusal of what came after `run`, sent at `sent_at`."""
        self.growth, self._told = GrowthLimit(run, sent_at), True
        return max(LEAST_CALLS_PER_SECOND, run.calls / max(1.0, run.seconds))

    def sent(self, spacing: PacingBucket, number: int, burst: float, proven: bool, now: float) -> bool:
        """Return whether the model continues with a call that goes out; `proven`: the lone one was admitted."""
        growth = self.growth
        if growth is None:
            return False
        unknown = not growth.known and not spacing.lone and not (proven and growth.found(self._lone_at, number - 1))
        if unknown or growth.overgrown:
            self.growth = None
            return False
        alone, _ = spacing.sent(burst, now)
        if alone:
            self._lone_at = now
            _open_at(spacing, now + spacing.grace, now)
        else:
            growth.sent(now, number)
            self._resumed_at = min(self._resumed_at, now)
            self._follow(growth, spacing, now)
        return True

    def too_steep(self, spacing: PacingBucket, number: int, sent_at: float, now: float) -> bool:
        """Take in the refusal of a call; return False while all calls wait for a single attempt."""
        growth = self.growth
        assert growth is not None
        if not growth.known:
            growth.silent(sent_at)
            return False
        growth.refused(number, sent_at, now, spacing.grace)
        if sent_at > self._refused_at:
            self._waves, self._refused_at, self._resumed_at = self._waves + 1, now, INFINITY
        self._follow(growth, spacing, now)
        return True

    def _follow(self, growth: GrowthLimit, spacing: PacingBucket, now: float) -> None:
        at, grace = growth.next_at(now, spacing.grace), spacing.grace
        if now >= self._resumed_at + LATE_GRACES * grace:
            self._waves = 0
        if self._waves and not self._told:
            # No refusal names the limit, so the model may be wrong: a wave in vain makes the next one later, up to a
            # period, after which the least calls are admitted.
            wait = min(growth.period, grace * 2.0 ** min(MAX_WAITS, self._waves - 1))
            at = max(at, self._refused_at + wait)
        spacing.set_rate(growth.rate, now)
        _open_at(spacing, at, now)


def _open_at(spacing: PacingBucket, at: float, now: float) -> None:
    spacing.ready(1.0 - spacing.rate * (at - now), now)
