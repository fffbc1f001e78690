"""Identity of the monotonic clock of this process: members of one log compare instants of it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from pathlib import Path

AGREEMENT = 1.0
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
    return abs(time.monotonic() - time.clock_gettime(time.CLOCK_MONOTONIC)) > AGREEMENT
