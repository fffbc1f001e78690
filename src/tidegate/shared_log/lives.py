"""Locked files that say which processes live, and the identity of a process's clock.

A file that is missing or not locked belongs to a dead process. Members of one log compare instants of their clocks.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import time
from pathlib import Path

from tidegate.shared_file import close_and_find_held, lock
from tidegate.shared_log.carrier import Unshared
from tidegate.shared_log.folder import PrivateFolder

CLOCK_AGREEMENT_SECONDS = 1.0
"""Seconds by which `time.monotonic` may differ from the kernel's clock: far above two readings."""


@functools.cache
def clock_identity() -> int:
    """Return a number that differs between boots of a machine and between time namespaces."""
    facts = []
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        facts.append(str(Path("/proc/self/ns/time").readlink()))
    return int.from_bytes(hashlib.blake2b("".join(facts).encode(), digest_size=7).digest(), "little")


def boot_seconds() -> float:
    """Return the seconds since boot, with the time for which the machine was suspended where that is known.

    The wall clock advances with it, so their difference identifies a process whose clock was replaced.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def clock_replaced() -> bool:
    """Return whether `time.monotonic` is not the clock of the kernel: a test has replaced it."""
    if not hasattr(time, "CLOCK_MONOTONIC"):
        return False
    return abs(time.monotonic() - time.clock_gettime(time.CLOCK_MONOTONIC)) > CLOCK_AGREEMENT_SECONDS


NAME_ATTEMPTS = 16
"""Names tried for a life file."""


class Lives:
    """The subfolder `lives`, and the file that this process holds locked in it."""

    def __init__(self, folder: PrivateFolder) -> None:
        self._folder = folder.subfolder("lives")
        self._descriptor = -1
        self.number = 0

    def begin(self) -> int:
        """Return the number of this process, with its file locked; a file that was removed is replaced."""
        if self._descriptor >= 0 and self._folder.holds(_name(self.number), self._descriptor):
            return self.number
        self.end()
        for _ in range(NAME_ATTEMPTS):
            number = secrets.randbits(63) | 1
            name = _name(number)
            descriptor = self._folder.open_file(name, os.O_CREAT, os.O_EXCL)
            if lock(descriptor) and self._folder.holds(name, descriptor):
                self._descriptor, self.number = descriptor, number
                return number
            os.close(descriptor)
        raise Unshared("no file under lives can be locked")

    def holds(self, number: int) -> bool:
        """Return whether the process with this number lives."""
        if number == self.number:
            return True
        try:
            descriptor = self._folder.open_file(_name(number))
        except FileNotFoundError:
            return False
        except OSError:
            # Too many open files, for example: a member that lives must not lose its attempts for that.
            return True
        return close_and_find_held(descriptor)

    def after_fork(self) -> None:
        """Close the inherited file, which would show the parent alive as long as this child lives."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.number = -1, 0

    def end(self) -> None:
        """Remove the own file: this process is at no log any more."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if self._folder.holds(_name(self.number), self._descriptor):
                    self._folder.remove(_name(self.number))
            os.close(self._descriptor)
        self._descriptor, self.number = -1, 0

    def clean(self) -> None:
        """Remove the files of dead processes."""
        for entry in self._folder.files():
            with contextlib.suppress(OSError, Unshared):
                descriptor = self._folder.open_file(entry.name)
                try:
                    if lock(descriptor) and self._folder.holds(entry.name, descriptor):
                        self._folder.remove(entry.name)
                finally:
                    os.close(descriptor)

    def close(self) -> None:
        self.end()
        self._folder.close()


def _name(number: int) -> str:
    return f"{number:016x}"
