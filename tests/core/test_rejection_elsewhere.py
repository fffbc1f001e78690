"""A key that is rejected in another process."""

from __future__ import annotations

import pytest

from tests.core.scene import Scene
from tests.core.values import OK
from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

NO_MONEY = Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY, status=429, of_key=True)


class SharedScene(Scene):
    """A process at a log in virtual time."""

    def __init__(self, clock: VirtualClock, store: MemoryStore) -> None:
        self.clock = clock
        self.registry = RateLimitRegistry(
            Settings(telemetry=False), clock=clock, draw=lambda: 0.5, carrier=MemoryCarrier(store)
        )


@pytest.fixture
def two() -> tuple[SharedScene, SharedScene]:
    """Two processes, each of which has had an answer."""
    clock, store = VirtualClock(), MemoryStore()
    one, other = SharedScene(clock, store), SharedScene(clock, store)
    for each in (one, other, one, other):
        caller = each.call()
        while caller.poll() != "sent":
            clock.advance(0.01)
        caller.reply(OK)
        clock.advance(0.01)
    assert one.seen.members == 2
    return one, other


def test_rejection_for_all_is_known_to_every_process(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    for _ in range(2):
        one.call().reply(NO_MONEY)
    calls = [other.call() for _ in range(3)]
    assert {each.state for each in calls} == {"sent"}
    assert (one.seen.rejected, other.seen.rejected) == ("money", "money")
    for each in calls:
        each.reply(NO_MONEY)
    other.call().reply(OK)
    assert one.call().state == "sent"
    assert one.seen.rejected == ""


def test_a_wrong_credential_of_another_process_rejects_nothing(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    wrong = Outcome(Kind.PERMANENT, Cause.AUTH, status=401, of_key=True)
    for _ in range(2):
        one.call().reply(wrong)
    assert [other.call().state for _ in range(3)] == ["sent"] * 3
    assert (one.seen.rejected, other.seen.rejected) == ("auth", "")


def test_a_process_that_joins_hears_of_the_rejection() -> None:
    clock, store = VirtualClock(), MemoryStore()
    one = SharedScene(clock, store)
    for _ in range(2):
        one.call().reply(NO_MONEY)
    late = SharedScene(clock, store)
    first = late.call()
    while first.poll() != "sent":
        one.call().reply(NO_MONEY)
        clock.advance(0.01)
    assert late.seen.rejected == "money"
