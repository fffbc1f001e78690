"""The event loops and threads that run waiting calls, and which of them are known not to run.

Theory of operation. A waiting call goes on only when the event loop or the thread that runs it does. An executor that
does not take a permit, or does not look at an instant at which it had to, for `PATIENCE` seconds is *stalled*: its
calls keep their places and are passed over. Any step of one of its calls is a sign of life and ends that. A blocking
call on the thread of a running event loop stalls that loop at once: nothing of it can move before the call returns.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

PATIENCE = 0.25
"""Seconds by which a permit may be taken late, or a timer met late. Raising it makes all others wait longer for a loop
that is blocked; lowering it passes over loops that are merely busy (steps of 200 ms are common: parsing, tokens)."""

UNKNOWN = object()
"""The event loop of wakers that name none: they share one executor."""


class CallGroup(Protocol):
    """The calls of one executor in one line."""

    def enlist(self) -> None:
        """Puts them into the order of the line."""
        ...

    def pass_over(self) -> None:
        """Takes them out of the order; they keep their places."""
        ...


class Executor:
    """An event loop, or one thread, that runs waiting calls; `thread` is the identifier of its thread.

    `blocks` is that identifier too where the thread has a running event loop, which the call keeps from running; else
    0. `seen_at` is when the last sign of life came, in monotonic seconds. `groups` are its calls, one group a line.
    """

    __slots__ = ("__weakref__", "blocks", "groups", "loop", "seen_at", "stalled", "thread")

    def __init__(self, loop: object, thread: int, blocks: int) -> None:
        self.loop = loop
        self.thread = thread
        self.blocks = blocks
        self.stalled = False
        self.seen_at = float("-inf")
        self.groups: set[CallGroup] = set()

    def seen(self, now: float) -> None:
        """Takes in a sign of life: its calls stand in their lines as before."""
        self.seen_at = now
        if self.stalled:
            self.stalled = False
            for group in self.groups:
                group.enlist()

    def stall(self) -> None:
        """Its calls are passed over from now on, until a sign of life."""
        self.stalled = True
        for group in self.groups:
            group.pass_over()

    def late(self, due: float, now: float, here: int) -> bool:
        """Return whether something that was `due` is too late; `here` is a thread that is known to run now."""
        if self.stalled:
            return True
        return max(due, self.seen_at) + PATIENCE <= now and (not here or self.thread != here)


class ExecutorTable:
    """The executors of one registry; an event loop is forgotten when no call of it is left."""

    __slots__ = ("_loops",)

    def __init__(self) -> None:
        self._loops: WeakValueDictionary[int, Executor] = WeakValueDictionary()

    def get(self, waker: Any) -> Executor:
        """Return the executor of a waker: that of its `loop`, or a new one for a thread (`loop` is None)."""
        loop = getattr(waker, "loop", UNKNOWN)
        thread: int = getattr(waker, "thread", 0)
        if loop is None:
            return Executor(None, thread, thread if waker.blocks else 0)
        # The executor keeps its loop alive, so the number is no other loop's.
        executor = self._loops.get(id(loop))
        if executor is None:
            executor = self._loops[id(loop)] = Executor(loop, thread, 0)
        executor.thread = thread
        return executor

    def of(self, loop: object) -> Executor | None:
        """Return the executor of an event loop, where calls of it wait or were given a permit."""
        return self._loops.get(id(loop))

    def stall_thread(self, thread: int) -> list[Executor]:
        """Stall the event loops of a thread that a call blocks; return them."""
        blocked = [executor for executor in self._loops.values() if executor.thread == thread]
        for executor in blocked:
            executor.stall()
        return blocked

    def clear(self) -> None:
        """Forget all: after a fork they run in the parent."""
        self._loops.clear()
