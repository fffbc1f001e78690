"""Phase of the pacer in which a hidden window admits calls: signs of a window, its beginning, its calls and its end.

Theory of operation. Lone attempts that were refused for a while, and one that is admitted then, are the sign of a
window: a bucket would have admitted one earlier. As many calls follow as before the silence (`HiddenWindow`). Where the
provider states a wait that no bucket explains, the calls before it are those of a window at once. The model is given up
where it contradicts what is admitted. Then the pacer seeks a rate again. But where the first window admits more calls
than the run before it, the cause is a limit on growth that no refusal names: its model (`GrowthLimit`) continues.
"""

from __future__ import annotations

from tidegate.core.backoff import PROGRESS_CALLS
from tidegate.core.growth_limit import GrowthLimit
from tidegate.core.hidden_window import HiddenWindow
from tidegate.core.pacer_phases import LEAST_CALLS_PER_SECOND
from tidegate.core.rate_meter import Burst, PacingBucket, RateMeter
from tidegate.core.values import INFINITY

WINDOW_SIGN_WAITS = 2
WINDOW_CALLS = PROGRESS_CALLS
NEXT_WINDOW_SIGN_CALLS = 50
"""`WINDOW_SIGN_WAITS` lone attempts refused in a row show that a window may be used up, of `WINDOW_CALLS` calls at
least. After a wrong suspicion `NEXT_WINDOW_SIGN_CALLS` calls pass before the next one."""

SHORTEST_RUN_SECONDS = 0.05
"""Least seconds in which the calls of a window are sent, so that it begins gently."""


class WindowedPhase:
    """Windows of one key; instants are monotonic seconds.

    Before the first refusal, `run_calls` were admitted from `run_begun_at` to `run_ended_at`. An attempt counted as
    admitted then if it was not refused within `run_grace` seconds. The newest lone attempt went at `lone_at`, and the
    newest one that was refused after others at `refused_at`.
    """

    __slots__ = (
        "_begun_at",
        "_let_in",
        "_model",
        "_size",
        "_windowless_calls",
        "lone_at",
        "refused_at",
        "run_begun_at",
        "run_calls",
        "run_ended_at",
        "run_grace",
    )

    def __init__(self) -> None:
        self.lone_at = self.refused_at = self.run_begun_at = self.run_ended_at = self.run_grace = 0.0
        # Calls admitted in the run that the first refusal ended, with those sent after the refused one.
        self.run_calls = 0
        self._windowless_calls = self._size = 0
        self._begun_at, self._let_in = 0.0, 0

    @property
    def expected(self) -> bool:
        """Return whether the next window's size is known, from a window of another size than the one before."""
        return self._size > 0

    def begin(self, run: Burst, sent_at: float, grace: float) -> None:
        """Note the run of calls before the first refusal, of the attempt sent at `sent_at`, and the grace then."""
        self.run_grace = grace
        self.run_begun_at, self.run_ended_at, self.run_calls = sent_at - run.seconds, sent_at, run.calls

    def suspect(self, gauge: RateMeter, spacing: PacingBucket, now: float) -> bool:
        """Return whether a window may have begun: the first call after a silence was admitted.

        Then as many calls follow as before the silence.
        """
        first, spacing.waits = gauge.first, 0
        spacing.sent(gauge.burst, now)
        if first is None or first.calls < WINDOW_CALLS or gauge.let_in < self._windowless_calls:
            return False
        size, begun_at = self._size, self._begun_at
        if not size:
            # Where calls were admitted since the first refusal, this window shows how many the next one has.
            fresh = gauge.let_in <= WINDOW_CALLS
            size, begun_at = max(0, self.run_calls) if fresh else 0, self.run_begun_at
        self._model = HiddenWindow(size, begun_at, self.refused_at, self.lone_at, first.seconds)
        self._model.sent(now)
        # The call that went alone, and this one.
        self._let_in = gauge.let_in - 2
        spacing.set_rate(first.calls / max(first.seconds, SHORTEST_RUN_SECONDS), now)
        spacing.ready(0.0, now)
        return True

    def is_stated(
        self, gauge: RateMeter, stated: tuple[float, float], count: int, seconds: float, sent_at: float
    ) -> bool:
        """Return whether the stated wait excludes every bucket that admitted `count` calls in `seconds` since the zero.

        An empty bucket admits a call after the inverse of its rate, and one may have come back before.
        """
        if count < WINDOW_CALLS or gauge.let_in < self._windowless_calls:
            return False
        return (count - 1) * (stated[0] - sent_at) > seconds

    def begin_stated(
        self,
        gauge: RateMeter,
        spacing: PacingBucket,
        stated: tuple[float, float],
        before: tuple[float, float] | None,
        count: int,
        let_in: int,
        sent_at: float,
        now: float,
    ) -> None:
        """Take the calls since the zero for those of a window whose end the refusal of `sent_at` states.

        The refusal before it stated the instants `before`.
        """
        first_at, low = gauge.first_since_zero, gauge.zero_at
        if before is not None:
            low = max(low, min(before[0], first_at))
        self._model = HiddenWindow(count, low, low, first_at, sent_at - first_at)
        # Calls sent after the refused one count until they are refused, too.
        self._model.admitted = count + gauge.let_in - let_in
        self._let_in = let_in - count
        gauge.zero(let_in, sent_at)
        spacing.set_rate(count / max(sent_at - first_at, SHORTEST_RUN_SECONDS), now)
        spacing.reset_backoff()
        self._model.wait(sent_at, refused=True)
        _wait_alone(spacing, max(now, self._model.told(*stated)), now)

    def send(self, gauge: RateMeter, spacing: PacingBucket, proven: bool, now: float) -> bool:
        """Count a call of a window that goes out; return False where the model of the window is refuted.

        A lone attempt before it was admitted where that is `proven`.
        """
        model = self._model
        if proven and not model.found(self.lone_at):
            return False
        if model.settled and not spacing.lone:
            model.rest(now)
        alone, _ = spacing.sent(gauge.burst, now)
        if alone:
            self.lone_at = now
            second = model.second_at(now)
            if second > now + spacing.grace:
                _delay(spacing, second, now)
        elif model.sent(now):
            _wait_alone(spacing, model.wait(now), now)
        else:
            _delay(spacing, model.next_at(now), now)
        return True

    def is_late(self, sent_at: float) -> bool:
        """Return whether the window was full when the attempt of `sent_at` went: its refusal was to be expected."""
        return self._model.was_full_after(sent_at)

    def late(self) -> None:
        """Take in a refusal of an attempt that no window had room for."""
        self._model.late()

    def refuse(
        self,
        spacing: PacingBucket,
        stated: tuple[float, float] | None,
        let_in: int,
        sent_at: float,
        now: float,
    ) -> bool:
        """Take in a refusal; return False where the model of the window is refuted."""
        model = self._model
        if model.waiting:
            until = model.refused(sent_at)
            if until < INFINITY:
                if stated is not None:
                    until = model.told(*stated)
                _wait_alone(spacing, max(until, now), now)
                return True
        elif model.settled:
            until, ended = model.early(now)
            if ended and stated is not None:
                until = model.told(*stated)
            if ended:
                _wait_alone(spacing, max(now, until), now)
            elif until < INFINITY:
                _delay(spacing, until, now)
            if until < INFINITY:
                return True
        elif model.settle(let_in - self._let_in):
            model.admitted -= 1
            _wait_alone(spacing, max(now, model.wait(sent_at, refused=True)), now)
            return True
        return False

    def growth(self, gauge: RateMeter, number: int, sent_at: float, explained: bool) -> GrowthLimit | None:
        """Return the limit on growth that the refusal of call `number` shows, None where it shows none.

        The first or second window after the very first run admitted more calls than that run, within one period.
        """
        model = self._model
        if not explained:
            calls = [each for each in gauge.sends if model.begun_at <= each[1] and each[0] < number]
            first = gauge.first is not None and model.alike(gauge.first.calls)
            if model.confirmed or not first or model.size != self.run_calls or model.alike(len(calls)):
                return None
            if len(calls) < model.size or sent_at - model.begun_at >= self.refused_at - self.run_begun_at:
                return None
        elif model.outgrown != self.run_calls:
            return None
        growth = GrowthLimit(Burst(self.run_calls, self.run_ended_at - self.run_begun_at), self.run_ended_at)
        growth.silent(self.refused_at)
        sends = sorted([*(each for each in gauge.sends if each[1] >= model.first_at), (number, sent_at)])
        if not growth.found(sends[0][1], sends[0][0]):
            return None
        for place, at in sends[1:]:
            growth.sent(at, place)
        return growth

    def expect(self, let_in: int) -> bool:
        """Return whether the refuted window shows the size of the next one, of `let_in` calls admitted so far.

        Not as many were admitted as before the silence, but the next window may have as many as this one. The calls
        since the silence show no rate, because its end is unknown.
        """
        size = let_in - self._let_in
        if self._model.confirmed or size <= WINDOW_CALLS:
            return False
        self._size, self._begun_at, self._windowless_calls = size, self._model.begun_at, 0
        return True

    def leave(self, gauge: RateMeter, spacing: PacingBucket, named: bool, now: float) -> float:
        """Give up the model, and return the pace in calls a second that follows from its calls."""
        self._windowless_calls = gauge.let_in + NEXT_WINDOW_SIGN_CALLS
        spacing.reset_backoff()
        self._size = 0
        model, admitted = self._model, gauge.let_in - self._let_in
        if model.confirmed:
            # The refusals so far were the price of the window's boundaries, and not of a rise.
            gauge.price = 1
        if named and not (gauge.rate or model.confirmed) and admitted <= 2:
            # A bucket: the call after the silence is the only one that came back during it.
            return model.rate / max(1, model.size)
        if admitted > 2:
            # Bounds that took the silence of a window for a slow rate say nothing.
            gauge.low, gauge.high = 0.0, INFINITY
        return max(LEAST_CALLS_PER_SECOND, model.rate, gauge.pace(now))


def _delay(spacing: PacingBucket, until: float, now: float) -> None:
    if until > now:
        spacing.ready(min(0.0, 1.0 - spacing.rate * min(until - now, 1.0 / LEAST_CALLS_PER_SECOND)), now)


def _wait_alone(spacing: PacingBucket, until: float, now: float) -> None:
    spacing.ready(0.0, now)
    spacing.wait_alone(min(until - now, 1.0 / LEAST_CALLS_PER_SECOND))
