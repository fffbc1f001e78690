"""Execution of one item: its stage, timeout, cancellation, permit and single report at the end.

Theory of operation. A stage is the task or one evaluator of an experiment. Its `KeyUsage` learns the key that its
function asks first, so that the next call's permit can be requested in advance. Its `FailureGuard` stops a run that
cannot succeed, after a number of consecutive permanent failures of one kind. A dead provider never reaches the guard:
the circuit breaker pauses its key, and no row is lost. The guard counts failures that another attempt cannot repair: a
wrong credential, an empty account, a template that fits no row.
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

from tidegate.admission.audit import receive
from tidegate.admission.handoff import PermitHandoff
from tidegate.admission.key_table import KeyTable
from tidegate.core.events import AttemptEnded
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key, Silence
from tidegate.runner import forked
from tidegate.runner.experiment import Experiment
from tidegate.runner.item import TASK, Item, copied
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.threads import in_thread

_emitting: ContextVar[Callable[[Any], None] | None] = ContextVar("tidegate_emitting", default=None)


def emit(chunk: Any) -> None:
    """Send a chunk of the running task's answer to the experiment's subscribers; from any thread, without blocking.

    The chunk is not stored: the answer is the task's return value. Outside a task the call does nothing.
    """
    emitting = _emitting.get()
    if emitting is not None:
        emitting(chunk)


def emits_to(receiver: Callable[[Any], None]) -> None:
    """Send all chunks emitted in this context to `receiver`."""
    _emitting.set(receiver)


def whole(chunks: list[Any]) -> Any:
    """Join the chunks of an answer: one string if all are strings, else their list."""
    if chunks and all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    return chunks


class KeyUsage:
    """Key and cost of the latest first request of a stage's function.

    `known` without a `key` means that a call of the function ended without asking any key.
    """

    __slots__ = ("cost", "key", "known")

    def __init__(self) -> None:
        self.known = False
        self.key: Key | None = None
        self.cost: Cost | None = None

    def note_use(self, key: Key, cost: Cost) -> bool:
        """Record the key that a call asked first; return whether it is new."""
        is_new = not self.known or key != self.key
        self.known = True
        self.key = key
        self.cost = cost
        return is_new

    def ended(self) -> bool:
        """Record a call that ended without asking a key; return whether the stage was unknown before."""
        is_new = not self.known
        self.known = True
        return is_new


class FailureGuard:
    """Counter of a stage's consecutive permanent failures; a success or another kind of failure restarts it."""

    __slots__ = ("count", "kind", "threshold", "tripped")

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.kind = ""
        self.count = 0
        self.tripped = False

    def succeeded(self) -> None:
        """Reset the counter."""
        self.kind = ""
        self.count = 0

    def failed(self, kind: str) -> bool:
        """Return whether this failure trips the guard; it trips once."""
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind = kind
        if self.tripped or self.count < self.threshold:
            return False
        self.tripped = True
        return True


Invocation = Callable[[Item], Awaitable[Any]]


class StageClosing(NamedTuple):
    """Reason why a stage is no longer tried in this run, and the kind of its parked items."""

    kind: str
    reason: str


class Stage:
    """Task or evaluator of an experiment; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the event loop, a synchronous one in a thread with a copy
    of the context. A thread cannot be cancelled: after its timeout it is abandoned, and its result dropped. Items of a
    stage with a `closing` are parked. `last_error` is the latest failure of a call that got no answer.
    """

    __slots__ = ("closing", "guard", "index", "invoke", "key_usage", "last_error", "name", "outputs", "timeout")

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
        self.key_usage = KeyUsage()
        self.invoke = invocation(function, _row if index == TASK else _row_and_output)


def stages_of(experiment: Experiment, settings: RunnerSettings) -> list[Stage]:
    """Return the stages of an experiment: its task, then its evaluators in their order."""
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
    """Return a callable that runs `function` for an item, according to the kind of function."""
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
    """Reason of a cancellation: the function's timeout, or the stop of the experiment."""

    TIMEOUT = "timeout"
    STOP = "stop"


class ObservedHandoff(PermitHandoff):
    """Permit handoff that reports the first key its function asks for, and the begin and end of its waits.

    A permit of another key than the first is returned at once: it was a guess, and other calls may want it.
    """

    __slots__ = ("_calls", "_in_call", "_key", "_on_key_used", "_on_wait_changed", "first")

    def __init__(
        self,
        queues: KeyTable,
        permit: Permit | None,
        asked_for: Callable[[Key, Cost], None],
        on_wait_changed: Callable[[], None],
        calls: Callable[[bool], None],
    ) -> None:
        super().__init__(queues, permit)
        self.first: Key | None = None
        self._key = permit.key if permit is not None else None
        self._on_key_used = asked_for
        self._on_wait_changed = on_wait_changed
        self._calls = calls
        self._in_call = False

    def note_use(self, key: Key, cost: Cost) -> None:
        """Record a key, and report the first one."""
        super().note_use(key, cost)
        if self.first is None:
            self.first = key
            if key != self._key:
                self.close()
            self._on_key_used(key, cost)

    def note_wait_started(self, call: object, now: float) -> None:
        """Report that a call of the work waits in a queue."""
        super().note_wait_started(call, now)
        self._on_wait_changed()
        self._update_slot()

    def note_wait_ended(self, call: object, now: float) -> None:
        """Report that a call of the work no longer waits."""
        was_waiting = self.is_waiting
        super().note_wait_ended(call, now)
        if was_waiting:
            self._on_wait_changed()
            self._update_slot()

    def note_sending(self, permit: Permit) -> None:
        """Report that the work is in a call."""
        super().note_sending(permit)
        self._update_slot()

    def note_settled(self, permit: Permit) -> None:
        """Report that the work is in no call any more."""
        super().note_settled(permit)
        self._update_slot()

    def _update_slot(self) -> None:
        # Calls of one piece of work may run in several threads: the owner is told of the last state under the lock.
        with self._lock:
            calling = self.calling
            if calling is not self._in_call:
                self._in_call = calling
                self._calls(calling)


class JobOwner(Protocol):
    """Owner of a job. Its methods run in the event loop's thread, except `on_key_used`, `on_chunk`, `in_call` and
    `in_loop`.
    """

    def on_key_used(self, stage: Stage, key: Key, cost: Cost) -> None:
        """Accept the first key that the function asks for; called in any thread."""
        ...

    def on_chunk(self, job: Job, chunk: Any) -> None:
        """Accept a chunk of the answer; called in any thread."""
        ...

    def in_call(self, job: Job, calling: bool) -> None:
        """Count a function that is in a call now, or in none any more; called in any thread."""
        ...

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call in the event loop; called in any thread, even after the loop has closed."""
        ...

    def on_slot_lent(self, job: Job) -> None:
        """Handle a change of `job.slot_lent`: the function begins to wait for capacity inside a call, or continues."""
        ...

    def on_job_done(self, job: Job) -> None:
        """Handle the end of the job."""
        ...


class Job:
    """One execution of an item. It reports to its owner exactly once, whether or not its function ends.

    At the end it has the function's `value` or `error`; `cancel_reason` is the reason of a cancellation. With
    `in_outage` its time was over while it waited for a provider that answers nothing. A function
    that ignores its cancellation is abandoned after `cancel_grace` seconds: its slot is free, and its result dropped.
    While the function waits in a key's queue, the job `slot_lent` its slot. The runner's `FunctionLimit` keeps
    `at_work_since`, `beside` and `over`. It `began` at that second of the loop. `attempts` has those of its calls that
    have ended.
    """

    __slots__ = (
        "_cancel_grace",
        "_loop",
        "_owner",
        "_process",
        "_suspended",
        "_timer",
        "at_work_since",
        "attempts",
        "began",
        "beside",
        "cancel_reason",
        "done",
        "error",
        "handoff",
        "in_outage",
        "item",
        "over",
        "probe",
        "recalled",
        "seconds",
        "size",
        "slot_lent",
        "stage",
        "task",
        "value",
    )  # fmt: skip

    def __init__(
        self, item: Item, stage: Stage, owner: JobOwner, queues: KeyTable, permit: Permit | None, cancel_grace: float
    ) -> None:
        self.item = item
        self.stage = stage
        self.handoff = ObservedHandoff(queues, permit, self._on_key_used, self._on_wait_changed, self._in_call)
        self.recalled = False
        self.probe = permit is not None and permit.probe
        self.value: Any = None
        self.error: BaseException | None = None
        self.cancel_reason: CancelReason | None = None
        self.done = self.slot_lent = self.in_outage = self._suspended = False
        self.seconds = 0.0
        self.size = item.size
        self.at_work_since: float | None = None
        self.beside = 0
        self.over = False
        self.attempts: list[AttemptEnded] = []
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._cancel_grace = cancel_grace

    def start(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Start the function in a separate task, which runs in `context`."""
        self._loop = loop
        self._process = os.getpid()
        self.began = loop.time()
        self._timer = loop.call_later(self.stage.timeout, self._check_timeout)
        self.task = loop.create_task(self._run(), context=context)

    def recall(self) -> None:
        """End the waits of its calls: the function receives the present refusal, and its item is to be parked."""
        if not self.recalled:
            self.recalled = True
            self.handoff.recall()

    def forget(self) -> None:
        """Drop the answer and the error.

        The job and its handoff reference each other, so both live until the garbage collector runs. An answer may be
        megabytes, and the frames behind an error hold the row.
        """
        self.value = self.error = None

    def cancel(self, cancel_reason: CancelReason) -> None:
        """Cancel the function; abandon it if it ignores the cancellation."""
        if self.cancel_reason is None and not self.done and self.task is not None:
            self.cancel_reason = cancel_reason
            self.task.cancel()
            # A task that is cancelled before its first step never runs.
            self.task.add_done_callback(lambda _: self._report())
            self._timer.cancel()
            self._timer = self._loop.call_later(self._cancel_grace, self._report)

    async def _run(self) -> None:
        emits_to(self._on_chunk)
        try:
            receive(self.attempts.append)
            with self.handoff:
                try:
                    self.value = await self.stage.invoke(self.item)
                except BaseException as error:
                    if os.getpid() != self._process:
                        forked.exit_child(error)
                    raise
                if os.getpid() != self._process:
                    forked.exit_child(None)
        except BaseException as error:
            # A KeyboardInterrupt raised here would end the loop; the owner stops the run instead. A cancellation that
            # tidegate did not request is a failure, as is an exit that the function requests.
            self.error = error
        else:
            # The function ended before its cancellation reached it: the answer is valid and was paid for.
            self.cancel_reason = None
        self._report()

    def _on_chunk(self, chunk: Any) -> None:
        self._owner.on_chunk(self, chunk)

    def _on_key_used(self, key: Key, cost: Cost) -> None:
        self._owner.on_key_used(self.stage, key, cost)

    def _in_call(self, calling: bool) -> None:
        self._owner.in_call(self, calling)

    def _on_wait_changed(self) -> None:
        # This runs in the thread of the waiting call. The loop later reads the state that then holds.
        self._owner.in_loop(self._update_slot)

    def _update_slot(self) -> None:
        if self.done:
            return
        standing = self.handoff.is_waiting
        if standing is not self.slot_lent:
            self.slot_lent = standing
            self._owner.on_slot_lent(self)
        if not standing and self._suspended:
            self._suspended = False
            self._check_timeout()

    def _check_timeout(self) -> None:
        remaining_seconds = self.stage.timeout - (self._loop.time() - self.began - self.handoff.waited_seconds())
        if self.handoff.is_waiting:
            # The timeout is suspended until the call continues, which `_update_slot` notices.
            self._suspended = True
        elif remaining_seconds > 0.001:
            self._timer = self._loop.call_later(remaining_seconds, self._check_timeout)
        else:
            silence = self.handoff.note_timeout(self.item.slow)
            self.in_outage = silence is Silence.OUTAGE
            self.item.slow = self.item.slow or silence is Silence.SLOW
            self.cancel(CancelReason.TIMEOUT)

    def _report(self) -> None:
        if self.done:
            return
        self.done = True
        self._timer.cancel()
        self.seconds = self._loop.time() - self.began
        try:
            self.handoff.close()
        finally:
            self._owner.on_job_done(self)
