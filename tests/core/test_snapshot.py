from __future__ import annotations

import pytest

from tests.core.values import KEY, OK, OUTAGE, answer, bucket, refusal
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.snapshot import KeySnapshot, RegistrySnapshot, key_snapshot
from tidegate.core.values import Cost, Key, Outcome


def settle(admission: AdmissionController, outcome: Outcome, now: float, took: float = 0.0) -> None:
    permit = admission.admit(Cost(), now, 0.0, None)
    admission.settle(permit, outcome, now + took, 0.5, None)


def test_a_key_of_which_nothing_is_known_is_ready(admission: AdmissionController) -> None:
    seen = key_snapshot(admission, 0, Cost(), Cost(), 5.0)
    assert (seen.ready_in, seen.gate, seen.breaker, seen.paused_for, seen.quotas) == (0.0, "", "closed", 0.0, ())
    assert (seen.latency_mean, seen.latency_p50, seen.latency_p99) == (None, None, None)


def test_it_counts_what_happened(admission: AdmissionController) -> None:
    settle(admission, OK, 0.0, 1.0)
    settle(admission, OUTAGE, 1.0)
    settle(admission, refusal(3.0), 2.0)
    admission.admit(Cost(), 9.0, 0.0, None)
    seen = key_snapshot(admission, 1, Cost(), Cost(), 9.0)
    assert (seen.attempts, seen.answered, seen.failed, seen.refused, seen.in_flight, seen.waiting) == (4, 1, 1, 1, 1, 1)


def test_it_tells_the_closed_gate_and_for_how_long(admission: AdmissionController) -> None:
    settle(admission, refusal(3.0), 0.0)
    seen = key_snapshot(admission, 0, Cost(), Cost(), 1.0)
    assert (seen.ready_in, seen.gate, seen.paused_for) == (2.0, "pause", 2.0)


def test_it_tells_when_the_call_at_the_head_may_go(admission: AdmissionController) -> None:
    settle(admission, answer(bucket(60.0, 10.0)), 0.0)
    assert key_snapshot(admission, 1, Cost(requests=20.0), Cost(requests=20.0), 0.0).ready_in == pytest.approx(10.25)


def test_it_tells_what_each_quota_holds(admission: AdmissionController) -> None:
    settle(admission, answer(bucket(60.0, 12.0)), 0.0)
    (quota,) = key_snapshot(admission, 0, Cost(), Cost(), 1.0).quotas
    assert (quota.name, quota.unit, quota.limit, quota.window, quota.level) == (
        "requests",
        "requests",
        60.0,
        60.0,
        13.0,
    )


def test_latencies_are_of_the_last_hundred_answers(admission: AdmissionController) -> None:
    settle(admission, OK, 0.0, 1000.0)
    for number in range(100):
        settle(admission, OK, 2000.0, float(number))
    seen = key_snapshot(admission, 0, Cost(), Cost(), 3000.0)
    assert (seen.latency_mean, seen.latency_p50, seen.latency_p99) == (49.5, 49.0, 98.0)


@pytest.fixture
def two(admission: AdmissionController) -> tuple[KeySnapshot, KeySnapshot]:
    settle(admission, OK, 0.0)
    settle(admission, refusal(), 0.0)
    admission.admit(Cost(), 0.0, 0.0, None)
    return key_snapshot(admission, 2, Cost(), Cost(), 0.0), key_snapshot(admission, 1, Cost(), Cost(), 0.0)


def test_a_registry_sums_over_its_keys(two: tuple[KeySnapshot, KeySnapshot]) -> None:
    whole = RegistrySnapshot({KEY: two[0], Key("other", "https://x"): two[1]})
    assert (whole.attempts, whole.answered, whole.refused, whole.in_flight, whole.waiting) == (6, 2, 2, 2, 3)
