"""Detection of event loops that hold slots and do not run.

Theory of operation. An attempt of an event loop ends only when that loop runs. If calls of other executors wait for a
slot, the loop of the oldest attempt gets a probe: a callback to run within `PATIENCE` seconds. Otherwise the loop is
stalled: its attempts do not count until it runs, and its waiting calls are passed over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tidegate.admission.executors import PATIENCE, Executor, ExecutorTable
from tidegate.admission.wait_queue import ReadyCallback, Waiter
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.values import INFINITY


class LoopProbe(ReadyCallback):
    """Probe of an event loop that holds slots: the loop answers by running a callback.

    `sent_at` is in monotonic seconds. `stalled` is set when no answer arrives in time. From then on the loop's attempts
    do not count, until the callback runs.
    """

    __slots__ = ("_admission", "answered", "loop", "sent_at", "stalled", "thread")

    def __init__(self, admission: AdmissionController, loop: Any, thread: int, now: float) -> None:
        super().__init__(self.ask)
        self._admission = admission
        self.loop = loop
        self.thread = thread
        self.sent_at = now
        self.answered = False
        self.stalled = False

    def ask(self) -> None:
        """Schedule the callback, on an asyncio loop or by a trio token."""
        if self.stalled:
            return
        schedule = getattr(self.loop, "call_soon_threadsafe", None) or self.loop.run_sync_soon
        # A loop that is closed never answers.
        with suppress(RuntimeError):
            schedule(self.answer)

    def answer(self) -> None:
        """Note that the loop runs; called on its thread, without the lock."""
        self.answered = True
        with suppress(ValueError):
            self._admission.stalled_loops.remove(self.loop)


class LoopMonitor:
    """Probes of the event loops that hold the slots of one key, one loop at a time."""

    __slots__ = ("_admission", "_alive_at", "_executors", "_probe")

    def __init__(self, admission: AdmissionController, executors: ExecutorTable) -> None:
        self._admission = admission
        self._executors = executors
        self._probe: LoopProbe | None = None
        # When the last probed loop showed that it runs, in monotonic seconds.
        self._alive_at = -INFINITY

    def forget(self) -> None:
        """Drop the probe in flight: no call needs its answer."""
        self._probe = None

    def should_probe(self, executor: Executor | None, active_groups: int) -> bool:
        """Return whether other calls than those of `executor` wait for a slot that an event loop's attempt holds.

        `active_groups` counts the groups of queued calls that are not passed over.
        """
        admission = self._admission
        if admission.stalled_loops:
            return True
        for oldest in admission.permits_in_flight.values():
            loop = oldest.loop
            return loop is not None and (active_groups > 1 or executor is None or loop is not executor.loop)
        return False

    def ask(
        self, executor: Executor | None, active_groups: int, now: float, running_thread: int, to_wake: list[Waiter]
    ) -> tuple[float, Executor | None]:
        """Probe the event loop of the oldest attempt, if calls of other executors wait for a slot.

        Return when to look again: infinity if there is no doubt, `now` if the loop does not run. In the latter case
        return its executor too, if calls of it wait. Append the probe to `to_wake`.
        """
        admission, blocks = self._admission, executor.blocks if executor is not None else 0
        flying = admission.permits_in_flight.values()
        # A loop that the call itself blocks certainly does not run.
        oldest = next((each for each in flying if each.thread != blocks and not admission.is_stalled(each.loop)), None)
        loop = oldest.loop if oldest is not None else None
        if oldest is None or loop is None or (active_groups < 2 and executor is not None and executor.loop is loop):
            self._probe = None
            return INFINITY, None
        known, probe = self._executors.of(loop), self._probe
        if running_thread and running_thread == oldest.thread:
            self._probe, self._alive_at = None, now
        elif probe is not None and probe.loop is loop:
            if probe.answered or (known is not None and known.ran_at > probe.sent_at):
                self._probe, self._alive_at = None, now
            elif now < probe.sent_at + PATIENCE:
                return probe.sent_at + PATIENCE, None
            else:
                self._stall(probe, now)
                to_wake.append(probe)
                return now, known
        quiet_at = max(admission.given_at, self._alive_at) + PATIENCE
        if now < quiet_at:
            return quiet_at, None
        self._probe = LoopProbe(admission, loop, oldest.thread, now)
        to_wake.append(self._probe)
        return now + PATIENCE, None

    def _stall(self, probe: LoopProbe, now: float) -> None:
        """Stop counting the attempts of an event loop that does not run."""
        self._probe, probe.stalled = None, True
        self._admission.stalled_loops.append(probe.loop)
        if probe.answered:
            probe.answer()  # the answer arrived between the two lines before
        self._admission.release_probe(probe.thread, now)
