from __future__ import annotations

import pytest

from tests.core.values import (
    ABANDONED,
    INVALID,
    KEY,
    OK,
    OUTAGE,
    TIMEOUT,
    UNAVAILABLE,
    answer,
    bucket,
    fixed,
    refusal,
)
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.circuit_breaker import BreakerState
from tidegate.core.limiter_state import Permit
from tidegate.core.quota import READ_CALLS, READ_SECONDS
from tidegate.core.values import Cause, Cost, Kind, Outcome, QuotaReading, Usage
from tidegate.settings import Settings

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


def test_a_fresh_key_is_ready(admission: AdmissionController) -> None:
    assert admission.ready_at(Cost(), NOW) == (NOW, "")


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


@pytest.mark.constants(START_CONCURRENCY=20)
def test_all_slots_there_can_be_taken_means_until_an_attempt_ends() -> None:
    admission = AdmissionController(KEY, Settings(max_concurrency=20), 60.0, 0.0)
    permits = admit(admission, 20)
    assert admission.ready_at(Cost(), NOW) == (float("inf"), "concurrency")
    settle(admission, permits[7], OK)
    assert admission.ready_at(Cost(), NOW) == (NOW, "")


def test_the_last_gate_to_open_is_named(mirrored: AdmissionController) -> None:
    assert mirrored.ready_at(Cost(requests=20.0), NOW) == (NOW + 10.25, "quota requests")
    mirrored.pause.close(NOW, 30.0, False, 0.0, True)
    assert mirrored.ready_at(Cost(requests=20.0), NOW) == (NOW + 30.0, "pause")
    for _ in range(5):
        mirrored.breaker.failed(False, NOW, NOW + 100.0, 0.5)
    assert mirrored.ready_at(Cost(requests=20.0), NOW) == (NOW + 100.5, "breaker")


def test_a_permit_knows_its_key_and_how_many_were_in_flight(admission: AdmissionController) -> None:
    first, second = admit(admission, 2)
    assert (first.key, first.in_flight, second.in_flight) == (KEY, 1, 2)


def test_a_wave_refused_above_what_was_let_in_sets_the_ceiling_whatever_the_order(
    admission: AdmissionController,
) -> None:
    for permit in reversed(admit(admission, 20)[12:]):
        settle(admission, permit, refusal())
    assert (admission.concurrency.limit, admission.epoch, admission.pacer.active) == (12, 1, False)


def test_where_nothing_at_all_was_let_in_it_is_a_rate_and_no_ceiling(admission: AdmissionController) -> None:
    for permit in admit(admission, 20):
        settle(admission, permit, refusal())
    assert (admission.concurrency.ceiling, admission.epoch, admission.pacer.active) == (float("inf"), 1, True)


def test_a_refusal_under_the_ceiling_is_of_a_rate(admission: AdmissionController) -> None:
    permits = admit(admission, 20)
    settle(admission, permits[19], refusal())
    assert not admission.pacer.active
    for permit in permits[:15]:
        settle(admission, permit, OK, NOW + 1.0)
    (late,) = admit(admission, 1, NOW + 1.0)
    settle(admission, late, refusal(), NOW + 1.1)
    assert admission.pacer.active
    ready, gate = admission.ready_at(Cost(), NOW + 1.1)
    assert (ready > NOW + 1.1, gate) == (True, "pace")


@pytest.mark.parametrize("outcome", [refusal(0.5), refusal(cause=Cause.SLOPE)])
def test_who_names_a_time_or_a_slope_has_no_want_of_slots(admission: AdmissionController, outcome: Outcome) -> None:
    settle(admission, admit(admission, 20)[19], outcome)
    assert (admission.concurrency.ceiling, admission.pacer.active) == (float("inf"), True)


def test_a_want_of_slots_under_the_ceiling_lowers_it_to_what_was_admitted(admission: AdmissionController) -> None:
    told = refusal(cause=Cause.CONCURRENCY)
    early = admit(admission, 20)
    settle(admission, early[19], told)
    for permit in early[:10]:
        settle(admission, permit, OK, NOW + 1.0)
    late = admit(admission, 4, NOW + 1.0)
    settle(admission, late[3], told, NOW + 1.1)
    assert (admission.concurrency.limit, admission.epoch) == (12, 2)
    for permit in late[:3]:
        settle(admission, permit, told, NOW + 1.1)
    assert (admission.concurrency.limit, admission.epoch, admission.pacer.active) == (9, 2, False)


def test_a_success_from_before_a_refusal_shortens_no_pause(admission: AdmissionController) -> None:
    others = Outcome(Kind.OVERLOADED, Cause.OTHERS_CAPACITY)
    permits = admit(admission, 4)
    settle(admission, permits[0], others)
    until = admission.pause.until
    for permit in permits[1:]:
        settle(admission, permit, OK)
    assert admission.pause.until == until
    settle(admission, admit(admission, 1, NOW + 9.0)[0], others, NOW + 9.0)
    assert admission.pause.until == NOW + 9.0 + 1.0


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


def test_a_quota_that_is_nearly_empty_explains_as_well(mirrored: AdmissionController) -> None:
    permits = admit(mirrored, 8)
    settle(mirrored, permits[0], refusal())
    assert mirrored.concurrency.limit == 20
    assert mirrored.pause.until < NOW


def test_a_quota_with_room_explains_nothing(mirrored: AdmissionController) -> None:
    settle(mirrored, admit(mirrored, 4)[-1], refusal())
    assert mirrored.concurrency.limit == 3


def test_a_refusal_for_want_of_slots_is_not_explained_by_a_quota(mirrored: AdmissionController) -> None:
    settle(mirrored, admit(mirrored, 10)[-1], refusal(None, bucket(60.0, 0.0), cause=Cause.CONCURRENCY))
    assert mirrored.concurrency.limit == 9


def test_a_refused_request_is_not_charged(mirrored: AdmissionController) -> None:
    (permit,) = admit(mirrored)
    assert level(mirrored) == 9.0
    settle(mirrored, permit, refusal())
    assert level(mirrored) == 10.0


@pytest.mark.parametrize("outcome", [OK, INVALID, TIMEOUT, ABANDONED])
def test_every_other_ending_is_charged(mirrored: AdmissionController, outcome: Outcome) -> None:
    settle(mirrored, admit(mirrored)[0], outcome)
    assert level(mirrored) == 9.0


def test_a_permit_that_was_never_sent_leaves_no_trace(mirrored: AdmissionController) -> None:
    attempts = mirrored.counts.attempts
    mirrored.withdraw(admit(mirrored)[0], NOW, None)
    assert (level(mirrored), mirrored.in_flight, mirrored.counts.attempts) == (10.0, 0, attempts)


A_DAY = 86_400.0


def test_a_hint_of_a_day_is_not_believed(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], refusal(A_DAY))
    assert (admission.pause.until < NOW, admission.counts.ignored) == (True, 1)


@pytest.mark.parametrize("hint", [A_DAY, float("inf"), float("nan"), -1.0])
def test_an_incredible_hint_moves_no_boundary(admission: AdmissionController, hint: float) -> None:
    settle(admission, admit(admission)[0], answer(fixed(10.0, 0.0)))
    settle(admission, admit(admission)[0], refusal(hint))
    assert admission.ready_at(Cost(), NOW)[0] <= NOW + 15.0


def test_what_is_in_flight_when_a_quota_is_first_seen_is_charged_to_it(admission: AdmissionController) -> None:
    first, *_ = admit(admission, 5)
    settle(admission, first, answer(bucket(60.0, 30.0)))
    assert level(admission) == 26.0


def test_an_answer_of_the_first_round_says_nothing_of_the_others_whatever_the_order_of_their_sending(
    admission: AdmissionController,
) -> None:
    permits = admit(admission, 20)
    settle(admission, permits[15], answer(bucket(120.0, 19.0)))
    settle(admission, permits[16], answer(bucket(120.0, 18.0)))
    assert level(admission) == 0.0
    settle(admission, permits[0], answer(bucket(120.0, 0.0)))
    assert level(admission) <= 0.0


def test_what_is_refused_of_it_is_given_back(admission: AdmissionController) -> None:
    first, second, *_ = admit(admission, 5)
    settle(admission, first, answer(bucket(60.0, 30.0)))
    settle(admission, second, refusal())
    assert level(admission) == 27.0


def test_after_the_first_header_as_many_slots_as_stand_ready_open_fast_but_not_at_once(
    admission: AdmissionController,
) -> None:
    settle(admission, admit(admission)[0], answer(bucket(600.0, 500.0)))
    assert admission.concurrency.limit < 50
    now, flying = 0.0, admission.concurrency.limit
    admission.concurrency.filled(flying, now)
    while (now := admission.concurrency.opens_at(now)) < 0.6:
        flying += 1
        admission.concurrency.filled(flying, now)
    assert admission.concurrency.limit >= 500


def test_output_is_charged_when_the_answer_ends(admission: AdmissionController) -> None:
    told = QuotaReading("output", "output_tokens", "continuous", limit=6000.0, remaining=6000.0, window=60.0)
    settle(admission, admit(admission)[0], answer(told))
    (permit,) = admit(admission, cost=Cost(produced=500.0))
    assert level(admission, "output") == 5500.0
    settle(admission, permit, Outcome(Kind.OK, usage=Usage(output_tokens=200)))
    assert level(admission, "output") == 5800.0


def test_output_of_no_known_length_is_only_released(admission: AdmissionController) -> None:
    told = QuotaReading("output", "output_tokens", "continuous", limit=6000.0, remaining=6000.0, window=60.0)
    settle(admission, admit(admission)[0], answer(told))
    settle(admission, admit(admission, cost=Cost(produced=500.0))[0], OK)
    assert level(admission, "output") == 6000.0


def test_headers_of_a_streaming_answer_are_taken_in_once_and_at_once(admission: AdmissionController) -> None:
    (permit,) = admit(admission)
    admission.learn(permit, answer(bucket(60.0, 10.0)), NOW, None)
    assert level(admission) == 10.0
    assert admission.in_flight == 1
    admission.quotas.mirrors.clear()
    settle(admission, permit, answer(bucket(60.0, 10.0)))
    assert admission.quotas.mirrors == {}
    assert admission.in_flight == 0


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


def test_answers_sent_before_an_outage_do_not_hide_it(admission: AdmissionController) -> None:
    early = admit(admission, 4)
    for number, permit in enumerate(admit(admission, 5, NOW + 10.0)):
        settle(admission, permit, OUTAGE, NOW + 11.0)
        if number < 4:
            settle(admission, early[number], OK, NOW + 11.0)
    assert not admission.breaker.closed


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


@pytest.mark.parametrize("outcome", [INVALID, refusal(), answer()])
def test_any_answer_to_the_probe_closes_the_breaker(admission: AdmissionController, outcome: Outcome) -> None:
    admission.breaker.state = BreakerState.OPEN
    settle(admission, admit(admission)[0], outcome)
    assert admission.breaker.closed


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


def test_the_end_of_a_stream_that_was_once_the_probe_is_nothing_to_a_later_one(admission: AdmissionController) -> None:
    admission.breaker.state = BreakerState.OPEN
    (stream,) = admit(admission)
    admission.learn(stream, OK, NOW, None)
    admission.breaker.state = BreakerState.OPEN
    assert admit(admission)[0].probe
    settle(admission, stream, ABANDONED)
    assert admission.breaker.state is BreakerState.HALF_OPEN


def test_answers_are_timed(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], OK, NOW + 2.5)
    assert list(admission.counts.latencies) == [2.5]


def test_unusable_values_are_counted(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], Outcome(Kind.OK, ignored=3))
    assert admission.counts.ignored == 3


def test_after_a_fork_nothing_is_in_flight_and_nothing_reserved(admission: AdmissionController) -> None:
    told = QuotaReading("output", "output_tokens", "continuous", limit=6000.0, remaining=6000.0, window=60.0)
    settle(admission, admit(admission)[0], answer(told))
    (permit,) = admit(admission, cost=Cost(produced=500.0))
    admission.forked()
    assert (admission.in_flight, level(admission, "output")) == (0, 6000.0)
    assert permit.generation != admission.generation


def test_after_a_fork_the_parents_probe_holds_nobody_up(admission: AdmissionController) -> None:
    admission.breaker.state = BreakerState.OPEN
    admit(admission)
    admission.forked()
    assert admit(admission)[0].probe


@pytest.mark.constants(START_CONCURRENCY=1)
def test_one_slot_at_least_remains_whatever_is_refused() -> None:
    admission = AdmissionController(KEY, Settings(), 60.0, 0.0)
    settle(admission, admit(admission)[0], refusal())
    assert admission.concurrency.limit == 1


def test_while_quota_is_ample_one_answer_in_so_many_is_read_also_where_output_is_charged(
    admission: AdmissionController,
) -> None:
    (first,) = admit(admission)
    settle(admission, first, answer(bucket(1e6, 1e6), bucket(1e6, 1e6, name="tokens", unit="tokens")))
    informing = 0
    for _ in range(10 * READ_CALLS):
        (permit,) = admit(admission, cost=Cost(produced=10.0))
        informing += permit.informs
        settle(admission, permit, Outcome(Kind.OK, usage=Usage(output_tokens=10)))
    assert informing == 10


def test_of_an_output_bound_that_was_held_the_unused_part_comes_back(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], answer(bucket(1000.0, name="tokens", unit="tokens")))
    permit = admit(admission, cost=Cost(tokens=300.0, held=200.0, weight=5.0))[0]
    settle(admission, permit, Outcome(Kind.OK, usage=Usage(100, 10)))
    assert admission.quotas.mirrors["tokens"].used == 100.0 + 5.0 * 10.0


def test_without_a_word_of_what_it_produced_what_was_held_stays_charged(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], answer(bucket(1000.0, name="tokens", unit="tokens")))
    settle(admission, admit(admission, cost=Cost(tokens=300.0, held=200.0))[0], OK)
    assert admission.quotas.mirrors["tokens"].used == 300.0


def test_an_output_token_counts_what_the_provider_says(admission: AdmissionController) -> None:
    settle(admission, admit(admission)[0], answer(bucket(1000.0, name="out", unit="output_tokens")))
    permit = admit(admission, cost=Cost(produced=100.0, weight=5.0))[0]
    settle(admission, permit, Outcome(Kind.OK, usage=Usage(100, 10)))
    assert admission.quotas.mirrors["out"].used == 50.0


def answers_read(admission: AdmissionController, count: int, now: float = NOW, cost: Cost | None = None) -> int:
    """How many of so many calls, each answered before the next, are to be read."""
    informing = 0
    for _ in range(count):
        (permit,) = admit(admission, now=now, cost=cost)
        informing += permit.informs
        settle(admission, permit, OK, now)
    return informing


@pytest.mark.parametrize(("limit", "cost", "apart"), [(640.0, Cost(), 20), (1e9, Cost(), READ_CALLS)])
def test_an_answer_is_read_after_a_sixteenth_of_the_room_at_the_latest(limit: float, cost: Cost, apart: int) -> None:
    admission = AdmissionController(KEY, Settings(), 60.0, NOW)
    (first,) = admit(admission)
    settle(admission, first, answer(bucket(limit, limit)))
    assert answers_read(admission, 1) == 1
    assert answers_read(admission, apart - 2) == 0
    assert answers_read(admission, 1) + answers_read(admission, 1) == 1


def test_an_answer_is_read_when_the_last_one_was_read_long_ago(admission: AdmissionController) -> None:
    (first,) = admit(admission)
    settle(admission, first, answer(bucket(1e9, 1e9)))
    assert answers_read(admission, 10) == 1
    assert answers_read(admission, 1, NOW + READ_SECONDS) == 1


@pytest.mark.parametrize("booked", [False, True])
def test_an_answer_that_is_not_read_takes_the_doubt_from_its_call(admission: AdmissionController, booked: bool) -> None:
    (first,) = admit(admission)
    settle(admission, first, answer(bucket(1e6, 1e6), bucket(1e6, 1e6, name="tokens", unit="tokens")))
    calls = admit(admission, 20, cost=Cost(tokens=100.0))
    last = calls.pop()
    if booked:
        assert level(admission) == 1e6 - 20
    for permit in calls[1:]:
        settle(admission, permit, OK)
    left = answer(bucket(1e6, 999_000.0), bucket(1e6, 900_000.0, name="tokens", unit="tokens"))
    settle(admission, last, left)
    mirrors = admission.quotas.mirrors.values()
    assert [len(mirror.ledger.entries) for mirror in mirrors] == [1, 1]
    assert [mirror.used for mirror in mirrors] == [20.0, 2000.0]


@pytest.mark.constants(START_CONCURRENCY=8)
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known of an earlier run"])
def test_the_first_wave_of_refusals_counts_only_where_it_was_sent(known: bool) -> None:
    """A pace of an earlier run that is disproved sent what is refused; the one that begins then did not."""
    admission = AdmissionController(KEY, Settings(), 60.0, 0.0)
    if known:
        admission.pacer.seed({"rate": 80.0, "burst": 80.0}, 0.0)
    now, wave = 0.0, []
    for _ in range(4):
        now = max(now, admission.ready_at(Cost(), now)[0])
        wave += admit(admission, now=now)
    for permit in wave:
        settle(admission, permit, refusal(), now + 0.03)
    gauge = admission.pacer.gauge
    before = gauge.since_zero(gauge.sent, now)[0]
    for _ in range(8):
        now = max(now + 0.1, admission.ready_at(Cost(), now)[0])
        settle(admission, admit(admission, now=now)[0], OK, now + 0.01)
    (refused,) = admit(admission, now=now + 1.0)
    assert gauge.since_zero(gauge.refused(refused.mark), now)[0] - before == 8


def test_what_was_never_sent_was_not_let_in(admission: AdmissionController) -> None:
    (first,) = admit(admission)
    settle(admission, first, refusal(), NOW + 0.05)
    gauge = admission.pacer.gauge
    before, now = gauge.pace(NOW + 9.0), NOW + 0.1
    for _ in range(3):
        now = max(now, admission.ready_at(Cost(), now)[0])
        admission.withdraw(admit(admission, now=now)[0], now, None)
    assert gauge.pace(NOW + 9.0) == before


@pytest.mark.constants(START_CONCURRENCY=5)
def test_trials_that_were_never_sent_lift_no_ceiling() -> None:
    admission = AdmissionController(KEY, Settings(), 60.0, 0.0)
    *_, last = admit(admission, 5, 0.0)
    settle(admission, last, refusal(cause=Cause.CONCURRENCY), 0.02)
    ceiling, now = admission.concurrency.ceiling, 0.02
    for _ in range(12):
        now = admission.ready_at(Cost(), now)[0]
        admission.withdraw(admit(admission, now=now)[0], now, None)
    assert admission.concurrency.ceiling == ceiling


@pytest.mark.constants(START_CONCURRENCY=20)
def test_withdrawn_attempt_beyond_the_slots_undoes_no_trial(admission: AdmissionController) -> None:
    """It was no trial of one more slot: five of those in a row lift the ceiling, whatever was withdrawn meanwhile."""
    lifted = []
    for withdrawing in (False, True):
        tried = AdmissionController(KEY, Settings(), 60.0, NOW)
        tried.concurrency.refused(3, 2, NOW, True, 0.05)
        now = NOW
        for _ in range(8):
            now += 60.0
            for permit in [tried.admit(Cost(), now, 0.0, None) for _ in range(3)]:
                if withdrawing:
                    tried.withdraw(tried.admit(Cost(), now, 0.0, None, beyond=True), now, None)
                tried.settle(permit, OK, now + 1.0, 0.5, None)
        lifted.append(tried.concurrency.ceiling)
    assert lifted[0] == lifted[1] > 2.0


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


def test_hints_in_whole_seconds_that_agree_on_an_instant_do_not_extend_a_pause(admission: AdmissionController) -> None:
    settle(admission, admit(admission, 20)[19], refusal(6.0))
    (trial,) = admit(admission, 1, NOW + 1.5)
    settle(admission, trial, refusal(5.0), NOW + 1.6)
    assert admission.pause.until == pytest.approx(NOW + 6.0)


def test_a_hint_that_no_quota_explains_is_tried_once_and_then_obeyed_where_it_is_true(
    admission: AdmissionController,
) -> None:
    settle(admission, admit(admission, 20)[19], refusal(12.0))
    assert admission.pause.until == NOW + 3.0
    assert admission.ready_at(Cost(), NOW + 3.0)[0] == NOW + 3.0
    (trial,) = admit(admission, 1, NOW + 3.0)
    assert admission.ready_at(Cost(), NOW + 3.0)[0] > NOW + 3.0
    settle(admission, trial, refusal(9.0), NOW + 3.01)
    assert admission.pause.until == pytest.approx(NOW + 12.0)
    assert not admission.pause.is_unanswerable


def test_a_hint_that_a_quota_explains_is_not_tried(mirrored: AdmissionController) -> None:
    permits = admit(mirrored, 10)
    settle(mirrored, permits[0], refusal(30.0, bucket(60.0, 0.0)))
    assert mirrored.pause.until == NOW + 30.0


@pytest.mark.parametrize(("hint", "paused"), [(12.0, 11.25), (11.5, 11.5), (11.0, 11.0), (13.0, 13.0)])
def test_whole_seconds_end_where_the_quota_that_explains_them_has_room_within_the_last_one(
    mirrored: AdmissionController, hint: float, paused: float
) -> None:
    # Nine calls after the refused one, itself, a half in hand, and one for the refusal: at one a second.
    permits = admit(mirrored, 10)
    settle(mirrored, permits[0], refusal(hint, bucket(60.0, 0.0)))
    assert mirrored.pause.until == NOW + paused


def test_a_refusal_before_the_end_of_whole_seconds_is_obeyed_to_its_own_end(mirrored: AdmissionController) -> None:
    settle(mirrored, admit(mirrored, 10)[0], refusal(12.0, bucket(60.0, 0.0)))
    early = NOW + 11.25
    assert mirrored.ready_at(Cost(), early)[0] == early
    (trial,) = admit(mirrored, 1, early)
    assert mirrored.ready_at(Cost(), early)[0] > early, "it goes alone"
    settle(mirrored, trial, refusal(12.0, bucket(60.0, 0.0)), early)
    assert mirrored.pause.until == early + 12.0
