"""What a key has learned goes from one run to the next, and is believed no longer than it takes to ask once."""

from __future__ import annotations

import pytest

from tests.core.values import KEY, OK, REFUSED, answer, bucket, fixed, refusal
from tidegate.core import events
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.provenance import Confidence
from tidegate.core.saved_state import SavedKey, SavedQuota, export, seed
from tidegate.core.snapshot import key_snapshot
from tidegate.core.values import Cost, Outcome, RequestFacts, Usage
from tidegate.settings import Settings

EMPTY = SavedQuota("requests", "requests", "continuous", 60.0, 60.0, 0.0, None, True, "continuous")


def admit(admission: AdmissionController, now: float = 0.0) -> Permit:
    return admission.admit(Cost(), now, 0.0, None)


def settle(admission: AdmissionController, outcome: Outcome, now: float = 0.0) -> None:
    admission.settle(admit(admission, now), outcome, now, 0.5, None)


def knowing(*quotas: SavedQuota, **gates: dict[str, float]) -> AdmissionController:
    made = AdmissionController(KEY, Settings(), 60.0, 0.0)
    seed(made, SavedKey(quotas, gates), 0.0, 0.0)
    return made


def test_what_nothing_was_learned_of_is_not_carried(admission: AdmissionController) -> None:
    settle(admission, Outcome(OK.kind))
    assert export(admission, 5.0).quotas == ()
    assert "estimate" not in export(admission, 5.0).gates


def test_a_quota_is_carried_with_its_level(admission: AdmissionController) -> None:
    settle(admission, answer(bucket(60.0, 10.0)))
    assert export(admission, 5.0).quotas == (
        SavedQuota("requests", "requests", "continuous", 60.0, 60.0, 15.0, None, True, "continuous"),
    )


def test_a_boundary_is_carried_as_the_time_until_then(admission: AdmissionController) -> None:
    settle(admission, answer(fixed(60.0, 10.0, reset_after=30.0)))
    (quota,) = export(admission, 5.0).quotas
    assert (quota.refill, quota.level, quota.back_in) == ("fixed", 10.0, pytest.approx(25.02))


@pytest.mark.parametrize(("age", "level"), [(0.0, 10.0), (20.0, 30.0), (50.0, 60.0), (1e6, 60.0), (-9.0, 10.0)])
def test_a_bucket_refills_meanwhile_and_banks_nothing(age: float, level: float) -> None:
    assert EMPTY._replace(level=10.0).after(age).level == level


@pytest.mark.parametrize(
    ("age", "level", "back_in"), [(0.0, 10.0, 25.0), (24.0, 10.0, 1.0), (25.0, 60.0, 60.0), (95.0, 60.0, 50.0)]
)
def test_a_window_comes_back_at_its_boundaries(age: float, level: float, back_in: float) -> None:
    later = EMPTY._replace(refill="fixed", level=10.0, back_in=25.0).after(age)
    assert (later.level, later.back_in) == (level, back_in)


@pytest.mark.parametrize(("age", "level"), [(59.0, 10.0), (60.0, 60.0)])
def test_a_window_without_a_boundary_is_back_when_it_is_over(age: float, level: float) -> None:
    assert EMPTY._replace(refill="fixed", level=10.0).after(age).level == level


def test_a_key_goes_on_where_it_was(admission: AdmissionController) -> None:
    settle(admission, answer(bucket(60.0, 10.0)))
    told = export(admission, 5.0)
    later = AdmissionController(KEY, Settings(), 60.0, 0.0)
    seed(later, told, 20.0, 100.0)
    assert later.quotas.mirrors["requests"].level(100.0) == 35.0
    assert export(later, 100.0).quotas == ()
    settle(later, answer(bucket(60.0, 30.0)), 100.0)
    assert export(later, 100.0).quotas[0].level == 30.0


def test_what_is_carried_is_assumed_until_an_answer_states_it() -> None:
    admission = knowing(EMPTY)
    told = {each.of: each.confidence for each in key_snapshot(admission, 0, Cost(), Cost(), 0.0).learnt}
    assert told["quota requests"] is told["window of requests"] is Confidence.ASSUMED
    settle(admission, answer(bucket(60.0, 10.0)))
    told = {each.of: each.confidence for each in key_snapshot(admission, 0, Cost(), Cost(), 0.0).learnt}
    assert told["quota requests"] is Confidence.STATED


def test_one_call_asks_whatever_an_earlier_run_knew_and_the_next_waits_for_its_answer() -> None:
    admission = knowing(EMPTY._replace(window=86_400.0))
    assert admission.ready_at(Cost(), 0.0) == (0.0, "")
    permit = admit(admission)
    ready, gate = admission.ready_at(Cost(), 0.0)
    assert (ready > 1000.0, gate) == (True, "quota requests")
    admission.settle(permit, answer(bucket(1000.0, 900.0)), 1.0, 0.5, None)
    assert admission.ready_at(Cost(), 1.0) == (1.0, "")


def test_the_asking_call_heeds_what_this_run_has_seen_itself() -> None:
    admission = knowing(EMPTY._replace(name="day", window=86_400.0))
    settle(admission, refusal(None, bucket(60.0, 0.0)))
    assert admission.ready_at(Cost(), 0.0)[1] == "quota requests"


def test_a_quota_that_the_first_answer_does_not_name_is_forgotten() -> None:
    admission = knowing(EMPTY, EMPTY._replace(name="day"))
    settle(admission, answer(bucket(60.0, 10.0)))
    assert list(admission.quotas.mirrors) == ["requests"]
    admission = knowing(EMPTY)
    settle(admission, OK)
    assert list(admission.quotas.mirrors) == []
    assert admission.ready_at(Cost(), 0.0) == (0.0, "")


def test_a_refusal_forgets_nothing_and_is_not_explained_by_what_is_unproven() -> None:
    admission = knowing(EMPTY)
    out: list[events.Event] = []
    admission.settle(admit(admission), REFUSED, 0.0, 0.5, out)
    (hit,) = [event for event in out if isinstance(event, events.RateLimitHit)]
    assert hit.gate == ""
    assert list(admission.quotas.mirrors) == ["requests"]
    assert admission.ready_at(Cost(), 0.0)[1] == "pace"


def test_a_proven_quota_is_told_as_learned() -> None:
    admission = knowing(EMPTY)
    out: list[events.Event] = []
    admission.settle(admit(admission), answer(bucket(60.0, 10.0)), 0.0, 0.5, out)
    assert [event.quota for event in out if isinstance(event, events.RateLimitLearned)] == ["requests"]


def test_estimates_are_carried_and_forgotten_where_the_first_answer_is_far_off(admission: AdmissionController) -> None:
    admission.estimate.learn(RequestFacts(input_chars=300), Usage(100, 1000))
    plain = dict(export(admission, 0.0).gates["estimate"])
    like, unlike = knowing(estimate=plain), knowing(estimate=plain)
    assert like.estimate.mean_output == admission.estimate.mean_output
    assert like.estimate.chars_per_token == pytest.approx(admission.estimate.chars_per_token)
    like.estimate.learn(RequestFacts(input_chars=300), Usage(100, 400))
    unlike.estimate.learn(RequestFacts(input_chars=300), Usage(2000, 400))
    fresh = AdmissionController(KEY, Settings(), 60.0, 0.0)
    fresh.estimate.learn(RequestFacts(input_chars=300), Usage(2000, 400))
    assert like.estimate.mean_output > fresh.estimate.mean_output
    assert unlike.estimate.chars_per_token == fresh.estimate.chars_per_token


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 1e300])
def test_absurd_numbers_are_not_believed(number: float) -> None:
    admission = knowing(concurrency={"slots": number}, estimate={"mean_output": number, "chars_per_token": number})
    assert 1 <= admission.concurrency.limit <= admission.concurrency.highest
    assert 0.5 <= admission.estimate.chars_per_token <= 16.0
    assert 1.0 <= admission.estimate.mean_output <= 1e6
