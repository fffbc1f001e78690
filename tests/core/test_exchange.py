from __future__ import annotations

import pytest

from tests.core.scripted_call import Booth, Talk, names, waiting
from tests.core.values import INVALID, OK, OUTAGE, REFUSED, TIMEOUT
from tidegate.core import events
from tidegate.core.exchange import AttemptResult, CallPolicy, Ending, Send, StartedExchange
from tidegate.core.values import Cause, Kind, Outcome

SDK = CallPolicy(max_wait=60.0)
OWN = CallPolicy(max_wait=60.0, attempts=3)
OVERLOADED = Outcome(Kind.OVERLOADED, Cause.OVERLOAD)


def told(booth: Booth, kind: type[events.Event]) -> list[tuple[object, ...]]:
    return [facts for event, facts in booth.told if event is kind]


@pytest.fixture
def booth() -> Booth:
    return Booth()


@pytest.fixture
def shut() -> Booth:
    booth = Booth()
    booth.open = False
    return booth


def test_a_call_that_may_go_is_sent_and_answered(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    assert isinstance(talk.effect, Send)
    talk.reply(2.0, OK, response="hello")
    assert talk.ended is not None
    assert (talk.ended.ending, talk.ended.waited) == (Ending.ANSWERED, 0.0)
    assert talk.ended.sent is not None
    assert talk.ended.sent.response == "hello"


def test_it_stands_with_its_deadline(booth: Booth) -> None:
    Talk(booth, SDK, now=5.0)
    assert booth.log[0] == ("stand", 5.0, 65.0)


def test_it_waits_as_long_as_its_seat_says_and_looks_again(shut: Booth) -> None:
    shut.until = 7.0
    talk = Talk(shut, SDK)
    assert talk.effect == waiting(7.0)
    shut.until = None
    assert talk.wait(7.0) == waiting(None)
    shut.open = True
    assert isinstance(talk.wait(9.0), Send)
    talk.reply(10.0, OK)
    assert talk.ended is not None
    assert talk.ended.waited == 9.0


@pytest.mark.parametrize("outcome", [REFUSED, OVERLOADED])
def test_a_refusal_for_want_of_capacity_goes_back_to_the_head_and_spends_no_attempt(
    booth: Booth, outcome: Outcome
) -> None:
    talk = Talk(booth, SDK)
    for now in range(1, 40):
        assert isinstance(talk.reply(float(now), outcome), Send)
    talk.reply(40.0, OK)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.ANSWERED
    assert [entry for entry in booth.log if entry[0] == "stand"] == [("stand", 0.0, 60.0)]
    assert ("settle", 1, outcome.kind.value, True) in booth.log


def test_a_refused_call_waits_until_it_is_let_in_again(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    booth.open = False
    assert talk.reply(1.0, REFUSED) == waiting(None)
    booth.open = True
    talk.wait(4.0)
    talk.reply(5.0, OK)
    assert talk.ended is not None
    assert talk.ended.waited == 3.0


def test_a_transient_failure_is_handed_back_where_the_sdk_owns_it(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(1.0, OUTAGE, response="500")
    assert talk.ended is not None
    assert talk.ended.ending is Ending.HANDED_BACK
    assert talk.ended.sent is not None
    assert talk.ended.sent.response == "500"


def test_a_transient_failure_is_repeated_with_full_jitter_where_we_own_it(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    assert talk.reply(1.0, TIMEOUT) == waiting(1.5)
    assert isinstance(talk.wait(1.5), Send)
    assert talk.reply(2.0, OUTAGE) == waiting(3.0)
    assert isinstance(talk.wait(3.0), Send)
    talk.reply(4.0, TIMEOUT)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.HANDED_BACK


def test_a_wake_up_does_not_cut_a_back_off_short(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, TIMEOUT)
    assert talk.wait(1.1) == waiting(1.5)


def test_a_back_off_is_no_waiting_for_capacity(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, TIMEOUT)
    talk.wait(1.5)
    talk.reply(2.0, OK)
    assert talk.ended is not None
    assert talk.ended.waited == 0.0


def test_a_back_off_ends_at_the_deadline_with_the_last_answer(booth: Booth) -> None:
    talk = Talk(booth, CallPolicy(max_wait=1.2, attempts=3))
    assert talk.reply(1.0, TIMEOUT) == waiting(1.2)
    talk.wait(1.2)
    assert talk.ended is not None
    assert (talk.ended.ending, booth.given) == (Ending.GIVEN_UP, 1)


def test_refusals_between_transient_failures_spend_none_of_their_attempts(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, TIMEOUT)
    talk.wait(1.5)
    talk.reply(2.0, REFUSED)
    assert talk.reply(3.0, TIMEOUT) == waiting(4.0)


def test_the_failure_of_the_probe_is_handed_to_nobody(booth: Booth) -> None:
    booth.probing = True
    talk = Talk(booth, SDK)
    for now in range(1, 10):
        assert isinstance(talk.reply(float(now), OUTAGE), Send)
    assert booth.given == 10


def test_a_probe_that_fails_for_another_reason_is_handed_back(booth: Booth) -> None:
    booth.probing = True
    talk = Talk(booth, SDK)
    talk.reply(1.0, TIMEOUT)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.HANDED_BACK


@pytest.mark.parametrize("outcome", [REFUSED, OUTAGE, TIMEOUT])
@pytest.mark.parametrize("probing", [False, True])
def test_a_body_that_can_be_sent_only_once_is_handed_back(booth: Booth, outcome: Outcome, probing: bool) -> None:
    booth.probing = probing
    talk = Talk(booth, CallPolicy(max_wait=60.0, attempts=3, replayable=False))
    talk.reply(1.0, outcome)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.HANDED_BACK


@pytest.mark.parametrize("outcome", [INVALID, Outcome(Kind.QUOTA_EXHAUSTED), Outcome(Kind.DAILY_LIMIT)])
def test_what_no_attempt_can_mend_ends_the_call_at_once(booth: Booth, outcome: Outcome) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, outcome)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.GIVEN_UP


def test_a_deadline_before_the_first_attempt_expires_the_call(shut: Booth) -> None:
    talk = Talk(shut, SDK)
    talk.wait(60.0)
    assert talk.ended is not None
    assert (talk.ended.ending, talk.ended.sent, talk.ended.waited) == (Ending.EXPIRED, None, 60.0)
    assert talk.ended.gate == "pause"


def test_a_call_that_may_not_wait_expires_where_it_stands(shut: Booth) -> None:
    talk = Talk(shut, CallPolicy(max_wait=0.0))
    assert talk.ended is not None
    assert talk.ended.ending is Ending.EXPIRED
    assert shut.places == 0


def test_a_deadline_after_a_refusal_gives_the_refusal_back(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    booth.open = False
    talk.reply(1.0, REFUSED, response="429")
    talk.wait(59.9)
    talk.wait(60.0)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.GIVEN_UP
    assert talk.ended.sent is not None
    assert talk.ended.sent.response == "429"


def test_a_refusal_that_comes_after_the_deadline_is_given_up(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(60.0, REFUSED)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.GIVEN_UP


def test_an_answer_that_comes_after_the_deadline_is_an_answer(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(600.0, OK)
    assert talk.ended is not None
    assert talk.ended.ending is Ending.ANSWERED


def test_the_permit_of_a_streaming_answer_goes_with_the_stream(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(1.0, OK, streaming=True)
    assert booth.log[1:] == [("learn", 1, "ok"), ("leave",)]


def standing(booth: Booth) -> Talk:
    booth.open = False
    return Talk(booth, OWN)


def sending(booth: Booth) -> Talk:
    return Talk(booth, OWN)


def standing_again(booth: Booth) -> Talk:
    talk = sending(booth)
    booth.open = False
    talk.reply(1.0, REFUSED)
    return talk


def sending_again(booth: Booth) -> Talk:
    talk = sending(booth)
    talk.reply(1.0, REFUSED)
    return talk


def backing_off(booth: Booth) -> Talk:
    talk = sending(booth)
    talk.reply(1.0, TIMEOUT)
    return talk


@pytest.mark.parametrize("reach", [standing, sending, standing_again, sending_again, backing_off])
@pytest.mark.parametrize("how", ["closed", "raised"])
def test_a_driver_that_stops_early_gives_place_and_permit_back_once(booth: Booth, reach, how: str) -> None:
    talk = reach(booth)
    if how == "closed":
        talk.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            talk.flow.throw(KeyboardInterrupt())
    assert (booth.permits, booth.places) == (set(), 0)
    abandoned = [entry for entry in booth.log if entry[0] == "abandon"]
    assert len(abandoned) == (1 if reach in (sending, sending_again) else 0)
    before = list(booth.log)
    talk.close()
    assert booth.log == before


@pytest.mark.parametrize("outcome", [OK, INVALID, OUTAGE])
def test_a_call_that_ended_holds_nothing(booth: Booth, outcome: Outcome) -> None:
    talk = Talk(booth, SDK)
    talk.reply(1.0, outcome)
    assert (booth.permits, booth.places) == (set(), 0)
    assert booth.log.count(("leave",)) == 1


def test_an_answered_call_tells_its_beginning_and_its_end(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(1.0, REFUSED)
    talk.reply(3.0, OK)
    assert booth.told == [
        (events.RequestStarted, (0.0,)),
        (events.RequestRetrying, (1, Kind.RATE_LIMIT, Cause.RATE, None)),
        (events.RequestCompleted, (2, 3.0, None)),
    ]


def test_a_failed_call_tells_whether_the_wait_ended_it(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    talk.reply(61.0, REFUSED)
    assert booth.told[-1] == (events.RequestFailed, (1, 61.0, Kind.RATE_LIMIT, Cause.RATE, True, None))
    talk = Talk(booth, SDK)
    talk.reply(1.0, OUTAGE)
    assert booth.told[-1] == (events.RequestFailed, (1, 1.0, Kind.TRANSIENT, Cause.OUTAGE, False, None))


def test_an_expired_call_tells_its_wait_and_its_deadline(shut: Booth) -> None:
    Talk(shut, SDK).wait(61.0)
    assert shut.told == [(events.RequestWaited, (61.0, "pause")), (events.QueueDeadline, (61.0, "pause"))]


def test_each_wait_is_told_with_its_own_length_and_the_gate_that_was_last_seen_closed(shut: Booth) -> None:
    talk = Talk(shut, SDK)
    shut.gate = "quota requests"
    talk.wait(4.0)
    shut.open, shut.gate = True, ""
    talk.wait(7.0)
    shut.open = False
    talk.reply(9.0, REFUSED)
    shut.open = True
    talk.wait(14.0)
    assert told(shut, events.RequestWaited) == [(7.0, "quota requests"), (5.0, "queue")]


def test_a_call_that_passes_at_once_or_may_not_wait_tells_no_wait(booth: Booth, shut: Booth) -> None:
    Talk(booth, SDK).reply(1.0, OK)
    Talk(shut, CallPolicy(max_wait=0.0))
    assert names(booth.told) == ["RequestStarted", "RequestCompleted"]
    assert names(shut.told) == ["QueueDeadline"]


def test_a_back_off_is_a_wait_of_its_own(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, TIMEOUT)
    talk.wait(1.5)
    talk.reply(2.0, OK)
    assert told(booth, events.RequestWaited) == [(0.5, "backoff")]


def test_what_is_told_of_an_answer_names_its_status(booth: Booth) -> None:
    refused, answered, failed = (
        outcome._replace(status=status) for outcome, status in ((REFUSED, 429), (OK, 200), (INVALID, 400))
    )
    talk = Talk(booth, SDK)
    talk.reply(1.0, refused)
    talk.reply(2.0, answered)
    Talk(booth, SDK).reply(1.0, failed)
    ends = (events.RequestRetrying, events.RequestCompleted, events.RequestFailed)
    assert [facts[-1] for event, facts in booth.told if event in ends] == [429, 200, 400]


def test_a_call_that_passed_at_once_and_was_refused_goes_on_from_there(booth: Booth) -> None:
    permit = booth.pass_at_once()
    booth.open = False
    talk = Talk(booth, SDK, now=3.0, begun=StartedExchange(permit, AttemptResult(REFUSED), 1.0))
    assert talk.effect == waiting(None)
    assert booth.log == [("settle", 1, "rate_limit", True)]
    talk.wait(61.0)
    assert talk.ended is not None
    assert (talk.ended.ending, talk.ended.waited) == (Ending.GIVEN_UP, 58.0)


def test_a_call_that_passed_at_once_and_failed_is_handed_back(booth: Booth) -> None:
    talk = Talk(booth, SDK, now=3.0, begun=StartedExchange(booth.pass_at_once(), AttemptResult(OUTAGE), 1.0))
    assert talk.ended is not None
    assert (talk.ended.ending, booth.permits) == (Ending.HANDED_BACK, set())


def test_a_refusal_counts_as_absorbed_once_its_call_is_sent_again(booth: Booth) -> None:
    talk = Talk(booth, SDK)
    booth.open = False
    talk.reply(1.0, REFUSED)
    assert booth.counted == []
    booth.open = True
    talk.wait(2.0)
    talk.reply(3.0, OK)
    assert booth.counted == ["resent after rate_limit"]


def test_an_attempt_after_a_back_off_is_one_of_the_same_call(booth: Booth) -> None:
    talk = Talk(booth, OWN)
    talk.reply(1.0, OUTAGE)
    talk.wait(30.0)
    talk.reply(31.0, OK)
    assert booth.counted == ["resent after transient"]


def test_a_call_counts_as_given_up_with_or_without_an_attempt(shut: Booth, booth: Booth) -> None:
    Talk(shut, SDK).wait(60.0)
    talk = Talk(booth, SDK)
    booth.open = False
    talk.reply(1.0, REFUSED)
    talk.wait(60.0)
    assert (shut.counted, booth.counted) == (["given up unsent"], ["given up"])


@pytest.mark.parametrize("outcome", [INVALID, TIMEOUT], ids=lambda outcome: outcome.cause.value)
def test_what_is_handed_back_for_another_reason_is_not_given_up(booth: Booth, outcome: Outcome) -> None:
    Talk(booth, SDK).reply(1.0, outcome)
    assert booth.counted == ["failed"]
