"""What the registry takes by itself, without HTTP and without tasks."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from bench.common import MICRO
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core import concurrency_limit
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key, Kind, Outcome, QuotaReading
from tidegate.settings import Settings
from tidegate.shared_log.host import HostCarrier

KEY = Key("openai", "https://api.openai.com", "0", "m")
SLOTS = 64
BLOCK = 500
ANSWERED = Outcome(Kind.OK, status=200)
QUOTAS = tuple(QuotaReading(unit, unit, "continuous", 1e9, 1e9 - 1, 0.0, 60.0) for unit in ("requests", "tokens"))
TOLD = ANSWERED._replace(readings=QUOTAS)

ROWS = {
    "no headers": (ANSWERED, ANSWERED),
    "two quotas": (TOLD, ANSWERED),
    "two quotas, every answer read": (TOLD, TOLD),
}
"""What an answer that is to be read comes to, and what any other: ample quota makes few worth reading."""


def rate(seconds: float, told: Outcome, untold: Outcome) -> float:
    """`try_admit` and `settle` together, per second of CPU time in one thread."""
    registry = RateLimitRegistry()
    began = time.process_time()
    done = 0
    while (spent := time.process_time() - began) < seconds:
        block(registry, KEY, told, untold)
        done += BLOCK
    return done / spent


def block(registry: RateLimitRegistry, key: Key, told: Outcome, untold: Outcome) -> None:
    """Make `BLOCK` calls one after the other; an answer that is to be read comes to `told`, any other to `untold`."""
    cost = Cost(tokens=100.0)
    for _ in range(BLOCK):
        permit = registry.try_admit(key, cost)
        if not isinstance(permit, Permit):
            raise RuntimeError(f"an unlimited key said {permit}")
        registry.settle(permit, told if permit.informs else untold)


def alone(repetitions: int) -> list[float]:
    """Return the CPU microseconds a call that sharing adds where no other process has the key, block after block.

    The key is this process's own: another run at the same time would share it.
    """
    key = KEY._replace(credential=f"{os.getpid():x}")
    sides = [RateLimitRegistry(Settings(share=share)) for share in ("off", "auto")]
    found = []
    for number in range(repetitions + 1):
        spent = []
        for registry in sides:
            began = time.process_time()
            block(registry, key, TOLD, ANSWERED)
            spent.append((time.process_time() - began) / BLOCK * MICRO)
        if number:
            found.append(spent[1] - spent[0])
    return found


def shared(repetitions: int) -> tuple[list[float], list[float]]:
    """Return the CPU microseconds that sharing adds to an own call, and those of a call of another process.

    Two registries of one process are two processes to each other. One makes a block of calls; then the other one makes
    a call, before which it replays the block. The cost of that own call is taken off.
    """
    key = KEY._replace(credential="shared")
    own, foreign = [], []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        unshared = RateLimitRegistry(Settings(share="off"))
        carriers = [HostCarrier.at(Path(folder) / "logs") for _ in range(2)]
        speaker, listener = (RateLimitRegistry(carrier=carrier) for carrier in carriers)
        for registry in (speaker, listener, speaker, listener):
            _call(registry, key)
        members = speaker.snapshot().keys[key].members
        if members != 2:
            raise RuntimeError(f"{members} members share the key, not 2")
        for number in range(repetitions + 1):
            plain = _spent(lambda: block(unshared, key, TOLD, ANSWERED))
            said = _spent(lambda: block(speaker, key, TOLD, ANSWERED))
            heard = _spent(lambda: _call(listener, key))
            # The first step replays what the other one said; the next one has nothing to replay.
            single = _spent(lambda: _call(listener, key))
            _call(speaker, key)
            if number:
                own.append((said - plain) / BLOCK)
                foreign.append((heard - single) / BLOCK)
        for carrier in carriers:
            carrier.close()
    return own, foreign


def _spent(work: Callable[[], object]) -> float:
    """Return the CPU microseconds of some work."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * MICRO


def _call(registry: RateLimitRegistry, key: Key) -> None:
    """Make one call, where the log is free and has a state."""
    while not isinstance(permit := registry.try_admit(key, Cost(tokens=100.0)), Permit):
        time.sleep(0.001)
    registry.settle(permit, ANSWERED)


def rates(repetitions: int) -> dict[str, list[float]]:
    """Each row as often, in turn."""
    found: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(repetitions):
        for name, (told, untold) in ROWS.items():
            found[name].append(rate(0.2, told, untold))
    return found


class StubWaker:
    """A waker for a line whose waiters are asked by hand."""

    __slots__ = ()

    def wake(self) -> bool:
        """Wakes nobody."""
        return True

    def arm(self, until: float) -> bool:
        """Sets no timer."""
        return True


def admission(waiting: int, count: int) -> float:
    """CPU microseconds an admission, from the settling that allows it, in a line that stays `waiting` long."""
    concurrency_limit.START_CONCURRENCY = SLOTS
    registry = RateLimitRegistry(Settings(max_concurrency=SLOTS), clock=lambda: 0.0)
    given = [registry.try_admit(KEY) for _ in range(SLOTS)]
    permits = [each for each in given if isinstance(each, Permit)]
    line: deque[Waiter] = deque()

    def come() -> None:
        waiter = Waiter(StubWaker, 0)
        waiter.deadline = 3600.0
        registry.enqueue(waiter, KEY, 60.0)
        line.append(waiter)

    for _ in range(waiting):
        come()
    began = time.process_time()
    for number in range(count):
        come()
        registry.settle(permits[number % SLOTS], ANSWERED)
        permit = registry.poll(line.popleft())
        if permit is None:
            raise RuntimeError("the head of the line was passed over")
        permits[number % SLOTS] = permit
    return (time.process_time() - began) / count * MICRO


def admissions(repetitions: int) -> dict[int, list[float]]:
    """With 10 and with 1,000 waiting, in turn."""
    found: dict[int, list[float]] = {10: [], 1000: []}
    for _ in range(repetitions):
        for waiting, figures in found.items():
            figures.append(admission(waiting, 5000))
    return found
