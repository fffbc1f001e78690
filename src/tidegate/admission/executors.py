"""Executors of waiting calls (event loops and threads), and their stalls.

Theory of operation. A waiting call continues only when its event loop or thread runs. An executor is *stalled* when it
is `PATIENCE` seconds late to take a permit, or to look at its timer. Its calls are then passed over and keep their
places. Any step of one of its calls shows that it runs, and ends the stall. A blocking call on the thread of a running
event loop stalls that loop at once: the loop cannot run before the call returns.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

PATIENCE = 0.25
"""Seconds by which a permit may be taken late, or a timer met late. Raising it makes all others wait longer for a
blocked loop. Lowering it passes over loops that are only busy. Chosen: above steps of 200 ms, which are common
(parsing, tokens)."""

UNKNOWN = object()
"""Event loop of wakers that name none: they share one executor."""


class CallGroup(Protocol):
    """The calls of one executor in one wait queue."""

    def enlist(self) -> None:
        """Put the group into the order of its queue."""
        ...

    def pass_over(self) -> None:
        """Take the group out of the order; its calls keep their places."""
        ...

    def next_head(self) -> Any:
        """Return the call that is next in its queue, None if none is."""
        ...


class Executor:
    """An event loop, or one thread, that runs waiting calls; `thread` is the identifier of its thread.

    `blocks` equals `thread` where a waiting call blocks a running event loop of that thread; else it is 0. `ran_at` is
    when it last showed that it runs, in monotonic seconds. `groups` holds its calls, one group per queue.
    """

    __slots__ = ("__weakref__", "blocks", "groups", "loop", "ran_at", "stalled", "thread")

    def __init__(self, loop: object, thread: int, blocks: int) -> None:
        self.loop = loop
        self.thread = thread
        self.blocks = blocks
        self.stalled = False
        self.ran_at = float("-inf")
        self.groups: set[CallGroup] = set()

    def note_running(self, now: float) -> None:
        """Note that the executor runs: its calls return to the order of their queues."""
        self.ran_at = now
        if self.stalled:
            self.stalled = False
            for group in self.groups:
                group.enlist()

    def stall(self) -> None:
        """Pass over its calls from now on, until it shows that it runs."""
        self.stalled = True
        for group in self.groups:
            group.pass_over()

    def is_late(self, due: float, now: float, running_thread: int) -> bool:
        """Return whether the executor missed an action due at `due`; `running_thread` is known to run now."""
        if self.stalled:
            return True
        return max(due, self.ran_at) + PATIENCE <= now and (not running_thread or self.thread != running_thread)


class ExecutorTable:
    """The executors of one registry; it forgets an event loop when no call of it is left."""

    __slots__ = ("_loops",)

    def __init__(self) -> None:
        self._loops: WeakValueDictionary[int, Executor] = WeakValueDictionary()

    def get(self, waker: Any) -> Executor:
        """Return the executor of a waker: that of its `loop`, or a new one for a thread (`loop` is None)."""
        loop = getattr(waker, "loop", UNKNOWN)
        thread: int = getattr(waker, "thread", 0)
        if loop is None:
            return Executor(None, thread, thread if waker.blocks else 0)
        # The executor keeps its loop alive, so no other loop has this id.
        executor = self._loops.get(id(loop))
        if executor is None:
            executor = self._loops[id(loop)] = Executor(loop, thread, 0)
        executor.thread = thread
        return executor

    def of(self, loop: object) -> Executor | None:
        """Return the executor of an event loop if calls of it wait or were given a permit."""
        return self._loops.get(id(loop))

    def stall_thread(self, thread: int) -> list[Executor]:
        """Stall the event loops of a thread that a call blocks; return them."""
        blocked = [executor for executor in self._loops.values() if executor.thread == thread]
        for executor in blocked:
            executor.stall()
        return blocked

    def clear(self) -> None:
        """Forget all executors: after a fork they run in the parent."""
        self._loops.clear()
