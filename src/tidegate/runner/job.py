"""Runs one item once: its time, its cancellation, the permit handed down, and a single report at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any

from tidegate.core.permit import Permit
from tidegate.core.vocabulary import Cost, Key
from tidegate.handing import Hand
from tidegate.queues import Queues
from tidegate.runner.chunks import emits_to
from tidegate.runner.item import Item
from tidegate.runner.stage import Stage


class Cut(Enum):
    """Why a function was cancelled: its time was up, or the experiment stops."""

    TIMEOUT = "timeout"
    STOP = "stop"


class Asking(Hand):
    """A hand that tells of the first key its function asks for, as soon as it asks."""

    __slots__ = ("_told", "first")

    def __init__(self, queues: Queues, permit: Permit | None, told: Callable[[Key, Cost], None]) -> None:
        super().__init__(queues, permit)
        self.first: Key | None = None
        self._told = told

    def asked(self, key: Key, cost: Cost) -> None:
        """Remembers it; the first is news."""
        super().asked(key, cost)
        if self.first is None:
            self.first = key
            self._told(key, cost)


class Job:
    """One execution of an item. It reports to `ended` exactly once, however its function ends or does not end.

    At its end it has the function's `value` or `error`, or says by `cut` why that was cancelled. A function that does
    not even end when it is cancelled is left behind after `cancel_grace` seconds: its slot is free, its result dropped.
    """

    __slots__ = (
        "_began",
        "_cancel_grace",
        "_ended",
        "_loop",
        "_timer",
        "cut",
        "done",
        "error",
        "hand",
        "item",
        "probe",
        "seconds",
        "stage",
        "task",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        item: Item,
        stage: Stage,
        hand: Asking,
        probe: bool,
        cancel_grace: float,
        ended: Callable[[Job], None],
    ) -> None:
        self.item = item
        self.stage = stage
        self.hand = hand
        self.probe = probe
        self.value: Any = None
        self.error: BaseException | None = None
        self.cut: Cut | None = None
        self.done = False
        self.seconds = 0.0
        self._cancel_grace = cancel_grace
        self._ended = ended

    def start(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Any], None]) -> None:
        """Starts the function in a task of its own."""
        self._loop = loop
        self._began = loop.time()
        self._timer = loop.call_later(self.stage.timeout, self._time_is_up)
        self.task = loop.create_task(self._run(emit))

    def cancel(self, cut: Cut) -> None:
        """Cancels the function; where it takes no notice of that, it is left behind."""
        if self.cut is None and not self.done:
            self.cut = cut
            self.task.cancel()
            # One that is cancelled before its first step never runs.
            self.task.add_done_callback(lambda _: self._report())
            self._timer.cancel()
            self._timer = self._loop.call_later(self._cancel_grace, self._report)

    async def _run(self, emit: Callable[[Any], None]) -> None:
        emits_to(emit)
        try:
            with self.hand:
                self.value = await self.stage.invoke(self.item)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # A cancellation that nobody here asked for, or an exit that the function asks for, is a failure of its own.
            self.error = error
        else:
            # It ended before its cancellation reached it: that is an answer, and it was paid for.
            self.cut = None
        self._report()

    def _time_is_up(self) -> None:
        now = self._loop.time()
        left = self.stage.timeout - (now - self._began - self.hand.waited())
        if left > 0.001:
            self._timer = self._loop.call_later(left, self._time_is_up)
        else:
            self.cancel(Cut.TIMEOUT)

    def _report(self) -> None:
        if self.done:
            return
        self.done = True
        self._timer.cancel()
        self.hand.close()
        self.seconds = self._loop.time() - self._began
        self._ended(self)
