"""What a replica is called: by that, another one on the same machine sees whether its process is gone."""

from __future__ import annotations

import os
import secrets
import socket
from functools import cache
from hashlib import blake2b
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")
"""What tells two containers of one host apart, where process numbers mean something else in each (Linux)."""


def named() -> str:
    """A name that nobody else has: where it runs, its process, and some chance."""
    return f"{_here()}-{os.getpid()}-{secrets.token_hex(4)}"


def gone(replica: str | None) -> bool:
    """Whether a replica ran on this machine and its process has ended; False where that cannot be said.

    Its claim need not be waited for then: a `kill -9` is resumed at once.
    """
    place, _, rest = (replica or "").partition("-")
    number = rest.partition("-")[0]
    if os.name != "posix" or place != _here() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@cache
def _here() -> str:
    facts = [socket.gethostname()]
    for path, read in ((BOOT, Path.read_text), (NAMESPACE, os.readlink)):
        try:
            facts.append(str(read(path)))
        except OSError:
            facts.append("")
    return blake2b("\0".join(facts).encode(), digest_size=4).hexdigest()
