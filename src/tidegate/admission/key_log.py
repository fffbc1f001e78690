"""Log records of keys: rejections once, cooldowns and outages once and while they last.

Theory of operation. The key table looks after each failed attempt, and when a waiting call looks again. A record is due
when a cooldown is known to last for long, when it turns out to last for very long, and then at intervals. No record is
made for each refusal, and none holds a text of the provider.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tidegate.core.admission_controller import AdmissionController
from tidegate.core.rejection import DAY, in_force
from tidegate.core.snapshot import day_reset, latest_pause, unanswered
from tidegate.core.values import INFINITY
from tidegate.core.wait_text import duration, failure_text, wait_text

INFO, WARNING = 20, 30
"""Levels of the standard library's `logging`."""

NOTED_SECONDS, GRAVE_SECONDS = 2.0, 60.0
"""Seconds of a cooldown from which it is logged at INFO, and from which at WARNING. Raising either hides more waits.
Chosen: shorter ones are over before they are read; a minute is the window of most quotas."""

REPEATED_SECONDS = 300.0
"""Seconds after which a cooldown that lasts, or another rejection of the key, is logged again. Raising it shortens the
log. Chosen: a person who looks into the log during a long wait finds a recent record."""


class WaitRecord(NamedTuple):
    """Log record about a key: its level and its text without the key."""

    level: int
    text: str


class WaitLog:
    """Cooldowns, outages and rejections of one key as far as they are logged. All instants are monotonic seconds."""

    __slots__ = ("_began_at", "_gate", "_level", "_logged_at", "_rejected_at", "_stretch", "_told_never", "_until")

    def __init__(self) -> None:
        self._level, self._logged_at = 0, -INFINITY
        self._began_at = self._until = -INFINITY
        self._gate, self._stretch = "", 0.0
        self._told_never = False
        self._rejected_at = -INFINITY

    def look(self, admission: AdmissionController, waiting: int, max_wait: float, now: float) -> WaitRecord | None:
        """Return the record that is due at `now`, while `waiting` calls wait; None if there is none.

        A call without a limit of its own waits for `max_wait` seconds.
        """
        if not self._told_never and (never := unanswered(admission)):
            self._told_never = True
            then = f"a call waits for up to {duration(max_wait)} (TIDEGATE_MAX_WAIT), then gets its refusal"
            return WaitRecord(WARNING, f"has no capacity for this account: {never}; {then}")
        if (rejected := self._rejection(admission, now)) is not None:
            return rejected
        pause, breaker = latest_pause(admission), admission.breaker
        closings = [(pause.until, "pause"), (day_reset(admission), DAY)]
        if not breaker.closed:
            closings.append((max(now, breaker.ready_at), "breaker"))
        tried, gate = max(closings)
        if tried <= now and gate != "breaker":
            self._gate = ""
            return None
        if not self._lasts(gate, _stretch(admission, gate), now):
            self._level, self._logged_at, self._began_at = 0, -INFINITY, now
        self._gate, self._stretch, self._until = gate, _stretch(admission, gate), tried
        lasted = now - self._began_at
        stated = pause.stated_for(now) if gate == "pause" else 0.0
        expected = max(tried - now, stated, lasted)
        unreached = gate == "breaker" and not breaker.reached
        level = WARNING if expected > GRAVE_SECONDS or unreached else INFO
        if (expected <= NOTED_SECONDS and not unreached) or (
            level <= self._level and now < self._logged_at + REPEATED_SECONDS
        ):
            return None
        self._level, self._logged_at = level, now
        last = admission.unavailability.last if gate != DAY else None
        cause = failure_text(last) if last is not None else ""
        if unreached:
            most = f"{duration(breaker.max_unreached)} (TIDEGATE_MAX_UNREACHED)"
            then = f"calls wait for {most} from the first error on, then get theirs"
            never = "never reached" if last is None or last.status is None else "no answer of a working server yet"
            return WaitRecord(level, f"{never}: {cause}; is the address right? {then}")
        text = wait_text(gate, tried - now, pause.stated if stated else 0.0, cause)
        calls = f"{waiting} {'call waits' if waiting == 1 else 'calls wait'}"
        return WaitRecord(
            level, f"{text}; {calls}" + (f", for {duration(lasted)} so far" if lasted > NOTED_SECONDS else "")
        )

    def _rejection(self, admission: AdmissionController, now: float) -> WaitRecord | None:
        rejection = in_force(admission.rejection)
        if rejection is None or rejection.reset_at is not None:
            return None  # a known reset is logged as a cooldown
        if rejection.since <= self._rejected_at or now < self._rejected_at + REPEATED_SECONDS:
            return None
        self._rejected_at, outcome = now, rejection.outcome
        why = f"{outcome.cause.value} (status {outcome.status}, {outcome.row})"
        return WaitRecord(WARNING, f"rejected: {why}; calls are sent and get the provider's answer")

    def _lasts(self, gate: str, stretch: float, now: float) -> bool:
        """Return whether the cooldown of the last look has not ended since."""
        if gate != self._gate:
            return False
        # After its end, a pause lasts if one more wave of refusals came, and a success has not begun a new count.
        return now < self._until or (stretch > self._stretch if gate == "pause" else stretch == self._stretch)


def _stretch(admission: AdmissionController, gate: str) -> float:
    """Return the waves of refusals since the last success, or when the day's quota was found spent."""
    if gate == "pause":
        return latest_pause(admission).refusals
    rejection = admission.rejection
    return rejection.since if gate == DAY and rejection is not None else 0.0


logger = logging.getLogger("tidegate")


def write_record(record: Callable[[], object]) -> None:
    """Write a record; its failure is no failure of the call that happens to write it."""
    try:
        record()
    except Exception as error:
        with suppress(Exception):
            logger.exception("record not written: %s was raised; the call goes on", type(error).__name__)
