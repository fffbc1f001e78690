"""The callbacks around a fork: every holder of a lock is told before it, and on both sides after it."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Whoever has a lock, and things that belong to one process."""

    def before_fork(self) -> None:
        """Takes the lock."""
        ...

    def after_fork_in_parent(self) -> None:
        """Gives the lock back."""
        ...

    def after_fork_in_child(self) -> None:
        """Makes a new lock, and forgets what is the parent's."""
        ...


_followed: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def followed() -> list[ForkAware]:
    """Whoever is told of forks now."""
    return list(_followed)


def follow(one: ForkAware) -> None:
    """Tells `one` of every fork, for as long as it lives."""
    _followed.add(one)


def _before() -> None:
    for one in list(_followed):
        one.before_fork()


def _after_in_parent() -> None:
    for one in list(_followed):
        one.after_fork_in_parent()


def _after_in_child() -> None:
    for one in list(_followed):
        one.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
