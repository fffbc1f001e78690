"""A world of several event loops before one key, any of which may stand still for a while or for ever."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import world
from bench.world import VirtualCall
from tests.core.values import KEY, OK
from tidegate.admission.call import GovernedCall
from tidegate.core.exchange import AttemptResult, CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.settings import Settings


@dataclass(eq=False)
class VirtualLoop:
    """An event loop that stands still during `stops`: (start, end) in seconds; what was due then runs at the end."""

    number: int
    stops: list[tuple[float, float]] = field(default_factory=list)

    def runs_at(self, now: float) -> float:
        """When it runs next; infinity: never."""
        for start, end in sorted(self.stops):
            if start <= now < end:
                now = end
        return now


class LoopCall(VirtualCall):
    """A call whose steps wait for its loop."""

    def __init__(self, world: LoopWorld, row: int, governed: GovernedCall, loop: VirtualLoop) -> None:
        super().__init__(world, row, governed)
        self.loop = loop
        self.thread = loop.number

    def start(self) -> None:
        self._when_running(super().start)

    def _resume(self, governed: int) -> None:
        resume = super()._resume
        self._when_running(lambda: resume(governed))

    def _reply(self, sent: AttemptResult) -> None:
        reply = super()._reply
        self._when_running(lambda: reply(sent))

    def _when_running(self, step: Callable[[], None]) -> None:
        at = self.loop.runs_at(self.world.now)
        if at <= self.world.now:
            step()
        elif at < math.inf:
            self.world.after(at - self.world.now, lambda: self._when_running(step))


class PlainCall(GovernedCall):
    """One request."""

    __slots__ = ()

    def price(self, estimate: object) -> object:
        from tidegate.core.values import Cost

        return Cost()


class LoopWorld(world.World):
    """One key with so many slots, whose provider answers each attempt after `latency` seconds."""

    def __init__(self, loops: int, slots: int = 1, latency: float = 1.0, seed: int = 0) -> None:
        super().__init__(Settings(max_concurrency=slots), seed)
        self.latency = latency
        self.loops = [VirtualLoop(number + 1) for number in range(loops)]
        self.random = random.Random(seed)

    def call(self, row: int, loop: int, *, at: float = 0.0, max_wait: float = 1e6, priority: int = 0) -> None:
        governed = PlainCall(self.registry, KEY, CallPolicy(max_wait=max_wait), 60.0, priority)
        self.join(LoopCall(self, row, governed, self.loops[loop]), at)

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        self.after(self.latency, lambda: reply(AttemptResult(OK)))
