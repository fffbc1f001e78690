"""The two interpreters of an exchange: one blocks a thread, one awaits on asyncio or trio.

An interpreter performs the effects that `tidegate.core.exchange` yields and decides nothing. The wakers below make a
waiting call look again, from any thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidegate.admission import hooks
from tidegate.admission.thread_states import LOOK_SECONDS, is_cancelled, is_exiting, watch_pools
from tidegate.core.exchange import AttemptResult, ExchangeResult, Resume, Send
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY

if TYPE_CHECKING:
    # Its provider tables are loaded when the first call is made.
    from tidegate.admission.call import GovernedCall


def drive(call: GovernedCall, started: tuple[Permit, AttemptResult] | None = None) -> Any:
    """Run a call to its end on this thread, from its beginning or after an attempt that failed; return its result.

    An exception that `send` raises, rather than returns in `AttemptResult.error`, passes through. Whatever cuts the
    call short, also an interrupt of the program, the call gives back what it holds.
    """
    attempt = flow = None
    try:
        permit = call.try_start() if started is None else None
        if started is not None:
            permit, attempt = started
        elif permit is not None:
            attempt = call.send(permit)
            if call.finish_fast(permit, attempt):
                if attempt.error is not None:
                    raise attempt.error
                return attempt.response
        flow = call.exchange(ThreadWaker, permit, attempt)
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Send):
                    resume = Resume(0.0, call.send(effect.permit))
                else:
                    # The call keeps its own deadline, even if no other executor runs.
                    until = call.deadline if effect.until is None else effect.until
                    if hooks.around_wait is None:
                        effect.waker.wait(until, call)
                    else:
                        with hooks.around_wait():
                            effect.waker.wait(until, call)
                    resume = Resume(0.0)
                resume.now = call.now()
                effect = flow.send(resume)
        except StopIteration as stop:
            result: ExchangeResult = stop.value
    except BaseException:
        call.release(flow)
        call.registry.catch_up()
        raise
    call.registry.catch_up()
    return call.finish(result)


async def adrive(call: GovernedCall, started: tuple[Permit, AttemptResult] | None = None) -> Any:
    """Run a call to its end in this task, as `drive`; cancellation closes the exchange and passes through."""
    attempt = flow = waker = None
    try:
        permit = call.try_start() if started is None else None
        if started is not None:
            permit, attempt = started
        elif permit is not None:
            permit.loop = _running_loop()
            attempt = await call.asend(permit)
            if call.finish_fast(permit, attempt):
                if attempt.error is not None:
                    raise attempt.error
                return attempt.response
        flow = call.exchange(async_waker, permit, attempt)
        try:
            effect = next(flow)
            while True:
                if isinstance(effect, Send):
                    effect.permit.loop = _running_loop()
                    resume = Resume(0.0, await call.asend(effect.permit))
                else:
                    until, waker = effect
                    del effect
                    if hooks.around_wait is None:
                        await waker.wait(until)
                    else:
                        with hooks.around_wait():
                            await waker.wait(until)
                    resume = Resume(0.0)
                resume.now = call.now()
                effect = flow.send(resume)
        except StopIteration as stop:
            result: ExchangeResult = stop.value
        finally:
            if waker is not None:
                waker.close()
    except BaseException as error:
        call.release(flow)
        if not isinstance(error, GeneratorExit):
            # A coroutine that is closed may be so by the garbage collector, inside any lock of this thread.
            call.registry.catch_up()
        raise
    call.registry.catch_up()
    return call.finish(result)


class ThreadWaker:
    """Waker of a thread; `blocks` says that the thread has a running event loop, which waits with it.

    `exiting` says that the program was interrupted and only waits for its threads to end, or that it cancelled the work
    of the thread and an SDK alone would have given the call up: the call ends its wait.
    """

    __slots__ = ("_look_at", "_woken", "blocks", "exiting", "thread")

    loop = None

    def __init__(self) -> None:
        # Held until woken. Unlike an event it has no lock inside, so a finalizer may wake its own thread.
        self._woken = threading.Lock()
        self._woken.acquire()
        self.thread = threading.get_ident()
        self.blocks = _on_running_loop()
        self.exiting = False
        self._look_at = time.monotonic() + LOOK_SECONDS
        watch_pools()

    def wake(self) -> bool:
        """Make the thread look again."""
        with suppress(RuntimeError):  # It is woken already.
            self._woken.release()
        return True

    def arm(self, until: float) -> bool:
        """Make the thread look again, so that it chooses its own timeout."""
        return self.wake()

    def wait(self, until: float | None, call: GovernedCall) -> None:
        """Block until woken, until the instant `until`, or until the program is `exiting`."""
        end = INFINITY if until is None else until
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                self.exiting = is_exiting(now) or (is_cancelled() and call.outlasts_sdk())
                self._look_at = now + LOOK_SECONDS
            soon = min(end, self._look_at)
            if self.exiting or self._woken.acquire(timeout=max(0.0, soon - now)) or soon == end:
                return


class AsyncioWaker:
    """Waker of a task of an asyncio loop."""

    __slots__ = ("_future", "_timer", "_woken", "loop", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False

    def wake(self) -> bool:
        return self._call(self._finish)

    def nudge(self) -> bool:
        """Make the task look again, as `wake`, in its loop's next round: a finalizer may run inside the loop's code."""
        try:
            self.loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            return False
        return True

    def arm(self, until: float) -> bool:
        """Set the task's timer, without running the task."""
        return self._call(self._set_timer, until)

    def wait(self, until: float | None) -> Awaitable[None]:
        """Return a future that is done when woken or at `until`.

        A hundred thousand calls may wait, and a coroutine costs more.
        """
        future = self._future = self.loop.create_future()
        if self._woken:
            self._finish()
        elif until is not None:
            self._set_timer(until)
        return future

    def close(self) -> None:
        """Cancel the timer of a wait that was cut short."""
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
    """Waker of a trio task."""

    __slots__ = ("_event", "_trio", "loop", "thread")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self.loop = trio.lowlevel.current_trio_token()
        self.thread = threading.get_ident()
        self._event = trio.Event()

    def wake(self) -> bool:
        """Make the task look again."""
        try:
            self.loop.run_sync_soon(self._finish)
        except self._trio.RunFinishedError:
            return False
        return True

    def arm(self, until: float) -> bool:
        """Make the task look again, so that it chooses its own timeout."""
        return self.wake()

    async def wait(self, until: float | None) -> None:
        """Suspend until woken or `until`."""
        timeout = INFINITY if until is None else max(0.0, until - time.monotonic())
        with self._trio.move_on_after(timeout):
            await self._event.wait()
        self._event = self._trio.Event()

    def close(self) -> None:
        """Do nothing: a wait that was cut short leaves no timer."""

    def _finish(self) -> None:
        self._event.set()


def _on_running_loop() -> bool:
    """Return whether an event loop, of asyncio or trio, runs on this thread."""
    if asyncio._get_running_loop() is not None:
        return True
    # Another thread may be in the middle of importing trio.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_run())


def _running_loop() -> object:
    """Return the event loop that runs this task: trio's token, or asyncio's loop."""
    # As `in_trio`, written out: every call comes here.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    trio = lowlevel is not None and lowlevel.in_trio_task()
    return lowlevel.current_trio_token() if trio else asyncio.get_running_loop()  # type: ignore[union-attr]


def in_trio() -> bool:
    """Return whether a trio task runs here, also on top of an asyncio loop."""
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_task())


def async_waker() -> AsyncioWaker | TrioWaker:
    """Return a waker of the running task: trio's in a trio task (also on top of asyncio), else asyncio's."""
    if in_trio():
        return TrioWaker(sys.modules["trio"])
    return AsyncioWaker(asyncio.get_running_loop())
