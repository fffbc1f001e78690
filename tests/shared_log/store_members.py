"""Members of a log at a server: steps until something holds, since the server answers when it does."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.shared_log.members import ends
from tidegate.shared_log.carrier import ALONE, Head, Record, Step
from tidegate.shared_log.store_carrier import StoreCarrier

PATIENCE = 300.0


class StorePeer:
    """One process at one log, with all that it was given, as in `tests.shared_log.members`."""

    def __init__(self, carrier: StoreCarrier, name: bytes) -> None:
        self.carrier = carrier
        log = carrier.join(name, time.monotonic())
        assert log is not None
        self.log = log
        self.state: list[bytes] = []
        self.gone: list[int] = []
        self.last: Step | None = None
        self.returned = 0

    def step(self, *said: bytes, head: Head | None = None) -> Step | None:
        now = time.monotonic()
        step = self.log.enter(now)
        self.last = step
        if step is None:
            return None
        self.returned += step.returned
        self.state += [entry.payload for entry in step.entries if entry.payload]
        self.gone += ends(step)
        self.state += said
        self.log.leave([Record(now, payload) for payload in said], head)
        return step

    def say(self, *said: bytes) -> Step:
        until(lambda: self.step() is not None, "a step", self)
        step = self.step(*said)
        assert step is not None
        return step


def until(holds: Callable[[], object], what: str, *peers: StorePeer) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        seen = [(peer.state, peer.returned, peer.last) for peer in peers]
        assert time.monotonic() < deadline, f"waited in vain for {what}: {seen}"
        for peer in peers:
            peer.step()
        time.sleep(0.002)


def together(*peers: StorePeer) -> None:
    until(
        lambda: all(peer.last is not None and peer.last.members == len(peers) and not peer.last.away for peer in peers),
        f"{len(peers)} members",
        *peers,
    )


def is_alone(peer: StorePeer) -> bool:
    return peer.last is ALONE
