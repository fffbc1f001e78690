"""The world of the laws with several processes: registries that share a log, before one provider."""

from __future__ import annotations

from typing import Any

from bench.world import VirtualCall
from tests.laws.strategies import Caller
from tests.laws.world import KEY, WeightedCall, World
from tests.memory_log import MemoryCarrier, MemoryLog, MemoryStore
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.core.replicated_controller import ReplicatedController
from tidegate.testing import Limit, Scenario

REAPED = 0.5
"""Seconds after which the log notices that a member was killed."""


class SharedWorld(World):
    """A provider before `members` processes; each call belongs to the one that its row names."""

    def __init__(self, scenario: Scenario, members: int, delay: float = 0.0, **facts: Any) -> None:
        super().__init__(scenario, **facts)
        self.store = MemoryStore(delay)
        self.carriers = [MemoryCarrier(self.store) for _ in range(members)]
        self.registries = [
            RateLimitRegistry(self.settings, clock=lambda: self.timeline.now, draw=self.random.random, carrier=carrier)
            for carrier in self.carriers
        ]
        self.killed: set[int] = set()

    def call(self, row: int, *, at: float = 0.0, tokens: int = 0, max_wait: float = 3600.0, priority: int = 0) -> None:
        """A call of the process that the row names, which joins at `at`."""
        governed = WeightedCall(
            self.registries[self.member_of(row)], KEY, CallPolicy(max_wait=max_wait), 60.0, priority
        )
        governed.tokens = tokens
        self.join(VirtualCall(self, row, governed), at)

    def member_of(self, row: int) -> int:
        return row % len(self.registries)

    def kill(self, member: int, at: float) -> None:
        """A process is killed at `at`: its calls end without a trace, and the log notices a little later."""
        self.after(at, lambda: self._kill(member))
        self.after(at + REAPED, self.carriers[member].close)

    def stop(self, member: int, at: float) -> None:
        """A process is stopped at `at` for good: nothing of it moves, and the log does not notice."""
        self.after(at, lambda: self._kill(member))

    def hold(self, at: float, seconds: float) -> None:
        """The log is locked for so long, as by a process that is stopped in a step."""
        self.after(at, lambda: self._hold(True))
        self.after(at + seconds, lambda: self._hold(False))

    def lose(self, at: float, seconds: float) -> None:
        """The log is out of reach of all processes for so long, and its content is lost."""
        self.after(at, lambda: self.store.set_away(True))
        self.after(at + seconds, lambda: self.store.set_away(False))

    def controllers(self) -> list[ReplicatedController]:
        """The controllers of the live processes, after each has read the whole log."""
        found = []
        for _ in range(2):
            for member, registry in enumerate(self.registries):
                if member not in self.killed:
                    answer = registry.try_admit(KEY)
                    if isinstance(answer, Permit):
                        registry.withdraw(answer)
        for member, registry in enumerate(self.registries):
            if member not in self.killed:
                admission = registry._queues[KEY].admission
                assert isinstance(admission, ReplicatedController)
                found.append(admission)
        return found

    @property
    def log(self) -> MemoryLog | None:
        return next(iter(self.store.logs.values()), None)

    def _kill(self, member: int) -> None:
        self.killed.add(member)
        for row, call in self.calls.items():
            if self.member_of(row) == member:
                call.finished = True

    def _hold(self, held: bool) -> None:
        if self.log is not None:
            self.log.hold(held)


def shared_world(
    limiters: tuple[Limit, ...], made: list[Caller], given: dict[str, float], members: int, **facts: Any
) -> SharedWorld:
    """A world of several processes with these callers in it, not yet run."""
    slowest = given["slowest"]
    built = SharedWorld(
        Scenario(limiters=limiters),
        members,
        seed=int(given["seed"]),
        network=given["network"],
        latency=lambda draw: draw.uniform(0.01, slowest),
        **facts,
    )
    for row, caller in enumerate(made):
        built.call(row, at=caller.at, tokens=caller.tokens, max_wait=caller.max_wait, priority=caller.priority)
        if caller.gone_after is not None:
            built.cancel(row, caller.at + caller.gone_after)
    return built
