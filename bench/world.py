"""Virtual time: calls that take their turns as `tidegate.admission.drive` does, on events instead of a clock.

The laws (`tests/laws`) and the laboratory share it; each brings the provider that answers (`World.serve`) and the
governed that a call takes (`World.turn_of`).
"""

from __future__ import annotations

import heapq
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.admission.call import GovernedCall
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import AttemptResult, Ending, ExchangeResult, Resume, Send
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind
from tidegate.settings import Settings

MOST_STEPS = 200_000
"""Events after which a world is taken to go round in circles."""


class Timeline:
    """What happens when, in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Plays `action` in `delay` seconds."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now + max(0.0, delay), self._sequence, action))

    def step(self, until: float = math.inf) -> bool:
        """Plays the next event that comes at `until` at the latest; False where there is none."""
        if not self._events or self._events[0][0] > until:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True


class LateLoop:
    """An event loop that handles each event `late` seconds late and, drawn by `seed`, does not run for a while.

    A stall takes `shortest` to `longest` seconds, evenly drawn; in all, stalls take up `share` of the time.
    """

    def __init__(
        self, seed: int, *, late: float = 0.0, share: float = 0.0, shortest: float = 0.05, longest: float = 0.5
    ) -> None:
        self._random = random.Random(seed)
        self.late = late
        self._range = (shortest, longest)
        self._gap = (shortest + longest) / 2.0 * (1.0 - share) / share if share else math.inf
        self._stalls: list[tuple[float, float]] = []
        self._drawn_until = 0.0

    def handles(self, at: float) -> float:
        """Return when the loop handles what is due at `at`; the order of events stays."""
        at += self.late
        while self._drawn_until <= at < math.inf:
            begin = self._drawn_until + (
                self._random.expovariate(1.0 / self._gap) if self._gap < math.inf else math.inf
            )
            self._drawn_until = begin + self._random.uniform(*self._range)
            self._stalls.append((begin, self._drawn_until))
        for begin, end in reversed(self._stalls):
            if at >= end:
                break
            if at >= begin:
                return end
        return at


PUNCTUAL = LateLoop(0)
"""An event loop that is never late."""


@dataclass(frozen=True)
class Sending:
    """One attempt as it left: the permit it went under, and how many of its call had gone before."""

    row: int
    at: float
    permit: Permit
    before: int


class World(ABC):
    """A registry and the calls before it; `join` adds one, `run` plays until nothing moves.

    `lag` is the most seconds between the waking of a call and its looking; `repeats` is how often a caller, as an SDK
    does, makes a call again that came back with a transient failure; `watch` is called
    with the world after every event. `loop` runs the callers; the provider is never late.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        *,
        lag: float = 0.0,
        repeats: int = 0,
        watch: Callable[[Any], object] | None = None,
        most_steps: int = MOST_STEPS,
        loop: LateLoop = PUNCTUAL,
    ) -> None:
        self.timeline = Timeline()
        self.random = random.Random(seed)
        self.registry = RateLimitRegistry(settings, clock=lambda: self.timeline.now, draw=self.random.random)
        self.lag = lag
        self.repeats = repeats
        self.watch = watch
        self.most_steps = most_steps
        self.loop = loop
        self.sends: list[Sending] = []
        self.first_reading_at = math.inf
        self.ended: dict[int, ExchangeResult] = {}
        self.makespan = 0.0
        self.calls: dict[int, VirtualCall] = {}

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.timeline.now

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Plays `action` in `delay` seconds."""
        self.timeline.after(delay, action)

    def handle(self, delay: float, action: Callable[[], object]) -> None:
        """Plays `action`, which is due in `delay` seconds, as soon as the event loop of the callers handles it."""
        self.after(self.loop.handles(self.now + max(0.0, delay)) - self.now, action)

    def join(self, call: VirtualCall, at: float) -> None:
        """A call that comes at `at`."""
        self.calls[call.row] = call
        self.after(at - self.now, call.start)

    def run(self, until: float = math.inf) -> None:
        """Plays every event up to `until`; time does not run backwards and does not stand still for ever."""
        steps = 0
        while self.timeline.step(until):
            if self.watch is not None:
                self.watch(self)
            steps += 1
            assert steps < self.most_steps, "the world does not come to rest"

    @abstractmethod
    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        """What becomes of a request that is sent now: `reply` is called when its answer is there."""

    def finish_fast(self, call: VirtualCall) -> None:  # noqa: B027
        """A call has its answer, for good; by default nobody minds."""


class VirtualCall:
    """One caller: takes its turn as `tidegate.admission.drive` does, on the world's events."""

    def __init__(self, world: World, row: int, governed: GovernedCall) -> None:
        self.world = world
        self.row = row
        self.governed: Any = governed
        self.priority = governed.priority
        self.waiting_for = 0
        self.sent = self.repeated = 0
        self.standing = False
        self.passed: Permit | None = None
        self.flow: Any = None
        self.finished = False

    def start(self) -> None:
        """Comes to the key."""
        if self.finished:
            return
        self.flow, self.passed = None, self.governed.try_start()
        if self.passed is not None:
            self._leaves(self.passed)
        else:
            self._goes_on(None, None)

    def cancel(self) -> None:
        """The caller goes away."""
        self.finished, self.standing = True, False
        if self.passed is not None:
            self.governed.abandon(self.passed)
            self.passed = None
        elif self.flow is not None:
            self.flow.close()
        self.governed.registry.catch_up()

    def wake(self) -> bool:
        """Somebody has news for this call."""
        return self.arm(self.world.now)

    def arm(self, until: float) -> bool:
        """Looks again at `until`."""
        governed = self.waiting_for
        late = self.world.lag * self.world.random.random() if self.world.lag else 0.0
        delay = until - self.world.now
        schedule = self.world.handle if delay > 0.0 else self.world.after
        schedule(max(0.0, delay) + late, lambda: self._resume(governed))
        return True

    def _resume(self, governed: int) -> None:
        if governed == self.waiting_for and not self.finished:
            self._step(lambda: self.flow.send(Resume(self.world.now)))

    def _goes_on(self, permit: Permit | None, sent: AttemptResult | None) -> None:
        self.flow = self.governed.exchange(lambda: self, permit, sent)
        self._step(lambda: next(self.flow))

    def _leaves(self, permit: Permit) -> None:
        self.standing = False
        self.world.sends.append(Sending(self.row, self.world.now, permit, self.sent))
        self.sent += 1
        self.world.serve(self, permit, self._reply)

    def _step(self, advance: Callable[[], Any]) -> None:
        self.waiting_for += 1
        try:
            effect = advance()
        except StopIteration as stop:
            self._ends(stop.value)
            return
        if isinstance(effect, Send):
            self.waiting_for += 1
            self._leaves(effect.permit)
            return
        self.standing = True
        if effect.until is not None:
            self.arm(effect.until)

    def _ends(self, ended: ExchangeResult) -> None:
        self.standing = False
        if self._repeats(ended):
            return
        self.finished = True
        self.world.ended[self.row] = ended
        self.world.makespan = self.world.now
        self.world.finish_fast(self)

    def _repeats(self, ended: ExchangeResult) -> bool:
        """Whether the caller makes the call again: its own back-off runs, in which nothing stands or is under way."""
        transient = ended.attempt is not None and ended.attempt.outcome.kind is Kind.TRANSIENT
        if not transient or ended.ending is not Ending.HANDED_BACK or self.repeated >= self.world.repeats:
            return False
        self.repeated += 1
        backoff = min(8.0, 0.5 * 2.0 ** (self.repeated - 1)) * (1.0 - 0.25 * self.world.random.random())
        self.world.handle(backoff, self.start)
        return True

    def _reply(self, sent: AttemptResult) -> None:
        if self.finished:
            return
        if sent.outcome.readings:
            self.world.first_reading_at = min(self.world.first_reading_at, self.world.now)
        if self.passed is None:
            self._step(lambda: self.flow.send(Resume(self.world.now, sent)))
            return
        permit, self.passed = self.passed, None
        if self.governed.finish_fast(permit, sent):
            self._ends(ExchangeResult(Ending.ANSWERED, sent, 0.0))
        else:
            self._goes_on(permit, sent)
