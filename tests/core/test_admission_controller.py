from __future__ import annotations

import pytest

from tests.core.values import (
    ABANDONED,
    INVALID,
    OK,
    OUTAGE,
    TIMEOUT,
    UNAVAILABLE,
    answer,
    bucket,
    refusal,
)
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.circuit_breaker import BreakerState
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Kind, Outcome, QuotaReading, Usage

NOW = 100.0


def admit(admission: AdmissionController, count: int = 1, now: float = NOW, cost: Cost | None = None) -> list[Permit]:
    return [admission.admit(cost or Cost(), now, 0.0, None) for _ in range(count)]


def settle(
    admission: AdmissionController, permit: Permit, outcome: Outcome, now: float = NOW, draw: float = 1.0
) -> None:
    admission.settle(permit, outcome, now, draw, None)


def level(admission: AdmissionController, name: str = "requests", now: float = NOW) -> float:
    return admission.quotas.mirrors[name].level(now)


@pytest.fixture
def mirrored(admission: AdmissionController) -> AdmissionController:
    """A key whose quota of 60 requests a minute was seen at 10."""
    (first,) = admit(admission)
    settle(admission, first, answer(bucket(60.0, 10.0)))
    return admission


@pytest.mark.parametrize("failure", [refusal(cause=Cause.OVERLOAD), refusal(), UNAVAILABLE, OUTAGE])
def test_failures_of_answers_that_had_begun_are_counted_and_change_no_gate(
    admission: AdmissionController, failure: Outcome
) -> None:
    def gates() -> tuple[object, ...]:
        return admission.concurrency.limit, admission.pacer.active, admission.pause.grace, admission.breaker.state

    permits = admit(admission, 20)
    for permit in permits:
        admission.learn(permit, OK, NOW + 0.5, None)
    before = gates()
    for permit in permits[1:]:
        settle(admission, permit, failure._replace(own=True), NOW + 30.0)
    assert gates() == before
    assert admission.ready_at(Cost(), NOW + 30.0) == (NOW + 30.0, "")
    assert admission.counts.refused + admission.counts.failed == 19


def test_all_slots_taken_means_until_another_opens(admission: AdmissionController) -> None:
    admit(admission, 20)
    ready, gate = admission.ready_at(Cost(), NOW)
    assert (NOW < ready < NOW + 0.1, gate) == (True, "concurrency")


@pytest.mark.parametrize("cause", [Cause.OTHERS_CAPACITY, Cause.NOT_READY])
def test_a_refusal_that_is_not_of_our_making_pauses_and_does_not_cut(
    admission: AdmissionController, cause: Cause
) -> None:
    settle(admission, admit(admission, 10)[0], Outcome(Kind.OVERLOADED, cause))
    assert admission.concurrency.limit == 20
    assert admission.pause.until == NOW + 0.5


def test_a_refusal_that_a_quota_explains_needs_no_cut_and_no_pause(mirrored: AdmissionController) -> None:
    permits = admit(mirrored, 10)
    settle(mirrored, permits[0], refusal(None, bucket(60.0, 0.0)))
    assert mirrored.concurrency.limit == 20
    assert mirrored.pause.until < NOW
    assert mirrored.ready_at(Cost(), NOW)[1] == "quota requests"


def test_its_hint_pauses_all_the_same(mirrored: AdmissionController) -> None:
    settle(mirrored, admit(mirrored, 10)[0], refusal(30.0, bucket(60.0, 0.0)))
    assert mirrored.ready_at(Cost(), NOW) == (NOW + 30.0, "pause")


def test_a_refusal_for_want_of_slots_is_not_explained_by_a_quota(mirrored: AdmissionController) -> None:
    settle(mirrored, admit(mirrored, 10)[-1], refusal(None, bucket(60.0, 0.0), cause=Cause.CONCURRENCY))
    assert mirrored.concurrency.limit == 9


def test_a_refused_request_is_not_charged(mirrored: AdmissionController) -> None:
    (permit,) = admit(mirrored)
    assert level(mirrored) == 9.0
    settle(mirrored, permit, refusal())
    assert level(mirrored) == 10.0


def test_a_permit_that_was_never_sent_leaves_no_trace(mirrored: AdmissionController) -> None:
    attempts = mirrored.counts.attempts
    mirrored.withdraw(admit(mirrored)[0], NOW, None)
    assert (level(mirrored), mirrored.in_flight, mirrored.counts.attempts) == (10.0, 0, attempts)


A_DAY = 86_400.0


def test_a_hint_of_a_day_is_not_believed(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], refusal(A_DAY))
    assert (admission.pause.until < NOW, admission.counts.ignored) == (True, 1)


def test_output_is_charged_when_the_answer_ends(admission: AdmissionController) -> None:
    told = QuotaReading("output", "output_tokens", "continuous", limit=6000.0, remaining=6000.0, window=60.0)
    settle(admission, admit(admission)[0], answer(told))
    (permit,) = admit(admission, cost=Cost(produced=500.0))
    assert level(admission, "output") == 5500.0
    settle(admission, permit, Outcome(Kind.OK, usage=Usage(output_tokens=200)))
    assert level(admission, "output") == 5800.0


@pytest.mark.parametrize("outcome", [INVALID, TIMEOUT, ABANDONED])
def test_an_ending_that_proves_nothing_teaches_nothing(admission: AdmissionController, outcome: Outcome) -> None:
    permits = admit(admission, 20)
    for permit in permits:
        settle(admission, permit, outcome)
    assert admission.ready_at(Cost(), NOW) == (NOW, "")
    assert (admission.concurrency.limit, admission.epoch) == (20, 0)


def test_an_outage_opens_the_breaker_and_its_probe_closes_it(admission: AdmissionController) -> None:
    for permit in admit(admission, 5):
        settle(admission, permit, OUTAGE, draw=0.5)
    assert admission.ready_at(Cost(), NOW) == (NOW + 0.5, "breaker")
    (probe,) = admit(admission, now=NOW + 1.0)
    assert probe.probe
    ready, gate = admission.ready_at(Cost(), NOW + 1.0)
    assert (ready > NOW + 1.0, gate) == (True, "breaker")
    settle(admission, probe, OK, NOW + 2.0)
    assert admission.ready_at(Cost(), NOW + 2.0) == (NOW + 2.0, "")


def test_where_every_answer_is_a_503_without_a_reason_it_is_an_outage(admission: AdmissionController) -> None:
    for permit in admit(admission, 5):
        settle(admission, permit, UNAVAILABLE, draw=0.5)
    assert admission.ready_at(Cost(), NOW) == (NOW + 0.5, "breaker")
    (probe,) = admit(admission, now=NOW + 1.0)
    assert probe.probe
    settle(admission, probe, UNAVAILABLE, NOW + 1.1)
    assert admission.breaker.state is BreakerState.OPEN
    settle(admission, admit(admission, now=NOW + 9.0)[0], OK, NOW + 9.1)
    assert admission.breaker.closed


def test_a_503_without_a_reason_between_answers_is_random_and_opens_no_breaker(admission: AdmissionController) -> None:
    for number in range(10):
        settle(admission, admit(admission, now=NOW + number)[0], UNAVAILABLE, NOW + number)
        settle(admission, admit(admission, now=NOW + number)[0], OK, NOW + number + 0.5)
    assert admission.breaker.closed
    assert (admission.pacer.active, admission.concurrency.limit >= 20) == (False, True)


@pytest.mark.parametrize("outcome", [OUTAGE, UNAVAILABLE])
def test_a_failed_probe_opens_it_again(admission: AdmissionController, outcome: Outcome) -> None:
    admission.breaker.state = BreakerState.OPEN
    settle(admission, admit(admission)[0], outcome, draw=0.5)
    assert admission.ready_at(Cost(), NOW) == (NOW + 0.525, "breaker")


@pytest.mark.parametrize("how", ["withdrawn", "abandoned"])
def test_a_probe_that_was_given_up_lets_the_next_one_go(admission: AdmissionController, how: str) -> None:
    admission.breaker.state = BreakerState.OPEN
    (probe,) = admit(admission)
    if how == "withdrawn":
        admission.withdraw(probe, NOW, None)
    else:
        settle(admission, probe, ABANDONED)
    assert admission.ready_at(Cost(), NOW) == (NOW, "")
    assert admit(admission)[0].probe


def test_after_a_fork_nothing_is_in_flight_and_nothing_reserved(admission: AdmissionController) -> None:
    told = QuotaReading("output", "output_tokens", "continuous", limit=6000.0, remaining=6000.0, window=60.0)
    settle(admission, admit(admission)[0], answer(told))
    (permit,) = admit(admission, cost=Cost(produced=500.0))
    admission.forked()
    assert (admission.in_flight, level(admission, "output")) == (0, 6000.0)
    assert permit.generation != admission.generation


def test_of_an_output_bound_that_was_held_the_unused_part_comes_back(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], answer(bucket(1000.0, name="tokens", unit="tokens")))
    permit = admit(admission, cost=Cost(tokens=300.0, held=200.0, weight=5.0))[0]
    settle(admission, permit, Outcome(Kind.OK, usage=Usage(100, 10)))
    assert admission.quotas.mirrors["tokens"].used == 100.0 + 5.0 * 10.0


@pytest.mark.parametrize(("refused", "seconds"), [(1, 0.0), (10, 0.5)], ids=["occasional", "half"])
def test_occasional_refusals_for_the_capacity_of_others_do_not_pause_the_key(
    admission: AdmissionController, refused: int, seconds: float
) -> None:
    overloaded = Outcome(Kind.OVERLOADED, Cause.OTHERS_CAPACITY, status=529)
    longest = 0.0
    for number in range(20):
        now = NOW + 10.0 * number
        permits = admit(admission, 20, now)
        for permit in permits[refused:]:
            settle(admission, permit, OK, now + 0.1)
        for permit in permits[:refused]:
            settle(admission, permit, overloaded, now + 0.2)
        if number > 5:
            longest = max(longest, admission.ready_at(Cost(), now + 0.2)[0] - now - 0.2)
    # Half of each round is answered, so no pause is longer than the first.
    assert longest == pytest.approx(seconds)


def test_a_hint_that_no_quota_explains_is_tried_once_and_then_obeyed_where_it_is_true(
    admission: AdmissionController,
) -> None:
    settle(admission, admit(admission, 20)[19], refusal(12.0))
    assert admission.pause.until == NOW + 2.0
    assert admission.ready_at(Cost(), NOW + 2.0)[0] == NOW + 2.0
    (trial,) = admit(admission, 1, NOW + 2.0)
    assert admission.ready_at(Cost(), NOW + 2.0)[0] > NOW + 2.0
    settle(admission, trial, refusal(10.0), NOW + 2.01)
    assert admission.pause.until == pytest.approx(NOW + 12.0)
    assert not admission.pause.is_unanswerable


def test_calls_of_several_requests_exceed_no_quota_between_two_readings(admission: AdmissionController) -> None:
    """The short path counts on calls as dear as the one that was read last."""
    for remaining in (999.0, 998.0):
        (plain,) = admit(admission)
        settle(admission, plain, answer(bucket(1000.0, remaining)))
    sent = 0
    while sent < 100:
        dear = Cost(requests=50.0)
        permit = admission.enter(dear, NOW)
        if permit is None:
            if admission.ready_at(dear, NOW)[0] > NOW:
                break
            (permit,) = admit(admission, cost=dear)
        sent += 1
        if not admission.answer(permit, OK, NOW):
            settle(admission, permit, OK)
    assert sent == 19
