"""Attempts that get no answer within the time limit of their caller."""

from __future__ import annotations

from tests.core.values import ABANDONED, OK, OUTAGE
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.circuit_breaker import OUTAGE_FAILURES
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Outcome, Silence

SENT, LATE = 0.0, 120.0

THRESHOLD = OUTAGE_FAILURES


def sent(admission: AdmissionController, count: int = THRESHOLD, now: float = SENT) -> list[Permit]:
    return [admission.admit(Cost(), now, 0.0, None) for _ in range(count)]


def silent(admission: AdmissionController, permit: Permit, slow: bool = False, now: float = LATE) -> Silence:
    return admission.note_silent(permit, slow, now, 0.5, None)


def settle(admission: AdmissionController, permit: Permit, outcome: Outcome = OK, now: float = LATE) -> None:
    admission.settle(permit, outcome, now, 0.5, None)


def test_key_that_answers_nothing_is_an_outage_from_the_threshold_on(admission: AdmissionController) -> None:
    found = [silent(admission, each) for each in sent(admission)]
    assert found == [Silence.UNKNOWN] * (THRESHOLD - 1) + [Silence.OUTAGE]
    assert not admission.breaker.closed
    assert admission.unavailable(LATE + 1.0).outage > 0.0


def test_answer_to_an_earlier_attempt_proves_nothing(admission: AdmissionController) -> None:
    first, *others = sent(admission, THRESHOLD + 1)
    settle(admission, first, now=1.0)
    assert [silent(admission, each) for each in others][-1] is Silence.OUTAGE


def test_attempt_before_an_answered_one_is_slow_by_itself(admission: AdmissionController) -> None:
    *others, last = sent(admission, THRESHOLD + 1)
    settle(admission, last, now=1.0)
    assert [silent(admission, each) for each in others] == [Silence.SLOW] * THRESHOLD
    assert admission.breaker.closed


def test_begun_answer_is_no_silence(admission: AdmissionController) -> None:
    permits = sent(admission)
    for each in permits:
        admission.learn(each, OK, 1.0, None)
    assert [silent(admission, each) for each in permits] == [Silence.SLOW] * THRESHOLD
    assert admission.breaker.closed


def test_work_that_is_known_to_be_slow_does_not_count(admission: AdmissionController) -> None:
    assert {silent(admission, each, slow=True) for each in sent(admission)} == {Silence.UNKNOWN}
    assert admission.breaker.closed


def test_attempt_counts_once_however_it_ends(admission: AdmissionController) -> None:
    first, second, *_ = sent(admission)
    assert [silent(admission, first), silent(admission, first)] == [Silence.UNKNOWN] * 2
    settle(admission, first, OUTAGE)
    silent(admission, second)
    settle(admission, second, ABANDONED)
    assert admission.breaker.failures == 2
    assert (admission.counts.failed, admission.counts.abandoned) == (1, 1)


def test_cancellation_never_counts(admission: AdmissionController) -> None:
    for each in sent(admission, 3 * THRESHOLD):
        settle(admission, each, ABANDONED)
    assert (admission.breaker.closed, admission.breaker.failures) == (True, 0)


def test_silent_probe_opens_the_breaker_again_and_its_late_end_frees_no_other_probe(
    admission: AdmissionController,
) -> None:
    for each in sent(admission):
        silent(admission, each)
    again = admission.breaker.ready_at
    (probe,) = sent(admission, 1, again)
    assert probe.probe
    assert silent(admission, probe, slow=True, now=again + LATE) is Silence.OUTAGE
    following = admission.breaker.ready_at
    assert following > again + LATE
    (other,) = sent(admission, 1, following)
    settle(admission, probe, ABANDONED, following + 0.1)
    assert admission.breaker.opens_at(following + 0.1) > following + 0.1
    settle(admission, other, OK, following + 0.2)
    assert admission.breaker.closed
