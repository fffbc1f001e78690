"""Runs one item once: its time, its cancellation, the permit handed down, and a single report at the end.

One stage of an experiment: its function as something that can be awaited, and what is known of it.

Stops a run that cannot succeed: so many permanent failures of one kind in a row.

A dead provider is the breaker's affair and never comes here: it pauses one key and loses no row. What comes here are
failures that another attempt cannot mend: a wrong credential, an empty account, a template that fits no row.

The key that a stage's function asks first: learned from its calls, so that it can be asked before the next one.

The chunks of an answer while a task writes it: `emit`, or a generator.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from tidegate.admission.handoff import PermitHandoff
from tidegate.admission.key_table import KeyTable
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key
from tidegate.runner import forked
from tidegate.runner.experiment import Experiment
from tidegate.runner.item import TASK, Item, copied
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.threads import in_thread

_emitting: ContextVar[Callable[[Any], None] | None] = ContextVar("tidegate_emitting", default=None)


def emit(chunk: Any) -> None:
    """Gives a piece of the running task's answer to the experiment's subscribers; from any thread, never blocking.

    Nothing is kept of it: the answer is what the task returns. Outside a task it does nothing.
    """
    emitting = _emitting.get()
    if emitting is not None:
        emitting(chunk)


def emits_to(receiver: Callable[[Any], None]) -> None:
    """From here on, what is emitted in this context goes to `receiver`."""
    _emitting.set(receiver)


def whole(chunks: list[Any]) -> Any:
    """The answer that was given in chunks: one text where all are texts, else their list."""
    if chunks and all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    return chunks


class KeyUsage:
    """The knowledge of one stage: nothing at first, then the key and cost of its latest first request.

    A function that ended without asking any key makes no governed calls, as far as is known: `known` without a `key`.
    """

    __slots__ = ("cost", "key", "known")

    def __init__(self) -> None:
        self.known = False
        self.key: Key | None = None
        self.cost: Cost | None = None

    def asked(self, key: Key, cost: Cost) -> bool:
        """A call of the function asked this key first; returns whether that is news."""
        news = not self.known or key != self.key
        self.known = True
        self.key = key
        self.cost = cost
        return news

    def ended(self) -> bool:
        """A call ended that asked no key; returns whether that is news."""
        news = not self.known
        self.known = True
        return news


class FailureGuard:
    """Counts the consecutive permanent failures of one stage; any success, or another kind, begins anew."""

    __slots__ = ("count", "kind", "threshold", "tripped")

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.kind = ""
        self.count = 0
        self.tripped = False

    def succeeded(self) -> None:
        """An answer: whatever failed before was not the workload."""
        self.kind = ""
        self.count = 0

    def failed(self, kind: str) -> bool:
        """Return whether this failure is the one that stops the run; once it has tripped, it never says so again."""
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind = kind
        if self.tripped or self.count < self.threshold:
            return False
        self.tripped = True
        return True


Invocation = Callable[[Item], Awaitable[Any]]


class StageClosing(NamedTuple):
    """Why nothing of a stage is tried any more in this run: the kind of its parked items, and the reason."""

    kind: str
    reason: str


class Stage:
    """The tasks of an experiment, or one of its evaluators; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the loop, a synchronous one in a thread with the context
    copied. A thread cannot be cancelled: when its time is up it is left alone, and what it returns is dropped.
    Once there is a `closing`, its items are parked. `last_error` is how its newest call failed for want of an answer.
    """

    __slots__ = ("closing", "guard", "habit", "index", "invoke", "last_error", "name", "outputs", "timeout")

    def __init__(
        self, index: int, name: str, function: Callable[..., Any], outputs: tuple[str, ...], timeout: float, guard: int
    ) -> None:
        self.index = index
        self.name = name
        self.outputs = outputs
        self.timeout = timeout
        self.guard = FailureGuard(guard)
        self.closing: StageClosing | None = None
        self.last_error = ""
        self.habit = KeyUsage()
        self.invoke = invocation(function, _row if index == TASK else _row_and_output)


def stages_of(experiment: Experiment, settings: RunnerSettings) -> list[Stage]:
    """The stages of an experiment: its tasks, then its evaluators in their order."""
    task_timeout = experiment.task_timeout or settings.task_timeout
    stages = [Stage(TASK, "task", experiment.task, (), task_timeout, settings.guard)]
    for index, evaluator in enumerate(experiment.evaluators, start=1):
        timeout = evaluator.timeout or settings.eval_timeout
        stages.append(Stage(index, evaluator.name, evaluator.function, evaluator.outputs, timeout, settings.guard))
    return stages


def _row(item: Item) -> tuple[Any, ...]:
    return (copied(item.body),)


def _row_and_output(item: Item) -> tuple[Any, ...]:
    return copied(item.body), copied(item.output)


def invocation(function: Callable[..., Any], arguments: Callable[[Item], tuple[Any, ...]]) -> Invocation:
    """Return how `function` is called for an item: by what kind of function it is."""
    plain = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
    if inspect.iscoroutinefunction(plain):
        return lambda item: function(*arguments(item))
    if inspect.isasyncgenfunction(plain):
        return lambda item: _streamed(function(*arguments(item)))
    if inspect.isgeneratorfunction(plain):
        return lambda item: _in_thread(partial(_drained, function, arguments(item)))
    return lambda item: _in_thread(partial(function, *arguments(item)))


async def _streamed(chunks: Any) -> Any:
    given = []
    try:
        async for chunk in chunks:
            emit(chunk)
            given.append(chunk)
    finally:
        await chunks.aclose()
    return whole(given)


def _drained(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    given = []
    for chunk in function(*arguments):
        emit(chunk)
        given.append(chunk)
    return whole(given)


async def _in_thread(call: Callable[[], Any]) -> Any:
    result = await in_thread(call)
    return await result if inspect.isawaitable(result) else result


class CancelReason(Enum):
    """Why a function was cancelled: its time was up, or the experiment stops."""

    TIMEOUT = "timeout"
    STOP = "stop"


class ObservedHandoff(PermitHandoff):
    """A hand that tells of the first key its function asks for, as soon as it asks, and when it begins or ends to wait.

    A permit of another key than the first is given back at once: it was a guess, and others may want it.
    """

    __slots__ = ("_asked_for", "_key", "_stood", "first")

    def __init__(
        self,
        queues: KeyTable,
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


class JobOwner(Protocol):
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

    def on_slot_lent(self, job: Job) -> None:
        """By `job.lends`, its function has begun to wait for capacity inside a call, or goes on."""
        ...

    def on_job_done(self, job: Job) -> None:
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
        "handoff",
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
        self, item: Item, stage: Stage, owner: JobOwner, queues: KeyTable, permit: Permit | None, cancel_grace: float
    ) -> None:
        self.item = item
        self.stage = stage
        self.handoff = ObservedHandoff(queues, permit, self._asked_for, self._stood)
        self.recalled = False
        self.probe = permit is not None and permit.probe
        self.value: Any = None
        self.error: BaseException | None = None
        self.cut: CancelReason | None = None
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
            self.handoff.recall()

    def forget(self) -> None:
        """Forget the answer and the error: the job and its hand know each other, so both wait for the collector.

        An answer may be megabytes, and the frames behind an error hold the row.
        """
        self.value = self.error = None

    def cancel(self, cut: CancelReason) -> None:
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
            with self.handoff:
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
        standing = self.handoff.standing
        if standing is not self.lends:
            self.lends = standing
            self._owner.on_slot_lent(self)
        if not standing and self._suspended:
            self._suspended = False
            self._time_is_up()

    def _time_is_up(self) -> None:
        left = self.stage.timeout - (self._loop.time() - self._began - self.handoff.waited())
        if self.handoff.standing:
            # Its time stands still until it goes on, which is told.
            self._suspended = True
        elif left > 0.001:
            self._timer = self._loop.call_later(left, self._time_is_up)
        else:
            self.cancel(CancelReason.TIMEOUT)

    def _report(self) -> None:
        if self.done:
            return
        self.done = True
        self._timer.cancel()
        self.seconds = self._loop.time() - self._began
        try:
            self.handoff.close()
        finally:
            self._owner.on_job_done(self)
