"""Execution of one piece of work: its function, timeout, cancellation, permit and single report at the end.

Theory of operation. A runner and a pool start a function in a slot, with a permit for the key that it is expected to
ask first. `KeyUsage` learns that key from the calls before. While the function waits in a key's queue, it lends its
slot, and its timeout is suspended.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import InitVar, dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tidegate.admission.handoff import PermitHandoff
from tidegate.admission.key_table import KeyTable
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cost, Key, Silence
from tidegate.pool.failure_class import TIMEOUT, UNHEARD, FailureClass, classify
from tidegate.pool.threads import exit_child


@dataclass(slots=True)
class KeyUsage:
    """Key and cost of the latest first request of a stage's function.

    `known` without a `key` means that a call of the function ended without asking any key.
    """

    known: bool = False
    key: Key | None = None
    cost: Cost | None = None

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


def implementation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the routine that a call of `function` runs: that of its class for an object with `__call__`."""
    plain = inspect.isroutine(function) or isinstance(function, partial)
    return function if plain else type(function).__call__


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
        super().note_use(key, cost)
        if self.first is None:
            self.first = key
            if key != self._key:
                self.close()
            self._on_key_used(key, cost)

    def note_wait_started(self, call: object, now: float) -> None:
        super().note_wait_started(call, now)
        self._on_wait_changed()
        self._update_slot()

    def note_wait_ended(self, call: object, now: float) -> None:
        was_waiting = self.is_waiting
        super().note_wait_ended(call, now)
        if was_waiting:
            self._on_wait_changed()
            self._update_slot()

    def note_sending(self, permit: Permit) -> None:
        super().note_sending(permit)
        self._update_slot()

    def note_settled(self, permit: Permit) -> None:
        super().note_settled(permit)
        self._update_slot()

    def _update_slot(self) -> None:
        # Calls of one piece of work may run in several threads: the owner is told of the last state under the lock.
        with self._lock:
            calling = self.calling
            if calling is not self._in_call:
                self._in_call = calling
                self._calls(calling)


class ExecutionOwner(Protocol):
    """Owner of an execution.

    Its methods run in the event loop's thread, except `on_key_used`, `in_call` and `in_loop`.
    """

    def on_key_used(self, function: Any, key: Key, cost: Cost) -> None:
        """Accept the first key that the function asks for; called in any thread."""
        ...

    def in_call(self, job: Any, calling: bool) -> None:
        """Count a function that is in a call now, or in none any more; called in any thread."""
        ...

    def in_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Schedule a call in the event loop; called in any thread, even after the loop has closed."""
        ...

    def on_slot_lent(self, job: Any) -> None:
        """Handle a change of `job.slot_lent`: the function begins to wait for capacity inside a call, or continues."""
        ...

    def on_job_done(self, job: Any) -> None: ...


class Work(Protocol):
    """Unit of work: `size` characters in memory; `slow` if a call of it took all its time before."""

    slow: bool
    size: int


class WorkFunction(Protocol):
    """Function of units of work; `timeout` is in seconds, without the waits inside its calls (infinity: none)."""

    timeout: float

    @property
    def invoke(self) -> Callable[[Any], Awaitable[Any]]:
        """Return the callable that runs the function for one unit of work."""
        ...


WorkT = TypeVar("WorkT", bound=Work)
FunctionT = TypeVar("FunctionT", bound=WorkFunction)


CANCEL_GRACE_SECONDS = 5.0
"""Seconds that a cancelled coroutine may take to end before its slot is free. Raising it holds the slots of functions
that ignore it for longer. Chosen: a function that closes its connections is done by then."""


@dataclass(slots=True, eq=False)
class Execution(Generic[WorkT, FunctionT]):
    """One execution of `stage`, the function of a unit of work, for `item`.

    It reports to its owner exactly once, whether or not its function ends. At the end it has the function's `value` or
    `error`; `cancel_reason` is the reason of a cancellation. With `in_outage` its time was over while it waited for a
    provider that answers nothing. A function that ignores its cancellation is abandoned after `CANCEL_GRACE_SECONDS`:
    its slot is free, and its result dropped. While the function waits in a key's queue, the job `slot_lent` its slot. A
    `FunctionLimit` keeps `at_work_since`, `beside` and `over`. It `began` at that second of the loop. Its function
    starts when `ready` is done (None: at once).
    """

    item: WorkT
    stage: FunctionT
    _owner: ExecutionOwner
    queues: InitVar[KeyTable]
    permit: InitVar[Permit | None]
    handoff: ObservedHandoff = field(init=False)
    probe: bool = field(init=False)
    size: int = field(init=False)
    recalled: bool = False
    value: Any = None
    error: BaseException | None = None
    cancel_reason: CancelReason | None = None
    done: bool = False
    slot_lent: bool = False
    in_outage: bool = False
    seconds: float = 0.0
    ready: asyncio.Future[None] | None = None
    at_work_since: float | None = None
    beside: int = 0
    over: bool = False
    task: asyncio.Task[None] | None = None
    began: float = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _process: int = field(init=False)
    _suspended: bool = False
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self, queues: KeyTable, permit: Permit | None) -> None:
        self.handoff = ObservedHandoff(queues, permit, self._on_key_used, self._on_wait_changed, self._in_call)
        self.probe = permit is not None and permit.probe
        self.size = self.item.size

    def start(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Start the function in a separate task, which runs in `context`."""
        self._loop = loop
        self._process = os.getpid()
        self.began = loop.time()
        if self.stage.timeout < INFINITY:
            self._timer = loop.call_later(self.stage.timeout, self._check_timeout)
        self.task = loop.create_task(self._run(), context=context)

    def recall(self) -> None:
        """End the waits of its calls: the function receives the present refusal, and its item is to be parked."""
        if not self.recalled:
            self.recalled = True
            self.handoff.recall()

    def failure_class(self) -> FailureClass:
        """Return the class of its end."""
        if self.cancel_reason is not None:
            return UNHEARD if self.in_outage else TIMEOUT
        return classify(self.error, self.handoff.outcome, self.handoff.refused, self.probe or self.handoff.unserved)

    def forget(self) -> None:
        """Drop the answer and the error (megabytes, frames), because job and handoff reference each other."""
        self.value = self.error = None

    def cancel(self, cancel_reason: CancelReason) -> None:
        """Cancel the function; abandon it if it ignores the cancellation."""
        if self.cancel_reason is None and not self.done and self.task is not None:
            self.cancel_reason = cancel_reason
            self.task.cancel()
            # A task that is cancelled before its first step never runs.
            self.task.add_done_callback(lambda _: self._report())
            self._stop_timer()
            self._timer = self._loop.call_later(CANCEL_GRACE_SECONDS, self._report)

    async def _run(self) -> None:
        try:
            if self.ready is not None:
                await self.ready
            with self.handoff:
                try:
                    self.value = await self.stage.invoke(self.item)
                except BaseException as error:
                    if os.getpid() != self._process:
                        exit_child(error)
                    raise
                if os.getpid() != self._process:
                    exit_child(None)
        except BaseException as error:
            # A KeyboardInterrupt raised here would end the loop; the owner stops the run instead. A cancellation that
            # tidegate did not request is a failure, as is an exit that the function requests.
            self.error = error
        else:
            # The function ended before its cancellation reached it: the answer is valid and was paid for.
            self.cancel_reason = None
        self._report()

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
        self._stop_timer()
        self.seconds = self._loop.time() - self.began
        try:
            self.handoff.close()
        finally:
            self._owner.on_job_done(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
