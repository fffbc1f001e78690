"""Detection of event loops that hold slots and do not run.

Theory of operation. An attempt of an event loop ends only when that loop runs. Where calls of other executors wait for
a slot, the loop of the oldest attempt gets a probe: a callback that it has to run within `PATIENCE` seconds. Otherwise
the loop is stalled: its attempts do not count until it runs, and its waiting calls are passed over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tidegate.admission.executors import PATIENCE, Executor, ExecutorTable
from tidegate.admission.wait_queue import NEVER, ReadyCallback, Waiter
from tidegate.core.admission_controller import AdmissionController


class LoopProbe(ReadyCallback):
    """A question to an event loop that holds slots, whether it runs: it answers by running a callback.

    `sent_at` is in monotonic seconds. `stalled` is set when no answer came in time: its attempts do not count from then
    on, until the callback runs after all.
    """

    __slots__ = ("_admission", "answered", "loop", "sent_at", "stalled", "thread")

    def __init__(self, admission: AdmissionController, loop: Any, thread: int, now: float) -> None:
        super().__init__(self.ring)
        self._admission = admission
        self.loop = loop
        self.thread = thread
        self.sent_at = now
        self.answered = False
        self.stalled = False

    def ring(self) -> None:
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
        # When the loop that was probed last showed that it runs, in monotonic seconds.
        self._alive_at = -NEVER

    def forget(self) -> None:
        """Drop the probe under way: nobody waits for its answer."""
        self._probe = None

    def doubts(self, executor: Executor | None, running: int) -> bool:
        """Return whether calls of other executors than `executor` wait for a slot that an event loop's attempt holds.

        `running` counts the groups of calls in the line that are not passed over.
        """
        admission = self._admission
        if admission.stalled_loops:
            return True
        for oldest in admission.flying.values():
            loop = oldest.loop
            return loop is not None and (running > 1 or executor is None or loop is not executor.loop)
        return False

    def ask(
        self, executor: Executor | None, running: int, now: float, here: int, woken: list[Waiter]
    ) -> tuple[float, Executor | None]:
        """Probe the event loop of the oldest attempt, where others than its own calls wait for a slot.

        Return when to look again: infinity where nothing is doubted, `now` where the loop is found not to run. Then
        its executor is returned too, if calls of it wait. The probe is appended to `woken`.
        """
        admission, blocks = self._admission, executor.blocks if executor is not None else 0
        flying = admission.flying.values()
        # A loop that the call itself blocks does not run for certain.
        oldest = next((each for each in flying if each.thread != blocks and not admission.is_stalled(each.loop)), None)
        loop = oldest.loop if oldest is not None else None
        if oldest is None or loop is None or (running < 2 and executor is not None and executor.loop is loop):
            self._probe = None
            return NEVER, None
        known, probe = self._executors.of(loop), self._probe
        if here and here == oldest.thread:
            self._probe, self._alive_at = None, now
        elif probe is not None and probe.loop is loop:
            if probe.answered or (known is not None and known.seen_at > probe.sent_at):
                self._probe, self._alive_at = None, now
            elif now < probe.sent_at + PATIENCE:
                return probe.sent_at + PATIENCE, None
            else:
                self._stall(probe, now)
                woken.append(probe)
                return now, known
        quiet_at = max(admission.given_at, self._alive_at) + PATIENCE
        if now < quiet_at:
            return quiet_at, None
        self._probe = LoopProbe(admission, loop, oldest.thread, now)
        woken.append(self._probe)
        return now + PATIENCE, None

    def _stall(self, probe: LoopProbe, now: float) -> None:
        """Leave the attempts of an event loop that does not run out of the count."""
        self._probe, probe.stalled = None, True
        self._admission.stalled_loops.append(probe.loop)
        if probe.answered:
            probe.answer()  # it came between the two lines before
        self._admission.release_probe(probe.thread, now)
