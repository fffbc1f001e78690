"""Callbacks around a fork: every holder of a lock is called before it, and on both sides after it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    """An object with a lock and with state that belongs to one process."""

    def before_fork(self) -> None:
        """Take the lock."""
        ...

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        ...

    def after_fork_in_child(self) -> None:
        """Make a new lock, and forget the state that belongs to the parent."""
        ...


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def registered() -> list[ForkAware]:
    """Return the objects that are called at a fork."""
    return list(_registered)


def register(one: ForkAware) -> None:
    """Call the methods of `one` before and after each later fork, in parent and child, until it is collected."""
    _registered.add(one)


_first: list[Callable[[], None]] = []


def call_first(callback: Callable[[], None]) -> None:
    """Call `callback` in the child of each later fork, before the registered objects forget their state."""
    _first.append(callback)


def _before() -> None:
    for one in list(_registered):
        one.before_fork()


def _after_in_parent() -> None:
    for one in list(_registered):
        one.after_fork_in_parent()


def _after_in_child() -> None:
    for callback in _first:
        callback()
    for one in list(_registered):
        one.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
