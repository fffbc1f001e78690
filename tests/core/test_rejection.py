"""A key that the provider rejects as a whole: who is given its answer, who asks again, who waits for the reset."""

from __future__ import annotations

import logging

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import ABANDONED, INVALID, OK, OUTAGE, REFUSED, refusal
from tidegate.admission.registry import NotReady
from tidegate.core.events import Event, KeyAccepted, KeyRejected, RequestFailed
from tidegate.core.exchange import Ending
from tidegate.core.values import Cause, Cost, Kind, Outcome, ReplayableRefusal

BODY = ReplayableRefusal(429, b'{"error": {"code": "insufficient_quota"}}')
NO_MONEY = Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY, status=429, answer=BODY)
WRONG_KEY = Outcome(Kind.PERMANENT, Cause.AUTH, status=401, answer=BODY._replace(status=401))
FORBIDDEN = Outcome(Kind.PERMANENT, Cause.AUTH, status=403, answer=BODY._replace(status=403))
NO_MONEY_403 = NO_MONEY._replace(status=403)


def day(reset: float | None) -> Outcome:
    return Outcome(Kind.DAILY_LIMIT, Cause.DAY, reset, status=429, answer=BODY)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def replayed(caller: Caller) -> bool:
    return caller.ended is not None and caller.ended.ending is Ending.REPLAYED


def reject(scene: Scene, outcome: Outcome = NO_MONEY, max_wait: float = 3600.0) -> Caller:
    caller = scene.call(max_wait)
    caller.reply(outcome)
    return caller


@pytest.mark.parametrize("outcome", [NO_MONEY, WRONG_KEY, day(None)])
def test_rejected_key_answers_calls_for_a_second(scene: Scene, outcome: Outcome) -> None:
    first = reject(scene, outcome)
    assert first.ended is not None
    assert first.ended.ending is Ending.GIVEN_UP
    assert first.ended.attempt is not None
    assert first.ended.attempt.response == "own"
    for _ in range(40):
        scene.clock.advance(0.02)
        assert replayed(scene.call())
    assert (scene.seen.attempts, scene.seen.replayed, scene.seen.calls) == (1, 40, 41)
    assert scene.seen.failed_calls == 41


@pytest.mark.parametrize("outcome", [FORBIDDEN, NO_MONEY_403, INVALID, WRONG_KEY._replace(answer=None)])
def test_answer_of_one_request_is_replayed_to_nobody(scene: Scene, outcome: Outcome) -> None:
    reject(scene, outcome)
    assert scene.call().state == "sent"
    assert scene.seen.rejected == ""


def test_rejected_key_answers_those_in_line_at_once(scene: Scene) -> None:
    sent = [scene.call() for _ in range(4)]
    waiting = [scene.call() for _ in range(20)]
    assert {each.state for each in waiting} == {"waiting"}
    sent[0].reply(NO_MONEY)
    assert all(each.woken for each in waiting)
    assert {each.poll() for each in waiting} == {"ended"}
    assert all(replayed(each) for each in waiting)
    assert scene.seen.waiting == 0


def test_rejected_key_lets_one_ask_after_a_second(scene: Scene) -> None:
    reject(scene)
    scene.clock.advance(1.0)
    asking = scene.call()
    assert asking.state == "sent"
    assert all(replayed(scene.call()) for _ in range(5))
    asking.reply(NO_MONEY)
    assert replayed(scene.call())
    assert scene.seen.attempts == 2


@pytest.mark.parametrize("outcome", [ABANDONED, OUTAGE])
def test_asking_call_that_came_to_nothing_lets_the_next_ask(scene: Scene, outcome: Outcome) -> None:
    reject(scene)
    scene.clock.advance(1.0)
    scene.call().reply(outcome)
    assert scene.call().state == "sent"


def test_asking_call_that_is_not_rejected_quickly_was_let_in(scene: Scene) -> None:
    """An answer may take minutes: it must not hold up the key that works again."""
    reject(scene)
    scene.clock.advance(1.0)
    asking = scene.call()
    assert asking.state == "sent"
    assert replayed(scene.call())
    scene.clock.advance(0.25)
    assert [scene.call().state for _ in range(3)] == ["sent"] * 3


def behind_a_slow_asking_one(count: int) -> tuple[Scene, Caller, list[Caller]]:
    """A rejected key with two slots, the call that asks it again, and `count` calls that came 0.3 s later."""
    scene = Scene(start_concurrency=2)
    reject(scene)
    scene.clock.advance(1.0)
    asking = scene.call()
    scene.clock.advance(0.3)
    return scene, asking, [scene.call() for _ in range(count)]


def test_calls_behind_a_slow_asking_one_keep_to_the_slots() -> None:
    """It may be rejected yet: then those that came meanwhile get that answer, and were not all sent."""
    scene, asking, others = behind_a_slow_asking_one(60)
    assert [each.state for each in others].count("sent") == 1
    asking.reply(NO_MONEY)
    assert [each.poll() for each in others if each.state == "waiting"] == ["ended"] * 59
    assert scene.seen.waiting == 0


def test_calls_behind_a_slow_asking_one_go_when_it_is_answered() -> None:
    scene, asking, others = behind_a_slow_asking_one(5)
    asking.reply(OK)
    for _ in range(5):
        sent = [each for each in others if each.poll() == "sent"]
        for each in sent:
            each.reply(OK)
    assert {each.state for each in others} == {"ended"}
    assert scene.seen.rejected == ""


@pytest.mark.parametrize("outcome", [OK, REFUSED, FORBIDDEN])
def test_other_answer_of_a_later_attempt_ends_the_rejection(scene: Scene, outcome: Outcome) -> None:
    reject(scene)
    scene.clock.advance(1.0)
    asking = scene.call()
    asking.reply(outcome)
    assert scene.seen.rejected == ""


def test_success_of_an_earlier_attempt_does_not_end_the_rejection(scene: Scene) -> None:
    earlier = scene.call()
    reject(scene)
    earlier.reply(OK)
    assert replayed(scene.call())


def test_scripted_call_is_sent_to_a_rejected_key(scene: Scene) -> None:
    reject(scene)
    assert scene.call(mocked=True).state == "sent"
    assert replayed(scene.call())


def test_day_quota_with_reset_within_deadline_is_waited_for(scene: Scene) -> None:
    """Uncapped by `max_pause`: the provider named the time."""
    first = reject(scene, day(432.0))
    others = [scene.call() for _ in range(5)]
    assert [each.state for each in (first, *others)] == ["waiting"] * 6
    assert (first.until, scene.seen.gate, scene.seen.rejected) == (432.0, "quota day", "day")
    scene.clock.advance(431.0)
    assert first.poll() == "waiting"
    scene.clock.advance(1.0)
    assert first.poll() == "sent"
    assert [each.poll() for each in others] == ["waiting"] * 5
    first.reply(OK)
    assert [each.poll() for each in others] == ["sent"] * 4 + ["waiting"]
    assert scene.seen.attempts == 6


def test_day_quota_with_reset_beyond_deadline_is_handed_back(scene: Scene) -> None:
    first = reject(scene, day(4000.0))
    assert first.ended is not None
    assert first.ended.attempt is not None
    assert first.ended.attempt.response == "own"
    assert replayed(scene.call(max_wait=3600.0))
    assert scene.call(max_wait=5000.0).state == "waiting"


def test_day_quota_waited_for_in_vain_is_believed_no_more(scene: Scene) -> None:
    """Gemini names seconds for a quota that comes back at midnight."""
    first = reject(scene, day(13.0))
    second = scene.call()
    for _ in range(2):
        assert first.state == "waiting"
        scene.clock.advance(13.0)
        assert first.poll() == "sent"
        first.reply(day(13.0))
    assert first.ended is not None
    assert first.ended.ending is Ending.GIVEN_UP
    assert first.ended.attempt is not None
    assert first.ended.attempt.response == "own"
    assert second.poll() == "ended"
    assert scene.seen.attempts == 3


def test_day_quota_that_frees_one_call_at_a_time_is_waited_for_again(scene: Scene) -> None:
    calls = [scene.call() for _ in range(3)]
    for each in calls:
        each.reply(day(432.0))
    for at_work in calls:
        scene.clock.advance(432.0)
        assert at_work.poll() == "sent"
        at_work.reply(OK)
        for each in calls:
            if each.poll() == "sent":
                each.reply(day(432.0))
    assert all(each.state == "ended" for each in calls)


def test_rejected_key_tells_its_reason_and_time(scene: Scene) -> None:
    told: list[Event] = []
    scene.registry.subscribe(told.append)
    reject(scene, WRONG_KEY)
    assert (scene.seen.rejected, scene.seen.rejected_for, scene.seen.gate) == ("auth", 1.0, "rejected")
    scene.call()
    scene.clock.advance(1.0)
    scene.call().reply(OK)
    begun = next(each for each in told if isinstance(each, KeyRejected))
    assert (begun.kind, begun.cause, begun.until, begun.status) == (Kind.PERMANENT, Cause.AUTH, None, 401)
    assert next(each for each in told if isinstance(each, KeyAccepted)).replayed == 1
    assert sum(isinstance(each, RequestFailed) for each in told) == 2


def test_rejection_is_one_warning_with_key_reason_and_count(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        reject(scene)
        for _ in range(7):
            scene.call()
        scene.clock.advance(1.0)
        scene.call().reply(NO_MONEY)
        scene.call()
        scene.clock.advance(1.0)
        scene.call().reply(OK)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "tidegate"]
    assert "provider.test" in line
    assert "money (status 429" in line
    assert "8 calls" in line


def test_try_admit_of_a_rejected_key_says_until_when(scene: Scene) -> None:
    reject(scene)
    answer = scene.registry.try_admit(scene.seen.key)
    assert isinstance(answer, NotReady)
    assert (answer.gate, answer.ready_at) == ("rejected", 1.0)
    scene.clock.advance(1.0)
    assert scene.registry.try_admit(scene.seen.key)
    later = Scene()
    reject(later, day(432.0))
    answer = later.registry.try_admit(later.seen.key)
    assert isinstance(answer, NotReady)
    assert (answer.gate, answer.ready_at) == ("quota day", 432.0)


def test_call_already_refused_is_given_the_rejection(scene: Scene) -> None:
    caller = reject(scene, refusal(5.0))
    assert caller.state == "waiting"
    other = scene.call()
    scene.clock.advance(5.0)
    assert caller.poll() == "sent"
    caller.reply(NO_MONEY)
    assert replayed(other) or other.poll() == "ended"
    assert replayed(other)
    assert scene.seen.attempts == 2


def test_rejection_holds_whatever_a_call_costs(scene: Scene) -> None:
    reject(scene)
    assert replayed(scene.call(cost=Cost(tokens=1e6)))
