"""Runs one item once: its time, its cancellation, the permit handed down, and a single report at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextvars import Context
from enum import Enum
from typing import Any, Protocol

from tidegate.admission.handoff import Hand
from tidegate.admission.key_table import Queues
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key
from tidegate.runner import forked
from tidegate.runner.chunks import emits_to
from tidegate.runner.item import Item
from tidegate.runner.stage import Stage


class Cut(Enum):
    """Why a function was cancelled: its time was up, or the experiment stops."""

    TIMEOUT = "timeout"
    STOP = "stop"


class Asking(Hand):
    """A hand that tells of the first key its function asks for, as soon as it asks, and when it begins or ends to wait.

    A permit of another key than the first is given back at once: it was a guess, and others may want it.
    """

    __slots__ = ("_asked_for", "_key", "_stood", "first")

    def __init__(
        self,
        queues: Queues,
        permit: Permit | None,
        asked_for: Callable[[Key, Cost], None],
        stood: Callable[[], None],
    ) -> None:
        super().__init__(queues, permit)
        self.first: Key | None = None
        self._key = permit.key if permit is not None else None
        self._asked_for = asked_for
        self._stood = stood

    def asked(self, key: Key, cost: Cost) -> None:
        """Remembers it; the first is news."""
        super().asked(key, cost)
        if self.first is None:
            self.first = key
            if key != self._key:
                self.close()
            self._asked_for(key, cost)

    def stands(self, call: object, now: float) -> None:
        """One of the work's calls waits in a queue."""
        super().stands(call, now)
        self._stood()

    def goes(self, call: object, now: float) -> None:
        """That call waits no more."""
        stood = self.standing
        super().goes(call, now)
        if stood:
            self._stood()


class Owner(Protocol):
    """The owner of a job. All of it is called in the loop's thread, but for `asked_for` and `emitted`."""

    def asked_for(self, stage: Stage, key: Key, cost: Cost) -> None:
        """The function asks for its first key; in any thread."""
        ...

    def emitted(self, job: Job, chunk: Any) -> None:
        """The function gives a piece of its answer; in any thread."""
        ...

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Has something called in the loop, soon; in any thread, also when the loop is gone."""
        ...

    def lent(self, job: Job) -> None:
        """By `job.lends`, its function has begun to wait for capacity inside a call, or goes on."""
        ...

    def took(self, job: Job) -> None:
        """It has ended."""
        ...


class Job:
    """One execution of an item. It reports to its owner exactly once, however its function ends or does not end.

    At its end it has the function's `value` or `error`, or says by `cut` why that was cancelled. A function that does
    not even end when it is cancelled is left behind after `cancel_grace` seconds: its slot is free, its result dropped.
    While the function stands in a key's queue, the job `lends` its slot.
    """

    __slots__ = (
        "_began",
        "_cancel_grace",
        "_loop",
        "_owner",
        "_process",
        "_suspended",
        "_timer",
        "cut",
        "done",
        "error",
        "hand",
        "item",
        "lends",
        "probe",
        "recalled",
        "seconds",
        "stage",
        "task",
        "value",
    )  # fmt: skip

    def __init__(
        self, item: Item, stage: Stage, owner: Owner, queues: Queues, permit: Permit | None, cancel_grace: float
    ) -> None:
        self.item = item
        self.stage = stage
        self.hand = Asking(queues, permit, self._asked_for, self._stood)
        self.recalled = False
        self.probe = permit is not None and permit.probe
        self.value: Any = None
        self.error: BaseException | None = None
        self.cut: Cut | None = None
        self.done = self.lends = self._suspended = False
        self.seconds = 0.0
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._cancel_grace = cancel_grace

    def start(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Starts the function in a task of its own, which runs in `context`."""
        self._loop = loop
        self._process = os.getpid()
        self._began = loop.time()
        self._timer = loop.call_later(self.stage.timeout, self._time_is_up)
        self.task = loop.create_task(self._run(), context=context)

    @property
    def began(self) -> float:
        """When it was started, in monotonic seconds of its loop."""
        return self._began

    def recall(self) -> None:
        """End the waits of its calls: the function gets the refusal that there is, and its item is to be parked."""
        if not self.recalled:
            self.recalled = True
            self.hand.recall()

    def forget(self) -> None:
        """Forget the answer and the error: the job and its hand know each other, so both wait for the collector.

        An answer may be megabytes, and the frames behind an error hold the row.
        """
        self.value = self.error = None

    def cancel(self, cut: Cut) -> None:
        """Cancels the function; where it takes no notice of that, it is left behind."""
        if self.cut is None and not self.done and self.task is not None:
            self.cut = cut
            self.task.cancel()
            # One that is cancelled before its first step never runs.
            self.task.add_done_callback(lambda _: self._report())
            self._timer.cancel()
            self._timer = self._loop.call_later(self._cancel_grace, self._report)

    async def _run(self) -> None:
        emits_to(self._emitted)
        try:
            with self.hand:
                try:
                    self.value = await self.stage.invoke(self.item)
                except BaseException as error:
                    if os.getpid() != self._process:
                        forked.leave(error)
                    raise
                if os.getpid() != self._process:
                    forked.leave(None)
        except BaseException as error:
            # An interrupt would end the loop from here: whoever takes in the end stops the run instead.
            # A cancellation that nobody here asked for, or an exit that the function asks for, is a failure of its own.
            self.error = error
        else:
            # It ended before its cancellation reached it: that is an answer, and it was paid for.
            self.cut = None
        self._report()

    def _emitted(self, chunk: Any) -> None:
        self._owner.emitted(self, chunk)

    def _asked_for(self, key: Key, cost: Cost) -> None:
        self._owner.asked_for(self.stage, key, cost)

    def _stood(self) -> None:
        # In whatever thread the call waits. What counts is how it is when the loop comes to look.
        self._owner.in_loop(self._look)

    def _look(self) -> None:
        if self.done:
            return
        standing = self.hand.standing
        if standing is not self.lends:
            self.lends = standing
            self._owner.lent(self)
        if not standing and self._suspended:
            self._suspended = False
            self._time_is_up()

    def _time_is_up(self) -> None:
        left = self.stage.timeout - (self._loop.time() - self._began - self.hand.waited())
        if self.hand.standing:
            # Its time stands still until it goes on, which is told.
            self._suspended = True
        elif left > 0.001:
            self._timer = self._loop.call_later(left, self._time_is_up)
        else:
            self.cancel(Cut.TIMEOUT)

    def _report(self) -> None:
        if self.done:
            return
        self.done = True
        self._timer.cancel()
        self.seconds = self._loop.time() - self._began
        try:
            self.hand.close()
        finally:
            self._owner.took(self)
