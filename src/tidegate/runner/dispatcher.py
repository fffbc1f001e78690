"""The dispatcher: while there is a free slot, whose turn it is gets it, if its key says yes. Nothing is polled.

It is made to look again by whatever can change its answer: new work, an end, a key that reopened, a retry whose time
has come, a database that takes results again. Each of these pokes it; it then looks once, in the loop's next round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING

from tidegate.core.limiter_state import Permit
from tidegate.runner.run import ExperimentRun

if TYPE_CHECKING:
    from tidegate.runner.context import RunnerContext

logger = logging.getLogger("tidegate")

MOST_ERRORS = 50
"""Consecutive internal errors that end the dispatcher: a programming error, not a bad moment (Phoenix: 50)."""


class Dispatcher:
    """Gives the slots of a runner to its experiments.

    An error in an experiment's turn ends that experiment. Others are survived, but for too many in a row: it is
    `broken` then, and every experiment has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.running: dict[int, ExperimentRun] = {}
        self.errors = 0
        self.stopped = False
        self.broken: BaseException | None = None
        self._loop = loop
        self._poked = False
        self._shared: RunnerContext

    def serve(self, shared: RunnerContext) -> None:
        """Takes up the floor whose slots it gives."""
        self._shared = shared

    def wake(self) -> None:
        """Looks again, soon; any number of pokes until then are one."""
        if not self._poked and not self.stopped:
            self._poked = True
            self._loop.call_soon(self._look)

    def roomy(self) -> None:
        """The writer takes results again: looks again, and whoever has not gone on to feed itself does."""
        for running in self.running.values():
            running.look_for_more()
        self.wake()

    def stop(self) -> None:
        """Dispatches nothing more."""
        self.stopped = True

    def _look(self) -> None:
        self._poked = False
        if self.stopped:
            return
        try:
            while self._shared.slots > 0 and self._shared.writer.room and self._step():
                pass
        except Exception as error:
            self._failed(error)
        else:
            self.errors = 0

    def _step(self) -> bool:
        """One turn: an item is started, or its gate turns out to be closed; False where nobody's turn it is."""
        turn = self._shared.fair_queue.next(self._urgency)
        if turn is None:
            return False
        experiment, gate = turn
        running = self.running[experiment]
        try:
            self._serve(running, gate)
        except Exception as error:
            logger.exception("experiment %s: its turn failed", running.experiment.name)
            running.fail(error)
        return True

    def _serve(self, running: ExperimentRun, gate: Hashable) -> None:
        item = running.work_queue.peek(gate)
        if item is None or running.full(item.stage):
            # It is offered anew when a job of it ends.
            self._shared.fair_queue.withdraw(running.id, gate)
            return
        permit = self._shared.gates.ask(gate, running.stages[item.stage].habit.cost)
        if permit is False:
            return
        try:
            running.work_queue.take(gate)
            self._shared.fair_queue.dispatched(running.id)
            running.dispatch(item, None if permit is True else permit)
        except BaseException:
            if isinstance(permit, Permit) and not permit.settled:
                self._shared.registry.withdraw(permit)
            raise
        if not running.work_queue.has(gate):
            self._shared.fair_queue.withdraw(running.id, gate)

    def _urgency(self, experiment: int, gate: Hashable) -> int:
        return self.running[experiment].work_queue.rank(gate)

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        logger.exception("the dispatcher failed (%d in a row)", self.errors)
        if self.errors >= MOST_ERRORS:
            self.stopped, self.broken = True, error
            for running in list(self.running.values()):
                running.fail(error)
            return
        self._poked = True
        wait = min(0.1 * 2.0 ** min(self.errors, 9), 30.0)
        self._loop.call_later(wait, self._look)
