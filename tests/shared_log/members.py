"""Members of a host's log for tests: two carriers in one process are two processes to each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidegate.shared_file import VERSION
from tidegate.shared_log.carrier import ALONE, Head, Record, Step
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_log import HostLog

NAME = b"some key"
START = time.monotonic()
"""Instants of tests are this process's own clock: an entry of the far future would be refused."""


class Peer:
    """One process at one log, with all that it was given. `state` is everything that it heard and said, in order."""

    def __init__(self, folder: Path, name: bytes = NAME, now: float = START) -> None:
        self.carrier = HostCarrier.at(folder)
        log = self.carrier.join(name, now)
        assert log is not None, self.carrier.reason
        self.log: HostLog = log
        self.state: list[bytes] = []
        self.gone: list[int] = []
        self.instants: list[float] = []

    def enter(self, now: float = START) -> Step | None:
        """Begins a step, and replays what the others did."""
        step = self.log.enter(now)
        if step is not None:
            self.state += [entry.payload for entry in step.entries if entry.payload]
            self.gone += ends(step)
            self.instants += [entry.at for entry in step.entries]
        return step

    def step(self, *said: bytes, now: float = START, head: Head | None = None) -> Step | None:
        """One whole step."""
        step = self.enter(now)
        if step is not None:
            self.state += said
            self.log.leave([Record(now, payload) for payload in said], head)
        return step

    def die(self) -> None:
        """Ends as a process does at kill -9: the kernel closes its files, and nothing is said."""
        self.log.after_fork()
        self.carrier.after_fork()


@contextmanager
def peers(folder: Path, count: int) -> Iterator[list[Peer]]:
    """So many processes at one log, each of which has heard of all others."""
    found: list[Peer] = []
    try:
        for _ in range(count):
            found.append(Peer(folder / "log"))
            for each in found:
                each.step()
        yield found
    finally:
        for each in found:
            each.carrier.close()


def log_file(folder: Path, name: bytes = NAME) -> Path:
    """The file of a log."""
    return folder / "log" / f"{name.hex()}.{VERSION}"


def shared(step: Step | None) -> Step:
    """The step, which is of a log with others."""
    assert step is not None
    assert step is not ALONE
    return step


def ends(step: Step) -> list[int]:
    """The members of which a step says that they have ended."""
    return [entry.member for entry in step.entries if not entry.payload]


def payloads(step: Step | None) -> Sequence[bytes]:
    return [entry.payload for entry in shared(step).entries]
