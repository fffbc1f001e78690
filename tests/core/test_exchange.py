from __future__ import annotations

import pytest

from tests.core.scripted_call import ExchangeDriver, ScriptedQueue, waiting
from tests.core.values import OK, OUTAGE, REFUSED, TIMEOUT
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


def test_a_transient_failure_is_repeated_with_full_jitter_where_we_own_it(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, OWN)
    assert driver.reply(1.0, TIMEOUT) == waiting(1.5)
    assert isinstance(driver.wait(1.5), Send)
    assert driver.reply(2.0, OUTAGE) == waiting(3.0)
    assert isinstance(driver.wait(3.0), Send)
    driver.reply(4.0, TIMEOUT)
    assert driver.ended is not None
    assert driver.ended.ending is Ending.HANDED_BACK


def test_a_back_off_ends_at_the_deadline_with_the_last_answer(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, CallPolicy(max_wait=1.2, attempts=3))
    assert driver.reply(1.0, TIMEOUT) == waiting(1.2)
    driver.wait(1.2)
    assert driver.ended is not None
    assert (driver.ended.ending, queue.given) == (Ending.GIVEN_UP, 1)


def test_the_failure_of_the_probe_is_handed_to_nobody(queue: ScriptedQueue) -> None:
    queue.probing = True
    driver = ExchangeDriver(queue, SDK)
    for now in range(1, 10):
        assert isinstance(driver.reply(float(now), OUTAGE), Send)
    assert queue.given == 10


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


def test_a_deadline_before_the_first_attempt_expires_the_call(shut: ScriptedQueue) -> None:
    driver = ExchangeDriver(shut, SDK)
    driver.wait(60.0)
    assert driver.ended is not None
    assert (driver.ended.ending, driver.ended.attempt, driver.ended.waited) == (Ending.EXPIRED, None, 60.0)
    assert driver.ended.gate == "pause"


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


def test_an_answered_call_tells_its_beginning_and_its_end(queue: ScriptedQueue) -> None:
    driver = ExchangeDriver(queue, SDK)
    driver.reply(1.0, REFUSED)
    driver.reply(3.0, OK)
    assert queue.told == [
        (events.RequestStarted, (0.0,)),
        (events.RequestRetrying, (1, Kind.RATE_LIMIT, Cause.RATE, None)),
        (events.RequestCompleted, (2, 3.0, None)),
    ]


def test_a_call_that_passed_at_once_and_was_refused_goes_on_from_there(queue: ScriptedQueue) -> None:
    permit = queue.pass_at_once()
    queue.open = False
    driver = ExchangeDriver(queue, SDK, now=3.0, begun=StartedExchange(permit, AttemptResult(REFUSED), 1.0))
    assert driver.effect == waiting(None)
    assert queue.log == [("settle", 1, "rate_limit", True)]
    driver.wait(61.0)
    assert driver.ended is not None
    assert (driver.ended.ending, driver.ended.waited) == (Ending.GIVEN_UP, 58.0)


def test_call_that_its_caller_ends_counts_once_wherever_it_is(shut: ScriptedQueue, queue: ScriptedQueue) -> None:
    ExchangeDriver(shut, SDK).close()
    assert shut.counted == ["left"]
    # In flight, the permit counts as abandoned.
    ExchangeDriver(queue, SDK).close()
    assert (queue.counted, queue.log[-2:]) == ([], [("abandon", 1), ("leave",)])
