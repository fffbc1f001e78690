"""Dispatcher that gives free slots to experiments in fair order, if the key of their work admits it.

Nothing is polled. New work, an ended job, a reopened key, a ready retry or a database that accepts results again calls
`wake`. The dispatcher then checks once, in the event loop's next iteration.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING

from tidegate.core.limiter_state import Permit
from tidegate.experiments.engine.run import ExperimentRun

if TYPE_CHECKING:
    from tidegate.experiments.engine.run_state import RunnerContext

logger = logging.getLogger("tidegate")

MAX_ERRORS = 50
"""Consecutive internal errors that end the dispatcher. Raising it repeats a programming error more often before the run
ends. Precedent: Phoenix, 50."""


class Dispatcher:
    """Dispatcher of a runner's slots.

    An error while it serves an experiment ends that experiment. It survives other errors, except `MAX_ERRORS` in a
    row. Then it is `broken`, and every experiment ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runs: dict[int, ExperimentRun] = {}
        self.errors = 0
        self.stopped = False
        self.broken: BaseException | None = None
        self._loop = loop
        self._check_scheduled = False
        self._thread = threading.get_ident()
        self._shared: RunnerContext

    def serve(self, shared: RunnerContext) -> None:
        """Set the shared context whose slots it gives."""
        self._shared = shared

    def wake(self) -> None:
        """Schedule one check; further calls until then have no effect."""
        if not self._check_scheduled and not self.stopped:
            self._check_scheduled = True
            self._loop.call_soon(self._check)

    def wake_from_thread(self) -> None:
        """Do the same from any thread, even after the loop has closed."""
        if threading.get_ident() == self._thread:
            self.wake()
            return
        try:
            self._loop.call_soon_threadsafe(self.wake)
        except RuntimeError:
            return

    def on_room(self) -> None:
        """Check again, because the writer accepts results again; runs that need more work request it."""
        for run in self.runs.values():
            run.request_page()
        self.wake()

    def stop(self) -> None:
        """Stop dispatching."""
        self.stopped = True

    def _check(self) -> None:
        self._check_scheduled = False
        if self.stopped:
            return
        try:
            while self._shared.functions.has_room() and self._shared.writer.room and self._step():
                pass
        except Exception as error:
            self._failed(error)
        else:
            self.errors = 0

    def _step(self) -> bool:
        """Start one item or find its gate (the key that it waits for) closed; return False if nothing can be served."""
        turn = self._shared.fair_queue.next(self._urgency)
        if turn is None:
            return False
        experiment, gate = turn
        run = self.runs[experiment]
        try:
            self._serve(run, gate)
        except Exception as error:
            logger.exception(
                "experiment %s: dispatch failed: %s was raised; the run ends with ERROR",
                run.experiment.name,
                type(error).__name__,
            )
            run.fail(error)
        return True

    def _serve(self, run: ExperimentRun, gate: Hashable) -> None:
        item = run.work_queue.peek(gate)
        if item is None or run.full(item):
            # The item is offered again when a job of its run ends.
            self._shared.fair_queue.withdraw(run.id, gate)
            return
        permit = self._shared.gates.request_permit(gate, run.stages[item.stage].key_usage.cost)
        if permit is False:
            return
        try:
            run.work_queue.take(gate)
            self._shared.fair_queue.dispatched(run.id)
            run.dispatch(item, None if permit is True else permit)
        except BaseException:
            if isinstance(permit, Permit) and not permit.settled:
                self._shared.registry.withdraw(permit)
            raise
        if not run.work_queue.has(gate):
            self._shared.fair_queue.withdraw(run.id, gate)

    def _urgency(self, experiment: int, gate: Hashable) -> int:
        return self.runs[experiment].work_queue.rank(gate)

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        wait = min(0.1 * 2.0 ** min(self.errors, 9), 30.0)
        broken = self.errors >= MAX_ERRORS
        then = "it stops, and every run ends with ERROR" if broken else f"retrying in {wait:g} s"
        reason = type(error).__name__
        logger.exception("dispatcher failed: %s was raised (%d in a row); %s", reason, self.errors, then)
        if broken:
            self.stopped, self.broken = True, error
            for run in list(self.runs.values()):
                run.fail(error)
            return
        self._check_scheduled = True
        self._loop.call_later(wait, self._check)
