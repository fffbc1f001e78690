"""What a key knows, where from, and how far it can be trusted."""

from __future__ import annotations

from tests.core.values import OUTAGE, answer, bucket, refusal
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.provenance import Confidence, LearnedValue, Provenance
from tidegate.core.snapshot import key_snapshot
from tidegate.core.values import Cause, Cost, Outcome, Source


def settle(admission: AdmissionController, outcome: Outcome, now: float) -> None:
    admission.settle(admission.admit(Cost(), now, 0.0, None), outcome, now, 0.5, None)


def learnt(admission: AdmissionController, of: str, now: float) -> LearnedValue | None:
    return next((each for each in key_snapshot(admission, 0, Cost(), Cost(), now).learnt if each.of == of), None)


def test_what_nothing_was_learnt_of_is_assumed(admission: AdmissionController) -> None:
    known = learnt(admission, "concurrency", 5.0)
    assert (known.origin, known.count, known.confidence) == (Source.DEFAULT, 0, Confidence.ASSUMED)
    assert str(known) == "concurrency: assumed (default)"


def test_a_quota_is_stated_by_headers_until_its_window_is_over(admission: AdmissionController) -> None:
    for now in (1.0, 2.0, 3.0):
        settle(admission, answer(bucket(60.0, 10.0)), now)
    known = learnt(admission, "quota requests", 13.0)
    assert (known.origin, known.count, known.age, known.confidence) == (Source.HEADERS, 3, 10.0, Confidence.STATED)
    assert str(known) == "quota requests: stated (headers, 3x, 10 s ago)"
    assert learnt(admission, "quota requests", 64.0).confidence is Confidence.OLD


def test_a_window_that_no_header_names_is_inferred_from_resets_or_assumed(admission: AdmissionController) -> None:
    settle(admission, answer(bucket(60.0, 10.0, window=None)), 1.0)
    assert learnt(admission, "window of requests", 2.0).confidence is Confidence.ASSUMED
    settle(admission, answer(bucket(60.0, 10.0, window=None, reset_after=50.0)), 2.0)
    assert learnt(admission, "window of requests", 3.0).confidence is Confidence.INFERRED
    settle(admission, answer(bucket(60.0, 10.0, window=60.0)), 3.0)
    assert learnt(admission, "window of requests", 4.0).confidence is Confidence.STATED


def test_a_refusal_teaches_the_limit_the_pace_and_the_pause(admission: AdmissionController) -> None:
    crowd = [admission.admit(Cost(), 0.0, 0.0, None) for _ in range(3)]
    admission.settle(crowd[2], refusal(cause=Cause.CONCURRENCY), 0.5, 0.5, None)
    assert learnt(admission, "concurrency", 2.0).origin is Source.REFUSALS
    settle(admission, refusal(4.0), 1.0)
    assert learnt(admission, "pace", 2.0).origin is Source.REFUSALS
    assert (learnt(admission, "pause", 2.0).origin, learnt(admission, "pause", 2.0).confidence) == (
        Source.RETRY_AFTER,
        Confidence.STATED,
    )
    assert learnt(admission, "pause", 6.0) is None


def test_a_refusal_without_a_hint_pauses_by_inference(admission: AdmissionController) -> None:
    settle(admission, refusal(cause=Cause.OTHERS_CAPACITY), 1.0)
    assert learnt(admission, "pause", 1.0).confidence is Confidence.INFERRED


def test_failures_teach_the_breaker(admission: AdmissionController) -> None:
    for number in range(5):
        settle(admission, OUTAGE, float(number))
    known = learnt(admission, "breaker", 4.0)
    assert (known.origin, known.count) == (Source.FAILURES, 5)


def test_what_an_earlier_run_knew_is_assumed_until_something_confirms_it() -> None:
    lesson = Provenance()
    lesson.seeded()
    assert (lesson.learnt("x", 1.0).origin, lesson.learnt("x", 1.0).confidence) == (
        Source.EARLIER_RUN,
        Confidence.ASSUMED,
    )
