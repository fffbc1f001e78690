"""A key that is rejected in another process: its text stays there, and one call here asks for a text of its own."""

from __future__ import annotations

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import Ending
from tidegate.core.values import Cause, Kind, Outcome, ReplayableRefusal
from tidegate.settings import Settings
from tidegate.shared_log.memory import MemoryCarrier, MemoryStore
from tidegate.testing import VirtualClock

THEIRS = ReplayableRefusal(429, b'{"error": {"message": "no money for sk-other"}}')
OURS = ReplayableRefusal(429, b'{"error": {"message": "no money for sk-own"}}')
NO_MONEY = Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY, status=429, answer=THEIRS)


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


def text(caller: Caller) -> bytes:
    """What a call was given without a request."""
    assert caller.ended is not None
    assert caller.ended.ending is Ending.REPLAYED
    assert caller.ended.attempt is not None
    assert caller.ended.attempt.outcome.answer is not None
    return caller.ended.attempt.outcome.answer.body


def reject(scene: SharedScene, outcome: Outcome) -> Caller:
    """Let two calls ask for a long time and be rejected; return one that waited for both."""
    asking, other, waiting = (scene.call() for _ in range(3))
    for each in (asking, other):
        assert each.poll() == "sent"
        scene.clock.advance(3.0)
        each.reply(outcome)
    waiting.poll()
    return waiting


def test_two_calls_of_each_process_ask_and_the_others_get_their_text(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    ours = NO_MONEY._replace(answer=OURS)
    one.call().reply(NO_MONEY)
    assert text(reject(one, NO_MONEY)) == THEIRS.body
    asking = other.call()
    assert asking.state == "sent"
    waiting = [other.call() for _ in range(20)]
    assert {each.state for each in waiting} == {"waiting"}
    asking.reply(ours)
    one.clock.advance(6.0)
    assert waiting[0].poll() == "sent"
    one.clock.advance(0.02)
    waiting.pop(0).reply(ours)
    assert {each.poll() for each in waiting} == {"ended"}
    assert {text(each) for each in waiting} == {OURS.body}
    # An answer to another process does not take the own text away.
    assert text(reject(one, NO_MONEY)) == THEIRS.body
    assert text(reject(other, ours)) == OURS.body


def test_calls_behind_an_asking_one_that_is_let_in_go_on(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    one.call().reply(NO_MONEY)
    asking = other.call()
    waiting = [other.call() for _ in range(3)]
    assert {each.state for each in waiting} == {"waiting"}
    asking.reply(OK)
    for each in waiting:
        while each.poll() != "sent":
            one.clock.advance(0.01)
        each.reply(OK)
    assert one.call().state == other.call().state == "sent"


def test_an_asking_call_without_an_answer_holds_the_others_for_a_moment_only(
    two: tuple[SharedScene, SharedScene],
) -> None:
    one, other = two
    one.call().reply(NO_MONEY)
    assert other.call().state == "sent"
    behind = other.call()
    assert behind.state == "waiting"
    one.clock.advance(0.5)
    assert behind.poll() == "sent"


def test_a_call_that_was_given_up_lets_the_next_ask(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    one.call().reply(NO_MONEY)
    other.call().reply(Outcome(Kind.ABANDONED))
    assert other.call().state == "sent"


def test_a_wrong_credential_of_another_process_holds_nothing(two: tuple[SharedScene, SharedScene]) -> None:
    one, other = two
    wrong = Outcome(Kind.PERMANENT, Cause.AUTH, status=401, answer=THEIRS._replace(status=401))
    one.call().reply(wrong)
    assert text(reject(one, wrong)) == THEIRS.body
    assert [other.call().state for _ in range(3)] == ["sent"] * 3


def test_a_process_that_joins_hears_of_the_rejection_without_its_text() -> None:
    clock, store = VirtualClock(), MemoryStore()
    one = SharedScene(clock, store)
    one.call().reply(NO_MONEY)
    one.call().reply(NO_MONEY)
    late = SharedScene(clock, store)
    asking = late.call()
    while asking.poll() != "sent":
        one.call()
        clock.advance(0.01)
    assert late.seen.rejected == "money"
    behind = late.call()
    assert behind.state == "waiting"
    asking.reply(NO_MONEY._replace(answer=OURS))
    assert behind.poll() == "sent"
    behind.reply(NO_MONEY._replace(answer=OURS))
    assert text(reject(late, NO_MONEY._replace(answer=OURS))) == OURS.body
