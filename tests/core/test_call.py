"""What `tidegate.admission.drive` runs: most calls pass at once and are answered, any other goes on as an exchange."""

from __future__ import annotations

import pytest

from tests import constants
from tests.core.values import INVALID, KEY, OK, OUTAGE, TIMEOUT, PlainCall, StubWaker, refusal
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waker
from tidegate.core.exchange import AttemptResult, CallPolicy, Ending, ExchangeResult, Flow, Resume, Send, WaitUntil
from tidegate.core.limiter_state import Permit
from tidegate.settings import Settings
from tidegate.testing import VirtualClock


def no_waker() -> Waker:
    raise AssertionError("this call waits")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def registry(clock: VirtualClock) -> RateLimitRegistry:
    return RateLimitRegistry(Settings(max_concurrency=1), clock=clock, draw=lambda: 0.5)


@pytest.fixture
def governed(registry: RateLimitRegistry) -> PlainCall:
    return PlainCall(registry, KEY, CallPolicy(max_wait=60.0), 60.0, 0)


@pytest.fixture
def permit(governed: PlainCall) -> Permit:
    permit = governed.try_start()
    assert permit is not None
    return permit


def in_flight(registry: RateLimitRegistry) -> int:
    return registry.snapshot().in_flight


def ending(flow: Flow, resume: Resume | None = None) -> ExchangeResult:
    with pytest.raises(StopIteration) as stopped:
        flow.send(resume)
    ended: ExchangeResult = stopped.value.value
    return ended


def test_nobody_passes_one_who_stands(registry: RateLimitRegistry, governed: PlainCall, permit: Permit) -> None:
    second, third = (PlainCall(registry, KEY, CallPolicy(max_wait=60.0), 60.0, 0) for _ in range(2))
    assert second.try_start() is None
    flow = second.exchange(StubWaker, None, None)
    assert isinstance(next(flow), WaitUntil)
    governed.finish_fast(permit, AttemptResult(OK))
    assert third.try_start() is None
    assert isinstance(flow.send(Resume(0.0)), Send)
    flow.close()
    assert in_flight(registry) == 0


@pytest.mark.parametrize(("outcome", "how"), [(OUTAGE, Ending.HANDED_BACK), (INVALID, Ending.GIVEN_UP)])
def test_a_call_that_failed_at_once_ends_in_the_dialogue(
    registry: RateLimitRegistry, governed: PlainCall, permit: Permit, outcome, how: Ending
) -> None:
    sent = AttemptResult(outcome)
    assert governed.finish_fast(permit, sent) is False
    assert ending(governed.exchange(no_waker, permit, sent)).ending is how
    assert in_flight(registry) == 0


def test_a_call_that_was_refused_at_once_returns_before_those_that_came_later(
    registry: RateLimitRegistry, clock: VirtualClock, governed: PlainCall, permit: Permit
) -> None:
    later = PlainCall(registry, KEY, CallPolicy(max_wait=60.0), 60.0, 0)
    assert later.try_start() is None
    waiting = later.exchange(StubWaker, None, None)
    next(waiting)
    sent = AttemptResult(refusal(5.0))
    assert governed.finish_fast(permit, sent) is False
    flow = governed.exchange(StubWaker, permit, sent)
    effect = next(flow)
    assert isinstance(effect, WaitUntil)
    assert effect.until == 5.0
    clock.advance(5.0)
    assert isinstance(waiting.send(Resume(5.0)), WaitUntil)
    assert isinstance(flow.send(Resume(5.0)), Send)
    for each in (flow, waiting):
        each.close()
    assert (in_flight(registry), registry.snapshot().waiting) == (0, 0)


def test_its_deadline_counts_from_when_it_came(
    registry: RateLimitRegistry, clock: VirtualClock, governed: PlainCall, permit: Permit
) -> None:
    """Refused at 59 s, it cannot wait for the 30 s that the provider names: its 60 s began when it came."""
    clock.advance(59.0)
    ended = ending(governed.exchange(StubWaker, permit, AttemptResult(refusal(30.0))))
    assert (ended.ending, ended.gate, ended.opens_in) == (Ending.GIVEN_UP, "pause", 30.0)


@pytest.fixture
def forgotten(clock: VirtualClock) -> tuple[RateLimitRegistry, Flow, Permit]:
    """A call that waits again: its key was forgotten while it backed off, and made anew by another who has the slot."""
    constants.replace(MAX_REGISTRY_KEYS=1)
    settings = Settings(max_concurrency=1)
    registry = RateLimitRegistry(settings, clock=clock, draw=lambda: 0.5)
    governed = PlainCall(registry, KEY, CallPolicy(max_wait=60.0, attempts=2), 60.0, 0)
    permit = governed.try_start()
    assert permit is not None
    flow = governed.exchange(StubWaker, permit, AttemptResult(TIMEOUT))
    assert isinstance(next(flow), WaitUntil)
    registry.settle(registry.try_admit(KEY._replace(scope="another")), OK)
    assert KEY not in registry.snapshot().keys
    taken = registry.try_admit(KEY)
    clock.advance(1.0)
    assert isinstance(flow.send(Resume(1.0)), WaitUntil)
    return registry, flow, taken


def test_a_call_whose_key_was_forgotten_while_it_backed_off_goes_on_in_the_new_line(
    forgotten: tuple[RateLimitRegistry, Flow, Permit],
) -> None:
    registry, flow, taken = forgotten
    assert registry.snapshot().keys[KEY].waiting == 1
    registry.settle(taken, OK)
    assert isinstance(flow.send(Resume(1.0)), Send)
    flow.close()
    assert in_flight(registry) == 0


def test_a_call_whose_key_was_forgotten_while_it_backed_off_can_leave_the_new_line(
    forgotten: tuple[RateLimitRegistry, Flow, Permit],
) -> None:
    registry, flow, _ = forgotten
    flow.close()
    assert registry.snapshot().keys[KEY].waiting == 0
