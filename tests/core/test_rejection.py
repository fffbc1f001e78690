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


def reject(scene: Scene, outcome: Outcome = NO_MONEY, credential: str = "") -> Caller:
    caller = scene.call(credential=credential)
    caller.reply(outcome)
    return caller


def reject_twice(scene: Scene, outcome: Outcome = NO_MONEY) -> Caller:
    reject(scene, outcome)
    return reject(scene, outcome)


def reject_for_long(scene: Scene, outcome: Outcome = NO_MONEY, credential: str = "") -> None:
    """Let the provider give nothing but this answer for longer than a short rejection lasts."""
    reject(scene, outcome, credential)
    scene.clock.advance(6.0)
    reject(scene, outcome, credential)


def waiting_behind(scene: Scene, count: int, outcome: Outcome = NO_MONEY, credential: str = "") -> list[Caller]:
    """Let calls wait behind one that asks and is rejected, until one of them asks and is rejected; return the rest."""
    asking, *others = (scene.call(credential=credential) for _ in range(count + 2))
    for each in (asking, others.pop(0)):
        assert each.poll() == "sent"
        scene.clock.advance(0.1)
        each.reply(outcome)
    for each in others:
        each.poll()
    return others


def of(credential: str, outcome: Outcome = WRONG_KEY) -> Outcome:
    """The rejection of a call that carries a credential."""
    assert outcome.answer is not None
    return outcome._replace(answer=outcome.answer._replace(credential=credential))


def test_single_rejection_is_given_to_nobody(scene: Scene) -> None:
    reject(scene)
    assert scene.call().state == "sent"
    assert scene.seen.rejected == ""
    assert scene.seen.replayed == 0


def test_calls_ask_one_at_a_time_while_a_rejection_is_young(scene: Scene) -> None:
    reject(scene)
    others = [scene.call() for _ in range(20)]
    for number in range(10):
        assert [each.poll() for each in others] == ["ended"] * number + ["sent"] + ["waiting"] * (19 - number)
        others[number].reply(NO_MONEY)
        assert not replayed(others[number])
        scene.clock.advance(0.1)
    assert others[10].poll() == "sent"
    others[10].reply(OK)
    assert {each.poll() for each in others[11:]} == {"sent", "waiting"}
    assert (scene.seen.rejected, scene.seen.replayed) == ("", 0)


@pytest.mark.parametrize("outcome", [NO_MONEY, WRONG_KEY])
def test_rejection_of_two_requests_costs_no_later_call(scene: Scene, outcome: Outcome) -> None:
    """A gateway changes its key: a loop that continues after an error loses these two calls."""
    ends = [scene.call().reply(outcome if number in (3, 4) else OK) for number in range(12)]
    assert ends == ["ended"] * 12
    assert (scene.seen.answered, scene.seen.attempts, scene.seen.replayed) == (10, 12, 0)


def test_each_call_of_a_loop_asks_a_dead_key_itself(scene: Scene) -> None:
    """It may work again at any time, and nobody waits for an answer."""
    for _ in range(50):
        scene.clock.advance(1.0)
        assert not replayed(reject(scene))
    scene.call().reply(OK)
    assert (scene.seen.attempts, scene.seen.answered, scene.seen.rejected) == (51, 1, "")


def test_call_that_began_after_the_asking_one_is_given_nothing(scene: Scene) -> None:
    """Without tidegate its request would be sent later than the rejected one."""
    reject_for_long(scene)
    asking = scene.call()
    scene.clock.advance(0.1)
    later = [scene.call() for _ in range(3)]
    asking.reply(NO_MONEY)
    assert [each.poll() for each in later] == ["sent", "waiting", "waiting"]
    scene.clock.advance(0.1)
    later[0].reply(NO_MONEY)
    assert [each.poll() for each in later] == ["ended", "sent", "waiting"]
    scene.clock.advance(0.1)
    later[1].reply(NO_MONEY)
    assert later[2].poll() == "ended"
    assert [replayed(each) for each in later] == [False, False, True]


@pytest.mark.parametrize("outcome", [OK, FORBIDDEN])
def test_other_answer_to_the_call_that_would_confirm_it_ends_a_rejection(scene: Scene, outcome: Outcome) -> None:
    reject(scene)
    asking = scene.call()
    others = [scene.call() for _ in range(3)]
    asking.reply(outcome)
    assert {each.poll() for each in others} == {"sent"}


def test_slow_call_that_would_confirm_a_rejection_holds_nobody_for_long(scene: Scene) -> None:
    reject(scene)
    scene.call()
    other = scene.call()
    assert other.until is not None
    scene.clock.advance(0.75)
    assert other.poll() == "sent"


def test_rejections_of_calls_sent_together_confirm_nothing(scene: Scene) -> None:
    """Two too expensive ones may be under way at once, and the answers of the others still on their way."""
    together = [scene.call() for _ in range(3)]
    together[0].reply(NO_MONEY)
    together[1].reply(NO_MONEY)
    assert scene.seen.rejected == ""
    assert scene.call().state == "sent"


def test_success_between_two_rejections_begins_again(scene: Scene) -> None:
    earlier = scene.call()
    reject(scene)
    earlier.reply(OK)
    reject(scene)
    assert scene.seen.rejected == ""
    assert scene.call().state == "sent"


def test_each_tenth_rejected_call_costs_no_other(scene: Scene) -> None:
    ends = [scene.call().reply(NO_MONEY if number % 10 == 3 else OK) for number in range(60)]
    assert ends == ["ended"] * 60
    assert (scene.seen.answered, scene.seen.replayed) == (54, 0)


def test_rejection_is_given_to_the_same_credential_only(scene: Scene) -> None:
    reject_for_long(scene, of("old"), "old")
    asking, old, new = (scene.call(credential=each) for each in ("old", "old", "new"))
    asking.reply(of("old"))
    assert old.poll() == "sent"
    old.reply(of("old"))
    assert new.poll() == "sent"
    assert all(replayed(each) for each in waiting_behind(scene, 3, of("old"), "old"))


def test_rejection_ends_with_the_success_of_another_credential(scene: Scene) -> None:
    reject(scene, of("old"), "old")
    reject(scene, of("old"), "old")
    scene.call(credential="new").reply(OK)
    assert scene.call(credential="old").state == "sent"
    assert scene.seen.rejected == ""


def test_queued_call_with_another_credential_is_not_given_the_rejection() -> None:
    scene = Scene(start_concurrency=2)
    sent = [scene.call(credential="old") for _ in range(2)]
    old, new = scene.call(credential="old"), scene.call(credential="new")
    sent[0].reply(of("old"))
    assert old.poll() == "sent"
    old.reply(of("old"))
    assert scene.seen.rejected == "auth"
    assert new.poll() == "sent"


def test_refresh_at_each_rejection_loses_no_call(scene: Scene) -> None:
    """A token lives for ten calls; the caller takes a new one at a rejection and asks again."""
    token, lost = 0, 0
    for number in range(100):
        for _ in range(2):
            caller = scene.call(credential=str(token))
            if caller.state == "sent":
                caller.reply(of(str(token)) if token < number // 10 else OK)
            if not (replayed(caller) or token < number // 10):
                break
            token = number // 10
        else:
            lost += 1
    assert lost == 0


def test_dead_key_with_a_thousand_queued_calls_sends_few() -> None:
    scene = Scene(start_concurrency=3)
    calls = [scene.call(credential="dead") for _ in range(1000)]
    while under_way := [each for each in calls if each.poll() == "sent"]:
        scene.clock.advance(0.3)
        under_way[0].reply(of("dead"))
    assert {each.state for each in calls} == {"ended"}
    assert scene.clock() < 8.0
    assert scene.seen.attempts <= 24


@pytest.mark.parametrize("outcome", [NO_MONEY, WRONG_KEY, day(None)])
def test_dead_key_answers_those_that_wait(scene: Scene, outcome: Outcome) -> None:
    reject_for_long(scene, outcome)
    others = waiting_behind(scene, 40, outcome)
    assert {each.poll() for each in others} == {"ended"}
    assert all(replayed(each) for each in others)
    assert (scene.seen.attempts, scene.seen.replayed, scene.seen.calls) == (4, 40, 44)
    assert scene.seen.failed_calls == 44


@pytest.mark.parametrize("outcome", [FORBIDDEN, NO_MONEY_403, INVALID, WRONG_KEY._replace(answer=None)])
def test_answer_of_one_request_is_replayed_to_nobody(scene: Scene, outcome: Outcome) -> None:
    reject_twice(scene, outcome)
    assert scene.call().state == "sent"
    assert scene.seen.rejected == ""


def test_dead_key_wakes_those_in_line_at_once(scene: Scene) -> None:
    sent = [scene.call() for _ in range(4)]
    waiting = [scene.call() for _ in range(20)]
    assert {each.state for each in waiting} == {"waiting"}
    sent[0].reply(NO_MONEY)
    assert waiting[0].poll() == "sent"
    scene.clock.advance(6.0)
    waiting.pop(0).reply(NO_MONEY)
    assert waiting[0].poll() == "sent"
    scene.clock.advance(0.1)
    waiting.pop(0).reply(NO_MONEY)
    assert all(each.woken for each in waiting)
    assert {each.poll() for each in waiting} == {"ended"}
    assert all(replayed(each) for each in waiting)
    assert scene.seen.waiting == 0


@pytest.mark.parametrize("outcome", [ABANDONED, OUTAGE])
def test_asking_call_that_came_to_nothing_lets_the_next_ask(scene: Scene, outcome: Outcome) -> None:
    reject_twice(scene)
    asking, other = scene.call(), scene.call()
    asking.reply(outcome)
    assert other.poll() == "sent"


def test_asking_call_that_is_not_rejected_quickly_was_let_in(scene: Scene) -> None:
    """An answer may take minutes: it must not hold up the key that works again."""
    reject_twice(scene)
    asking, other = scene.call(), scene.call()
    assert (asking.state, other.state) == ("sent", "waiting")
    scene.clock.advance(0.25)
    assert other.poll() == "sent"
    assert [scene.call().state for _ in range(2)] == ["sent"] * 2


def behind_a_slow_asking_one(count: int) -> tuple[Scene, Caller, list[Caller]]:
    """A rejected key with two slots, the call that asks it again, and `count` calls that came 0.3 s later."""
    scene = Scene(start_concurrency=2)
    reject_for_long(scene)
    asking = scene.call()
    scene.clock.advance(0.3)
    return scene, asking, [scene.call() for _ in range(count)]


def test_calls_behind_a_slow_asking_one_keep_to_the_slots() -> None:
    """It may be rejected yet: then those that came after it are not all sent."""
    scene, asking, others = behind_a_slow_asking_one(60)
    assert [each.state for each in others].count("sent") == 1
    scene.clock.advance(0.1)
    others[0].reply(NO_MONEY)
    asking.reply(NO_MONEY)
    assert others[1].poll() == "sent"
    scene.clock.advance(0.1)
    others[1].reply(NO_MONEY)
    assert {each.poll() for each in others} == {"ended"}
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
    reject_twice(scene)
    scene.clock.advance(1.0)
    asking = scene.call()
    asking.reply(outcome)
    assert scene.seen.rejected == ""


def test_success_of_an_earlier_attempt_does_not_end_the_rejection(scene: Scene) -> None:
    earlier = scene.call()
    reject_twice(scene)
    earlier.reply(OK)
    assert scene.seen.rejected == "money"


def test_scripted_call_is_sent_to_a_rejected_key(scene: Scene) -> None:
    reject_twice(scene)
    assert scene.call().state == "sent"
    assert scene.call(mocked=True).state == "sent"
    assert scene.call().state == "waiting"


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
    second = scene.call(max_wait=3600.0)
    assert scene.call(max_wait=5000.0).state == "waiting"
    second.reply(day(4000.0))
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
    reject_twice(scene, WRONG_KEY)
    assert (scene.seen.rejected, scene.seen.rejected_for) == ("auth", 0.0)
    asking = scene.call()
    assert (scene.seen.rejected_for, scene.seen.gate) == (0.25, "rejected")
    scene.clock.advance(6.0)
    asking.reply(WRONG_KEY)
    waiting_behind(scene, 1, WRONG_KEY)
    scene.call().reply(OK)
    begun = next(each for each in told if isinstance(each, KeyRejected))
    assert (begun.kind, begun.cause, begun.until, begun.status) == (Kind.PERMANENT, Cause.AUTH, None, 401)
    assert next(each for each in told if isinstance(each, KeyAccepted)).replayed == 1
    assert sum(isinstance(each, RequestFailed) for each in told) == 6


def test_rejection_is_one_warning_with_key_reason_and_count(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        reject_for_long(scene)
        waiting_behind(scene, 7)
        scene.clock.advance(1.0)
        waiting_behind(scene, 1)
        scene.clock.advance(1.0)
        scene.call().reply(OK)
    (line,) = [each.getMessage() for each in caplog.records if each.name == "tidegate"]
    assert "provider.test" in line
    assert "money (status 429" in line
    assert "8 calls" in line


def test_try_admit_of_a_rejected_key_says_until_when(scene: Scene) -> None:
    reject_twice(scene)
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
    scene.clock.advance(5.0)
    assert other.poll() == "sent"
    asking, last = scene.call(), scene.call()
    other.reply(NO_MONEY)
    for each in (asking, last):
        assert each.poll() == "sent"
        scene.clock.advance(6.0)


def test_rejection_holds_whatever_a_call_costs(scene: Scene) -> None:
    reject_twice(scene)
    asking, other, dear = scene.call(), scene.call(), scene.call(cost=Cost(tokens=1e6))
    for each in (asking, other):
        assert each.poll() == "sent"
        scene.clock.advance(3.0)
        each.reply(NO_MONEY)
    assert dear.poll() == "ended"
    assert replayed(dear)
