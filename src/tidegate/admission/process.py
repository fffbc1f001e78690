"""Facts of this process: free memory and file descriptors, and the holders of locks that a fork concerns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"), Path("/sys/fs/cgroup/memory.stat")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)
"""Files with the limit and the use of a container's memory: cgroup v2, then v1."""

DESCRIPTORS = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Directories with one entry for each open descriptor (Linux, then macOS)."""

MEASURE_EVERY = 1.0
"""Seconds between two measurements of the machine, at least, and between two raises of a bound. Raising it slows the
rise of a bound; lowering it costs up to a millisecond a time. Chosen: a doubling a second reaches any real limit."""

SPARE_DESCRIPTORS = 64
"""Descriptors that stay free for files, databases and the user's code."""

CALL_BYTES = 256 * 1024
"""Memory that one more call or function may take, without its row: its objects, connection and thread. An openai
chat call in a thread takes some 200 kB. Raising it keeps more memory free."""


class FreeResources(NamedTuple):
    """Free `memory` in bytes, and the file `descriptors` that may still be opened; None if unknown."""

    memory: int | None
    descriptors: int | None

    @property
    def calls(self) -> tuple[int | None, str]:
        """Return how many more calls these carry (None: unknown), and the name of the resource that bounds them.

        Calls may take half of the free memory.
        """
        by_memory = self.memory // (2 * CALL_BYTES) if self.memory is not None else None
        by_descriptors = max(0, self.descriptors - SPARE_DESCRIPTORS) if self.descriptors is not None else None
        if by_memory is None or (by_descriptors is not None and by_descriptors < by_memory):
            return by_descriptors, "descriptors"
        return by_memory, "memory"


def measure() -> FreeResources:
    """Return what is free now; this takes some hundred microseconds."""
    return FreeResources(_memory(), _descriptors())


def _memory() -> int | None:
    found = [free for free in (_system(), *(_group(*files) for files in CGROUPS)) if free is not None]
    return min(found) if found else None


def _system() -> int | None:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        # macOS reports only what is installed: a quarter of it counts as free.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (AttributeError, OSError, ValueError):
        return None


def _group(limit: Path, used: Path, stat: Path) -> int | None:
    try:
        most, now = int(limit.read_text()), int(used.read_text())
    except (OSError, ValueError):
        # There is no such group, or its limit is "max".
        return None
    try:
        fields = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
        cached = int(fields.get("inactive_file", 0))
    except (OSError, ValueError):
        cached = 0
    return max(0, most - now + cached)


def _descriptors() -> int | None:
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    for folder in DESCRIPTORS:
        try:
            return max(0, soft - len(os.listdir(folder)))  # noqa: PTH208
        except OSError:
            continue
    return None


class ForkAware(Protocol):
    """An object with a lock and with state that belongs to one process."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Make a new lock, and forget the state that belongs to the parent."""
        ...


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def registered() -> list[ForkAware]:
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
