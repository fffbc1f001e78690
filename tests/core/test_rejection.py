"""A key that the provider rejects as a whole: each call gets its own answer, and some wait for a reset."""

from __future__ import annotations

import logging

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import INVALID, OK, OUTAGE, REFUSED
from tidegate.admission.registry import NotReady
from tidegate.core.events import Event, KeyAccepted, KeyRejected
from tidegate.core.values import Cause, Kind, Outcome

NO_MONEY = Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY, status=429, of_key=True)
WRONG_KEY = Outcome(Kind.PERMANENT, Cause.AUTH, status=401, of_key=True)
FORBIDDEN = Outcome(Kind.PERMANENT, Cause.AUTH, status=403, of_key=True)


def day(reset: float | None) -> Outcome:
    return Outcome(Kind.DAILY_LIMIT, Cause.DAY, reset, status=429, of_key=True)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def reject(scene: Scene, outcome: Outcome = NO_MONEY) -> Caller:
    caller = scene.call()
    caller.reply(outcome)
    return caller


def own_answer(caller: Caller) -> bool:
    return caller.ended is not None and caller.ended.attempt is not None and caller.ended.attempt.response == "own"


@pytest.mark.parametrize("outcome", [NO_MONEY, WRONG_KEY, day(None)])
def test_each_call_gets_its_own_answer(scene: Scene, outcome: Outcome) -> None:
    assert all(own_answer(reject(scene, outcome)) for _ in range(50))
    assert (scene.seen.attempts, scene.seen.failed_calls) == (50, 50)


@pytest.mark.parametrize("outcome", [NO_MONEY, WRONG_KEY])
def test_rejection_of_two_requests_costs_no_later_call(scene: Scene, outcome: Outcome) -> None:
    """A gateway changes its key: a loop that continues after an error loses these two calls."""
    ends = [scene.call().reply(outcome if number in (3, 4) else OK) for number in range(12)]
    assert ends == ["ended"] * 12
    assert (scene.seen.answered, scene.seen.attempts) == (10, 12)


def test_two_answers_in_a_row_reject_the_key(scene: Scene) -> None:
    reject(scene)
    assert scene.seen.rejected == ""
    reject(scene)
    assert scene.seen.rejected == "money"


def test_rejections_of_calls_sent_together_confirm_nothing(scene: Scene) -> None:
    """Two too expensive ones may be under way at once, and the answers of the others still on their way."""
    together = [scene.call() for _ in range(3)]
    together[0].reply(NO_MONEY)
    together[1].reply(NO_MONEY)
    assert scene.seen.rejected == ""


def test_success_between_two_rejections_begins_again(scene: Scene) -> None:
    earlier = scene.call()
    reject(scene)
    earlier.reply(OK)
    reject(scene)
    assert scene.seen.rejected == ""


@pytest.mark.parametrize(
    "outcome", [FORBIDDEN, NO_MONEY._replace(status=403), INVALID, WRONG_KEY._replace(of_key=False)]
)
def test_answer_to_one_request_rejects_no_key(scene: Scene, outcome: Outcome) -> None:
    reject(scene, outcome)
    reject(scene, outcome)
    assert scene.seen.rejected == ""


@pytest.mark.constants(START_CONCURRENCY=3)
def test_thousand_calls_that_wait_for_a_dead_key_end_within_a_few_round_trips() -> None:
    scene = Scene()
    calls = [scene.call() for _ in range(1000)]
    most = 0
    while under_way := [each for each in calls if each.poll() == "sent"]:
        most = max(most, len(under_way))
        scene.clock.advance(0.3)
        for each in under_way:
            each.reply(WRONG_KEY)
    assert all(own_answer(each) for each in calls)
    assert scene.clock() <= 10 * 0.3
    assert most > 100


@pytest.mark.constants(START_CONCURRENCY=1)
def test_calls_go_beyond_learned_limits_only_as_their_number_is_rejected() -> None:
    scene = Scene()
    calls = [scene.call() for _ in range(40)]
    in_flight = []
    for _ in range(4):
        under_way = [each for each in calls if each.poll() == "sent"]
        in_flight.append(len(under_way))
        for each in under_way:
            each.reply(NO_MONEY)
    assert in_flight == [1, 1, 4, 12]


@pytest.mark.constants(START_CONCURRENCY=1)
def test_calls_keep_to_the_slots_again_when_one_is_answered() -> None:
    scene = Scene()
    calls = [scene.call() for _ in range(40)]
    for number in range(2):
        calls[number].poll()
        calls[number].reply(NO_MONEY)
    sent = [each for each in calls if each.poll() == "sent"]
    for each in sent:
        each.reply(OK)
    assert scene.seen.rejected == ""
    assert len([each for each in calls if each.poll() == "sent"]) <= 8


@pytest.mark.parametrize("outcome", [OK, REFUSED, FORBIDDEN])
def test_other_answer_of_a_later_attempt_ends_the_rejection(scene: Scene, outcome: Outcome) -> None:
    reject(scene)
    reject(scene)
    scene.call().reply(outcome)
    assert scene.seen.rejected == ""


def test_failure_on_the_way_does_not_end_the_rejection(scene: Scene) -> None:
    reject(scene)
    reject(scene)
    scene.call().reply(OUTAGE)
    assert scene.seen.rejected == "money"


def test_slow_success_of_an_attempt_sent_since_ends_the_rejection(scene: Scene) -> None:
    """Answers take long, and rejections come at random."""
    reject(scene)
    scene.clock.advance(1.0)
    slow = scene.call()
    reject(scene)
    assert scene.seen.rejected == "money"
    scene.clock.advance(20.0)
    slow.reply(OK)
    assert scene.seen.rejected == ""


def test_success_of_an_attempt_sent_before_does_not_end_the_rejection(scene: Scene) -> None:
    earlier = scene.call()
    scene.clock.advance(1.0)
    reject(scene)
    reject(scene)
    earlier.reply(OK)
    assert scene.seen.rejected == "money"


def test_day_quota_with_reset_within_deadline_is_waited_for(scene: Scene) -> None:
    """Uncapped by `MAX_PAUSE_SECONDS`: the provider named the time."""
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
    assert own_answer(reject(scene, day(4000.0)))
    assert scene.call(max_wait=5000.0).state == "waiting"


@pytest.mark.constants(START_CONCURRENCY=1)
@pytest.mark.parametrize("confirmed", [False, True])
def test_call_without_time_for_the_reset_is_sent_past_those_that_wait(confirmed: bool) -> None:
    """The day may be full again at any time."""
    scene = Scene()
    first = scene.call(max_wait=3600.0)
    before = scene.call(max_wait=10.0)
    first.reply(day(1800.0))
    if confirmed:
        assert before.poll() == "sent"
        before.reply(day(1800.0))
        assert own_answer(before)
    after = scene.call(max_wait=600.0)
    assert after.state == "sent"
    after.reply(OK)
    assert first.poll() == "sent"


def test_reset_that_moves_beyond_a_deadline_lets_that_call_go(scene: Scene) -> None:
    deadlines = (10_000.0, 2000.0, 1850.0)
    calls = [scene.call(max_wait=each) for each in deadlines]
    for each in calls:
        each.reply(day(1800.0))
    states = []
    for named in (1800.0, 1900.0, 2500.0):
        scene.call(max_wait=5.0).reply(day(named))
        states.append([each.poll() for each in calls])
    assert states == [["waiting"] * 3, ["waiting", "waiting", "sent"], ["waiting", "sent", "sent"]]


def test_day_quota_waited_for_in_vain_is_believed_no_more(scene: Scene) -> None:
    """Gemini names seconds for a quota that comes back at midnight."""
    first = reject(scene, day(13.0))
    second = scene.call()
    for _ in range(2):
        assert first.state == "waiting"
        scene.clock.advance(13.0)
        assert first.poll() == "sent"
        first.reply(day(13.0))
    assert own_answer(first)
    assert second.poll() == "sent"
    second.reply(day(13.0))
    assert own_answer(second)


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


def test_rejected_key_tells_its_reason_and_its_end(scene: Scene) -> None:
    told: list[Event] = []
    scene.registry.subscribe(told.append)
    reject(scene, WRONG_KEY)
    reject(scene, WRONG_KEY)
    assert (scene.seen.rejected, scene.seen.rejected_for) == ("auth", 0.0)
    scene.call().reply(OK)
    begun = next(each for each in told if isinstance(each, KeyRejected))
    assert (begun.kind, begun.cause, begun.until, begun.status) == (Kind.PERMANENT, Cause.AUTH, None, 401)
    assert next(each for each in told if isinstance(each, KeyAccepted)).rejected == 2


def test_rejection_is_one_warning_with_key_and_reason(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tidegate"):
        for _ in range(8):
            reject(scene)
        scene.call().reply(OK)
    (record,) = (each for each in caplog.records if each.name == "tidegate")
    assert record.levelno == logging.WARNING
    assert "provider.test" in record.getMessage()
    assert "money (status 429" in record.getMessage()


def test_key_that_is_rejected_again_and_again_is_one_record_in_five_minutes(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """One token of several is wrong: each rejection ends with the next answer."""
    for _ in range(20):
        reject(scene)
        reject(scene)
        scene.call().reply(OK)
        scene.clock.advance(20.0)
    assert len([each for each in caplog.records if each.name == "tidegate"]) == 2


def test_try_admit_of_a_rejected_key_says_until_when(scene: Scene) -> None:
    reject(scene)
    reject(scene)
    answer = scene.registry.try_admit(scene.seen.key)
    assert isinstance(answer, NotReady)
    assert (answer.gate, answer.ready_at) == ("rejected", 1.0)
    assert answer.rejection == NO_MONEY
    scene.clock.advance(1.0)
    assert scene.registry.try_admit(scene.seen.key)
    later = Scene()
    reject(later, day(432.0))
    answer = later.registry.try_admit(later.seen.key)
    assert isinstance(answer, NotReady)
    assert (answer.gate, answer.ready_at) == ("quota day", 432.0)
