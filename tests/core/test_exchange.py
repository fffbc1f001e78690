from __future__ import annotations

import pytest

from tests.core.scripted_call import ExchangeDriver, ScriptedQueue, names, waiting
from tests.core.values import INVALID, OK, OUTAGE, REFUSED, TIMEOUT
from tidegate.core import events
from tidegate.core.exchange import AttemptResult, CallPolicy, Ending, Send, StartedExchange
from tidegate.core.values import Cause, Kind, Outcome

SDK = CallPolicy(max_wait=60.0)
OWN = CallPolicy(max_wait=60.0, attempts=3)
OVERLOADED = Outcome(Kind.OVERLOADED, Cause.OVERLOAD)


def told(queue: ScriptedQueue, kind: type[events.Event]) -> list[tuple[object, ...]]:
    return [facts for event, facts in queue.told if event is kind]


@pytest.fixture
def queue() -> ScriptedQueue:
    return ScriptedQueue()


@pytest.fixture
def shut() -> ScriptedQueue:
    queue = ScriptedQueue()
    queue.open = False
    return queue


def test_a_call_that_may_go_is_sent_and_answered(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    assert isinstance(driver.effect, Send)
    driver.reply(2.0, OK, response="hello")
    assert driver.ended is not None
    assert (driver.ended.ending, driver.ended.waited) == (Ending.ANSWERED, 0.0)
    assert driver.ended.attempt is not None
    assert driver.ended.attempt.response == "hello"


def test_it_stands_with_its_deadline(queue: ScriptedQueue) -> None:
    ExchangeDriver(queue, SDK, now=5.0)
    assert queue.log[0] == ("stand", 5.0, 65.0)


def test_it_waits_as_long_as_its_seat_says_and_looks_again(shut: ScriptedQueue) -> None:
    shut.until = 7.0
    driver = ExchangeDriver(shut, SDK)
    assert driver.effect == waiting(7.0)
    shut.until = None
    assert driver.wait(7.0) == waiting(None)
    shut.open = True
    assert isinstance(driver.wait(9.0), Send)
    driver.reply(10.0, OK)
    assert driver.ended is not None
    assert driver.ended.waited == 9.0


@pytest.mark.parametrize("outcome", [REFUSED, OVERLOADED])
def test_a_refusal_for_want_of_capacity_goes_back_to_the_head_and_spends_no_attempt(
    queue: ScriptedQueue, outcome: Outcome
) -> None:
    driver = ExchangeDriver(queue, SDK)
    for now in range(1, 40):
        assert isinstance(driver.reply(float(now), outcome), Send)
    driver.reply(40.0, OK)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.ANSWERED
    assert [entry for entry in queue.log if entry[0] == "stand"] == [("stand", 0.0, 60.0)]
    assert ("settle", 1, outcome.kind.value, True) in queue.log


def test_a_refused_call_waits_until_it_is_let_in_again(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    queue.open = False
    assert driver.reply(1.0, REFUSED) == waiting(None)
    queue.open = True
    driver.wait(4.0)
    driver.reply(5.0, OK)
    assert driver.ended is not None
    assert driver.ended.waited == 3.0


def test_a_transient_failure_is_handed_back_where_the_sdk_owns_it(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, OUTAGE, response="500")
    assert driver.ended is not None
    assert driver.ended.ending is Ending.HANDED_BACK
    assert driver.ended.attempt is not None
    assert driver.ended.attempt.response == "500"


def test_a_transient_failure_is_repeated_with_full_jitter_where_we_own_it(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    assert driver.reply(1.0, TIMEOUT) == waiting(1.5)
    assert isinstance(driver.wait(1.5), Send)
    assert driver.reply(2.0, OUTAGE) == waiting(3.0)
    assert isinstance(driver.wait(3.0), Send)
    driver.reply(4.0, TIMEOUT)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.HANDED_BACK


def test_a_wake_up_does_not_cut_a_back_off_short(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, TIMEOUT)
    assert driver.wait(1.1) == waiting(1.5)


def test_a_back_off_is_no_waiting_for_capacity(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, TIMEOUT)
    driver.wait(1.5)
    driver.reply(2.0, OK)
    assert driver.ended is not None
    assert driver.ended.waited == 0.0


def test_a_back_off_ends_at_the_deadline_with_the_last_answer(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, CallPolicy(max_wait=1.2, attempts=3))
    assert driver.reply(1.0, TIMEOUT) == waiting(1.2)
    driver.wait(1.2)
    assert driver.ended is not None
    assert (driver.ended.ending, queue.given) == (Ending.GIVEN_UP, 1)


def test_a_call_that_is_recalled_in_its_back_off_ends_with_the_last_answer(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    assert driver.reply(1.0, TIMEOUT) == waiting(1.5)
    queue.recalled = True
    driver.wait(1.1)
    assert driver.ended is not None
    assert (driver.ended.ending, queue.given) == (Ending.GIVEN_UP, 1)


def test_refusals_between_transient_failures_spend_none_of_their_attempts(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, TIMEOUT)
    driver.wait(1.5)
    driver.reply(2.0, REFUSED)
    assert driver.reply(3.0, TIMEOUT) == waiting(4.0)


def test_the_failure_of_the_probe_is_handed_to_nobody(queue: ScriptedQueue) -> None:
    queue.probing = True
    driver = ExchangeDriver(queue, SDK)
    for now in range(1, 10):
        assert isinstance(driver.reply(float(now), OUTAGE), Send)
    assert queue.given == 10


def test_a_probe_that_fails_for_another_reason_is_handed_back(queue: ScriptedQueue) -> None:
    queue.probing = True
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, TIMEOUT)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.HANDED_BACK


@pytest.mark.parametrize("outcome", [REFUSED, OUTAGE, TIMEOUT])
@pytest.mark.parametrize("probing", [False, True])
def test_a_body_that_can_be_sent_only_once_is_handed_back(
    queue: ScriptedQueue, outcome: Outcome, probing: bool
) -> None:
    queue.probing = probing
    driver = ExchangeDriver(queue, CallPolicy(max_wait=60.0, attempts=3, replayable=False))
    driver.reply(1.0, outcome)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.HANDED_BACK


@pytest.mark.parametrize("outcome", [INVALID, Outcome(Kind.QUOTA_EXHAUSTED), Outcome(Kind.DAILY_LIMIT)])
def test_what_no_attempt_can_mend_ends_the_call_at_once(queue: ScriptedQueue, outcome: Outcome) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, outcome)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.GIVEN_UP


def test_a_deadline_before_the_first_attempt_expires_the_call(shut: ScriptedQueue) -> None:
    driver = ExchangeDriver(shut, SDK)
    driver.wait(60.0)
    assert driver.ended is not None
    assert (driver.ended.ending, driver.ended.attempt, driver.ended.waited) == (Ending.EXPIRED, None, 60.0)
    assert driver.ended.gate == "pause"


def test_a_call_that_may_not_wait_expires_where_it_stands(shut: ScriptedQueue) -> None:
    driver = ExchangeDriver(shut, CallPolicy(max_wait=0.0))
    assert driver.ended is not None
    assert driver.ended.ending is Ending.EXPIRED
    assert shut.places == 0


def test_a_deadline_after_a_refusal_gives_the_refusal_back(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    queue.open = False
    driver.reply(1.0, REFUSED, response="429")
    driver.wait(59.9)
    driver.wait(60.0)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.GIVEN_UP
    assert driver.ended.attempt is not None
    assert driver.ended.attempt.response == "429"


def test_a_refusal_that_comes_after_the_deadline_is_given_up(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(60.0, REFUSED)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.GIVEN_UP


def test_an_answer_that_comes_after_the_deadline_is_an_answer(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(600.0, OK)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.ANSWERED


def test_the_permit_of_a_streaming_answer_goes_with_the_stream(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, OK, streaming=True)
    assert queue.log[1:] == [("learn", 1, "ok"), ("leave",)]


def standing(queue: ScriptedQueue) -> ExchangeDriver:
    queue.open = False
    return ExchangeDriver(queue, OWN)


def sending(queue: ScriptedQueue) -> ExchangeDriver:
    return ExchangeDriver(queue, OWN)


def standing_again(queue: ScriptedQueue) -> ExchangeDriver:
    driver = sending(queue)
    queue.open = False
    driver.reply(1.0, REFUSED)
    return driver


def sending_again(queue: ScriptedQueue) -> ExchangeDriver:
    driver = sending(queue)
    driver.reply(1.0, REFUSED)
    return driver


def backing_off(queue: ScriptedQueue) -> ExchangeDriver:
    driver = sending(queue)
    driver.reply(1.0, TIMEOUT)
    return driver


@pytest.mark.parametrize("reach", [standing, sending, standing_again, sending_again, backing_off])
@pytest.mark.parametrize("how", ["closed", "raised"])
def test_a_driver_that_stops_early_gives_place_and_permit_back_once(queue: ScriptedQueue, reach, how: str) -> None:
    driver = reach(queue)
    if how == "closed":
        driver.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            driver.flow.throw(KeyboardInterrupt())
    assert (queue.permits, queue.places) == (set(), 0)
    abandoned = [entry for entry in queue.log if entry[0] == "abandon"]
    assert len(abandoned) == (1 if reach in (sending, sending_again) else 0)
    before = list(queue.log)
    driver.close()
    assert queue.log == before


@pytest.mark.parametrize("outcome", [OK, INVALID, OUTAGE])
def test_a_call_that_ended_holds_nothing(queue: ScriptedQueue, outcome: Outcome) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, outcome)
    assert (queue.permits, queue.places) == (set(), 0)
    assert queue.log.count(("leave",)) == 1


def test_an_answered_call_tells_its_beginning_and_its_end(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, REFUSED)
    driver.reply(3.0, OK)
    assert queue.told == [
        (events.RequestStarted, (0.0,)),
        (events.RequestRetrying, (1, Kind.RATE_LIMIT, Cause.RATE, None)),
        (events.RequestCompleted, (2, 3.0, None)),
    ]


def test_a_failed_call_tells_whether_the_wait_ended_it(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(61.0, REFUSED)
    assert queue.told[-1] == (events.RequestFailed, (1, 61.0, Kind.RATE_LIMIT, Cause.RATE, True, None, None))
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, OUTAGE)
    assert queue.told[-1] == (events.RequestFailed, (1, 1.0, Kind.TRANSIENT, Cause.OUTAGE, False, None, None))


def test_an_expired_call_tells_its_wait_and_its_deadline(shut: ScriptedQueue) -> None:
    ExchangeDriver(shut, SDK).wait(61.0)
    assert shut.told == [
        (events.RequestWaited, (61.0, "pause")),
        (events.QueueDeadline, (61.0, "pause", 61.0)),
        (events.RequestFailed, (0, 61.0, Kind.RATE_LIMIT, Cause.NONE, True, None, "pause")),
    ]


def test_retry_is_told_when_it_is_sent_and_not_where_the_call_was_given_up_before(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    queue.open = False
    driver.reply(1.0, REFUSED._replace(status=429))
    assert names(queue.told) == ["RequestStarted"]
    driver.wait(61.0)
    assert names(queue.told) == ["RequestStarted", "RequestWaited", "QueueDeadline", "RequestFailed"]
    assert queue.told[-2:] == [
        (events.QueueDeadline, (61.0, "pause", 60.0)),
        (events.RequestFailed, (1, 61.0, Kind.RATE_LIMIT, Cause.RATE, True, 429, "pause")),
    ]


def test_each_wait_is_told_with_its_own_length_and_the_gate_that_was_last_seen_closed(shut: ScriptedQueue) -> None:
    driver = ExchangeDriver(shut, SDK)
    shut.gate = "quota requests"
    driver.wait(4.0)
    shut.open, shut.gate = True, ""
    driver.wait(7.0)
    shut.open = False
    driver.reply(9.0, REFUSED)
    shut.open = True
    driver.wait(14.0)
    assert told(shut, events.RequestWaited) == [(7.0, "quota requests"), (5.0, "queue")]


def test_a_call_that_passes_at_once_or_may_not_wait_tells_no_wait(queue: ScriptedQueue, shut: ScriptedQueue) -> None:
    ExchangeDriver(queue, SDK).reply(1.0, OK)
    ExchangeDriver(shut, CallPolicy(max_wait=0.0))
    assert names(queue.told) == ["RequestStarted", "RequestCompleted"]
    assert names(shut.told) == ["QueueDeadline", "RequestFailed"]


def test_a_back_off_is_a_wait_of_its_own(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, TIMEOUT)
    driver.wait(1.5)
    driver.reply(2.0, OK)
    assert told(queue, events.RequestWaited) == [(0.5, "backoff")]


def test_what_is_told_of_an_answer_names_its_status(queue: ScriptedQueue) -> None:
    refused, answered, failed = (
        outcome._replace(status=status) for outcome, status in ((REFUSED, 429), (OK, 200), (INVALID, 400))
    )
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, refused)
    driver.reply(2.0, answered)
    ExchangeDriver(queue, SDK).reply(1.0, failed)
    ends = (events.RequestRetrying, events.RequestCompleted, events.RequestFailed)
    assert [
        facts[5] if event is events.RequestFailed else facts[-1] for event, facts in queue.told if event in ends
    ] == [429, 200, 400]


def test_a_call_that_passed_at_once_and_was_refused_goes_on_from_there(queue: ScriptedQueue) -> None:
    permit = queue.pass_at_once()
    queue.open = False
    driver = ExchangeDriver(queue, SDK, now=3.0, begun=StartedExchange(permit, AttemptResult(REFUSED), 1.0))
    assert driver.effect == waiting(None)
    assert queue.log == [("settle", 1, "rate_limit", True)]
    driver.wait(61.0)
    assert driver.ended is not None
    assert (driver.ended.ending, driver.ended.waited) == (Ending.GIVEN_UP, 58.0)


def test_a_call_that_passed_at_once_and_failed_is_handed_back(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(
        queue, SDK, now=3.0, begun=StartedExchange(queue.pass_at_once(), AttemptResult(OUTAGE), 1.0)
    )
    assert driver.ended is not None
    assert (driver.ended.ending, queue.permits) == (Ending.HANDED_BACK, set())


def test_a_refusal_counts_as_absorbed_once_its_call_is_sent_again(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    queue.open = False
    driver.reply(1.0, REFUSED)
    assert queue.counted == []
    queue.open = True
    driver.wait(2.0)
    driver.reply(3.0, OK)
    assert queue.counted == ["resent after rate_limit"]


def test_an_attempt_after_a_back_off_is_one_of_the_same_call(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    driver.reply(1.0, OUTAGE)
    driver.wait(30.0)
    driver.reply(31.0, OK)
    assert queue.counted == ["resent after transient"]


def test_a_call_counts_as_given_up_with_or_without_an_attempt(shut: ScriptedQueue, queue: ScriptedQueue) -> None:
    ExchangeDriver(shut, SDK).wait(60.0)
    driver = ExchangeDriver(queue, SDK)
    queue.open = False
    driver.reply(1.0, REFUSED)
    driver.wait(60.0)
    assert (shut.counted, queue.counted) == (["given up"], ["given up"])
    assert (shut.begun, queue.begun) == ([], [(1, 0, 0.0)])


def test_call_that_its_caller_ends_counts_once_wherever_it_is(shut: ScriptedQueue, queue: ScriptedQueue) -> None:
    ExchangeDriver(shut, SDK).close()
    assert shut.counted == ["left"]
    # In flight, the permit counts as abandoned.
    ExchangeDriver(queue, SDK).close()
    assert (queue.counted, queue.log[-2:]) == ([], [("abandon", 1), ("leave",)])


def test_call_ended_in_its_backoff_or_after_a_refusal_counts_as_left(queue: ScriptedQueue) -> None:
    backing_off = ExchangeDriver(queue, OWN)
    backing_off.reply(1.0, OUTAGE)
    backing_off.close()
    assert queue.counted == ["left"]


def test_call_with_a_result_is_not_left(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, OK)
    driver.close()
    assert queue.counted == []


@pytest.mark.parametrize("outcome", [INVALID, TIMEOUT], ids=lambda outcome: outcome.cause.value)
def test_what_is_handed_back_for_another_reason_is_not_given_up(queue: ScriptedQueue, outcome: Outcome) -> None:
    ExchangeDriver(queue, SDK).reply(1.0, outcome)
    assert queue.counted == ["failed"]
