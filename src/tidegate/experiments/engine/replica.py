"""Name of a replica, from which another one on the same machine detects that its process has ended."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

from tidegate.experiments.storage import JSON, ExperimentRow, LoggedLine, Status

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""File with the identifier of this boot of the host (Linux)."""
NAMESPACE = Path("/proc/self/ns/pid")
"""Link that distinguishes two containers of one host, in which process numbers differ in meaning (Linux)."""

HEARTBEAT_SECONDS = 15.0
"""Seconds between two renewals of a claim. Chosen: a claim outlives three renewals that fail."""

STALE_SECONDS = 60.0
"""Seconds without a renewal after which a claim is anybody's. Chosen: four heartbeats."""


def replica_name() -> str:
    """Return a unique name: the machine, the process, and random digits."""
    return f"{_here()}-{os.getpid()}-{secrets.token_hex(4)}"


def replica_tag(replica: str) -> str:
    """Return the end of the command by which a run names its replica to other processes of this user."""
    return f"(replica {replica})"


def is_dead(replica: str | None) -> bool:
    """Return whether a replica ran on this machine and its process has ended; False if that is unknown.

    A new start need not wait until such a claim is stale: it resumes at once after a `kill -9`.
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


def actor() -> dict[str, JSON]:
    """Return the user, the process and the host for an experiment's log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = ""
    return {**process(), "user": user} if user else process()


def process() -> dict[str, JSON]:
    return {"pid": os.getpid(), "host": socket.gethostname()}


def owner(row: ExperimentRow, log: Iterable[LoggedLine]) -> str:
    """Return in words which process runs an experiment and since when, as far as its log and its name state it."""
    place, _, rest = (row.claimed_by or "").partition("-")
    number = rest.partition("-")[0]
    begun = _last(log, "started", row.epoch)
    told = begun.detail if begun is not None else {}
    pid, host = told.get("pid") or (number if number.isdecimal() else None), told.get("host")
    if pid is None:
        return f"replica {row.claimed_by or 'unknown'}"
    here = f"this machine{f' ({host})' if host else ''}" if place == _here() else host or "another machine"
    return f"process {pid} on {here}" + (f", since {_time(begun)}" if begun is not None else "")


def stopper(row: ExperimentRow, log: Iterable[LoggedLine]) -> str:
    """Return in words the user who stopped an experiment, and when; empty if it is not stopped or the log lacks it."""
    line = _last(log, "stopped_by_user", row.epoch) if row.status is Status.STOPPED else None
    if line is None:
        return ""
    user, pid, host = (line.detail.get(name) for name in ("user", "pid", "host"))
    who = f"{user} (process {pid} on {host})" if user and pid else f"process {pid} on {host}" if pid else "a user"
    return f"{who} at {_time(line)}"


def _last(log: Iterable[LoggedLine], kind: str, epoch: int) -> LoggedLine | None:
    found = [each for each in log if each.detail.get("type") == kind and each.detail.get("epoch") == epoch]
    return found[-1] if found else None


def _time(line: LoggedLine) -> str:
    return f"{line.at.astimezone():%Y-%m-%d %H:%M:%S}"


@cache
def _here() -> str:
    facts = [socket.gethostname()]
    for path, read in ((BOOT, Path.read_text), (NAMESPACE, os.readlink)):
        try:
            facts.append(str(read(path)))
        except OSError:
            facts.append("")
    return blake2b("\0".join(facts).encode(), digest_size=4).hexdigest()


def state_text(row: ExperimentRow) -> str:
    """Return the state of an experiment for people: one whose process has ended does not run."""
    return "INTERRUPTED" if row.status is Status.RUNNING and is_dead(row.claimed_by) else row.status.value
