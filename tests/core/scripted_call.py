"""A place in a queue that does what a test tells it, and writes down what was asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.core.values import KEY
from tidegate.core import events
from tidegate.core.circuit_breaker import CircuitBreaker, FailingCalls
from tidegate.core.exchange import (
    AttemptResult,
    CallPolicy,
    ExchangeResult,
    Flow,
    Resume,
    Send,
    StartedExchange,
    WaitUntil,
    exchange,
)
from tidegate.core.limiter_state import KeyCounts
from tidegate.core.values import Cost, Outcome

WAKER = object()


def waiting(until: float | None) -> WaitUntil:
    return WaitUntil(until, WAKER)


class AloneKey:
    """What a call reads of its key: no other call was ever answered."""

    admitted_order = 0
    admitted_cost = Cost()
    counts = all_counts = KeyCounts()

    def __init__(self) -> None:
        self.failing = FailingCalls()
        self.breaker = CircuitBreaker()

    def is_alive(self, now: float) -> bool:
        return False


class NumberedPermit:
    """A permit by number."""

    sent_at = 0.0
    cost = Cost()

    def __init__(self, number: int, probe: bool) -> None:
        self.number = self.order = number
        self.probe = probe
        self.state = AloneKey()


class ScriptedQueue:
    """A queue whose gate is `open` or not; `places` and `permits` are what it has given and not got back."""

    key = KEY
    gate = "pause"
    recalled = False
    replay: Outcome | None = None
    opens_at: float | None = None

    def get_waker(self) -> object:
        return WAKER

    def __init__(self) -> None:
        self.open = True
        self.probing = False
        self.until: float | None = None
        self.log: list[tuple[Any, ...]] = []
        self.told: list[tuple[type[events.Event], tuple[object, ...]]] = []
        self.counted: list[str] = []
        self.begun: list[tuple[int, int, float]] = []
        self.places = 0
        self.permits: set[NumberedPermit] = set()
        self.given = 0

    def _admit(self) -> NumberedPermit | None:
        if not self.open:
            return None
        self.places = 0
        self.given += 1
        permit = NumberedPermit(self.given, self.probing)
        self.permits.add(permit)
        return permit

    def pass_at_once(self) -> NumberedPermit:
        permit = self._admit()
        assert permit is not None
        return permit

    def enqueue(self, now: float, deadline: float) -> NumberedPermit | None:
        assert self.places == 0, "it stands already"
        self.log.append(("stand", now, deadline))
        self.places = 1
        return self._admit()

    def poll(self, now: float) -> NumberedPermit | None:
        assert self.places == 1, "it does not stand"
        return self._admit()

    def dequeue(self) -> None:
        self.log.append(("leave",))
        self.places = 0

    def learn(self, permit: NumberedPermit, outcome: Outcome, now: float) -> None:
        self.log.append(("learn", permit.number, outcome.kind.value))
        self.permits.remove(permit)

    def settle(self, permit: NumberedPermit, outcome: Outcome, now: float, rejoin: bool = False) -> bool:
        self.log.append(("settle", permit.number, outcome.kind.value, rejoin))
        self.permits.remove(permit)
        self.places = int(rejoin)
        return rejoin

    def abandon(self, permit: NumberedPermit) -> None:
        self.log.append(("abandon", permit.number))
        self.permits.remove(permit)

    def count(self, note: Callable[[Any], object]) -> None:
        note(self)

    def note_resent(self, after: Outcome, is_second: bool) -> None:
        self.counted.append(f"resent after {after.kind}")

    def note_given_up(self, outcome: Outcome | None) -> None:
        self.counted.append("given up")

    def note_aside(self, change: int) -> None:
        self.aside = getattr(self, "aside", 0) + change

    def count_left(self) -> None:
        self.counted.append("left")

    def begin_attempt(self, permit: NumberedPermit, index: int, waited: float) -> None:
        self.begun.append((permit.number, index, waited))

    def note_failed_call(self, outcome: Outcome) -> None:
        self.counted.append("failed")

    def emit(self, event: type[events.Event], *facts: object) -> None:
        self.told.append((event, facts))


class ExchangeDriver:
    """One exchange, step by step: what it asks for, and how it ended."""

    def __init__(
        self, queue: ScriptedQueue, policy: CallPolicy, now: float = 0.0, begun: StartedExchange | None = None
    ) -> None:
        self.queue = queue
        self.flow: Flow = exchange(queue, policy, now, lambda: 0.5, begun)
        self.ended: ExchangeResult | None = None
        self.effect: WaitUntil | Send | None = None
        self._step(lambda: next(self.flow))

    def wait(self, now: float) -> WaitUntil | Send | None:
        assert isinstance(self.effect, WaitUntil)
        return self._step(lambda: self.flow.send(Resume(now)))

    def reply(
        self, now: float, outcome: Outcome, *, streaming: bool = False, response: Any = None
    ) -> WaitUntil | Send | None:
        assert isinstance(self.effect, Send)
        sent = AttemptResult(outcome, response=response, streaming=streaming)
        return self._step(lambda: self.flow.send(Resume(now, sent)))

    def close(self) -> None:
        self.flow.close()

    def _step(self, advance: Callable[[], WaitUntil | Send]) -> WaitUntil | Send | None:
        try:
            self.effect = advance()
        except StopIteration as stop:
            self.effect, self.ended = None, stop.value
        return self.effect


def names(told: Iterable[tuple[type[events.Event], tuple[object, ...]]]) -> list[str]:
    return [event.__name__ for event, _ in told]
