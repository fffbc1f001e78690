"""The two interpreters of an exchange: one blocks a thread, one awaits on asyncio or trio.

An interpreter performs the effects that `tidegate.core.exchange` yields and decides nothing. The wakers below are how
a waiting call is told to look again from any thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tidegate.core.exchange import AttemptResult, ExchangeResult, Flow, Resume, Send
from tidegate.core.limiter_state import Permit

MAX_TIMEOUT = threading.TIMEOUT_MAX


class DrivenCall(Protocol):
    """One call at a key; see `tidegate.admission.call.DrivenCall`."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def begin(self) -> Permit | None:
        """The permit, where the call may go at once."""
        ...

    def finish_fast(self, permit: Permit, sent: AttemptResult) -> bool:
        """Settles an attempt that was simply answered: its response is what the caller gets."""
        ...

    def abandon(self, permit: Permit) -> None:
        """Gives the slot back of an attempt that was cut short."""
        ...

    def exchange(self, make_waker: Callable[[], Any], permit: Permit | None, sent: AttemptResult | None) -> Flow:
        """The dialogue, from the beginning or from an attempt that came to `sent`."""
        ...

    def finish(self, ended: ExchangeResult) -> Any:
        """Return what the caller of a longer dialogue gets, returned or raised."""
        ...


class BlockingCall(DrivenCall, Protocol):
    """A call that is sent by blocking this thread.

    An exception of `send`, other than in `AttemptResult.error`, passes through.
    """

    @property
    def deadline(self) -> float:
        """Until when it waits, in monotonic seconds."""
        ...

    def send(self, permit: Permit) -> AttemptResult:
        """Performs one attempt."""
        ...


class AsyncCall(DrivenCall, Protocol):
    """A call that is sent by awaiting; what `asend` raises, other than as `AttemptResult.error`, goes through."""

    def asend(self, permit: Permit) -> Awaitable[AttemptResult]:
        """Performs one attempt."""
        ...


def drive(turn: BlockingCall) -> Any:
    """Runs a call to its ending on this thread; returns what it finishes with."""
    sent = None
    permit = turn.begin()
    if permit is not None:
        try:
            sent = turn.send(permit)
        except BaseException:
            turn.abandon(permit)
            raise
        if turn.finish_fast(permit, sent):
            if sent.error is not None:
                raise sent.error
            return sent.response
    flow = turn.exchange(ThreadWaker, permit, sent)
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Send):
                resume = Resume(0.0, turn.send(effect.permit))
            else:
                # Its own deadline is its own to keep, whoever else does not run.
                effect.waker.wait(turn.deadline if effect.until is None else effect.until)
                resume = Resume(0.0)
            resume.now = turn.now()
            effect = flow.send(resume)
    except StopIteration as stop:
        ended: ExchangeResult = stop.value
    finally:
        flow.close()
    return turn.finish(ended)


async def adrive(turn: AsyncCall) -> Any:
    """Runs a call to its ending in this task; cancellation closes the exchange and goes through."""
    sent = None
    permit = turn.begin()
    if permit is not None:
        permit.loop = _running_loop()
        try:
            sent = await turn.asend(permit)
        except BaseException:
            turn.abandon(permit)
            raise
        if turn.finish_fast(permit, sent):
            if sent.error is not None:
                raise sent.error
            return sent.response
    flow, waker = turn.exchange(async_waker, permit, sent), None
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Send):
                effect.permit.loop = _running_loop()
                resume = Resume(0.0, await turn.asend(effect.permit))
            else:
                until, waker = effect
                del effect
                await waker.wait(until)
                resume = Resume(0.0)
            resume.now = turn.now()
            effect = flow.send(resume)
    except StopIteration as stop:
        ended: ExchangeResult = stop.value
    finally:
        flow.close()
        if waker is not None:
            waker.close()
    return turn.finish(ended)


class ThreadWaker:
    """Wakes a thread; `blocks` says that the thread has a running event loop, which waits with it."""

    __slots__ = ("_event", "blocks", "thread")

    loop = None

    def __init__(self) -> None:
        self._event = threading.Event()
        self.thread = threading.get_ident()
        self.blocks = _on_running_loop()

    def wake(self) -> bool:
        """Makes the thread look again."""
        self._event.set()
        return True

    def arm(self, until: float) -> bool:
        """Makes the thread look again, and so choose its own timeout."""
        return self.wake()

    def wait(self, until: float | None) -> None:
        """Blocks until woken or `until`."""
        timeout = None if until is None else min(MAX_TIMEOUT, max(0.0, until - time.monotonic()))
        self._event.wait(timeout)
        self._event.clear()


class AsyncioWaker:
    """Wakes a task of an asyncio loop."""

    __slots__ = ("_future", "_timer", "_woken", "loop", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def wake(self) -> bool:
        """Makes the task look again."""
        return self._call(self._finish)

    def arm(self, until: float) -> bool:
        """Sets the task's timer, without running the task."""
        return self._call(self._set_timer, until)

    def wait(self, until: float | None) -> Awaitable[None]:
        """Return a future, done when woken or at `until`. (A hundred thousand may wait: a coroutine costs more.)"""
        future = self._future = self.loop.create_future()
        if self._woken:
            self._finish()
        elif until is not None:
            self._set_timer(until)
        return future

    def close(self) -> None:
        """Cancels the timer of a wait that was cut short."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call(self, function: Callable[..., None], *args: Any) -> bool:
        if threading.get_ident() == self.thread and not self.loop.is_closed():
            function(*args)
            return True
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def _finish(self) -> None:
        future, self._future = self._future, None
        self._woken = future is None
        self.close()
        if future is not None and not future.done():
            future.set_result(None)

    def _set_timer(self, until: float) -> None:
        if self._future is None:
            self._woken = True
            return
        self.close()
        self._timer = self.loop.call_later(max(0.0, until - time.monotonic()), self._finish)


class TrioWaker:
    """Wakes a trio task."""

    __slots__ = ("_event", "_trio", "loop", "thread")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self.loop = trio.lowlevel.current_trio_token()
        self.thread = threading.get_ident()
        self._event = trio.Event()

    def wake(self) -> bool:
        """Makes the task look again."""
        try:
            self.loop.run_sync_soon(self._finish)
        except self._trio.RunFinishedError:
            return False
        return True

    def arm(self, until: float) -> bool:
        """Makes the task look again, and so choose its own timeout."""
        return self.wake()

    async def wait(self, until: float | None) -> None:
        """Suspends until woken or `until`."""
        timeout = float("inf") if until is None else max(0.0, until - time.monotonic())
        with self._trio.move_on_after(timeout):
            await self._event.wait()
        self._event = self._trio.Event()

    def close(self) -> None:
        """Nothing is left of a wait that was cut short."""

    def _finish(self) -> None:
        self._event.set()


def _on_running_loop() -> bool:
    """Return whether an event loop runs on this thread, of asyncio or trio."""
    if asyncio._get_running_loop() is not None:
        return True
    # Another thread may be importing it right now.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_run())


def _running_loop() -> object:
    """Return the event loop that runs this task: trio's token, or asyncio's loop."""
    return sys.modules["trio"].lowlevel.current_trio_token() if in_trio() else asyncio.get_running_loop()


def in_trio() -> bool:
    """Return whether a trio task runs here, also on top of an asyncio loop."""
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_task())


def async_waker() -> AsyncioWaker | TrioWaker:
    """The waker of the running task: trio's where a trio task runs (also on top of an asyncio loop), else asyncio's."""
    if in_trio():
        return TrioWaker(sys.modules["trio"])
    return AsyncioWaker(asyncio.get_running_loop())
