"""What an admission tells of itself."""

from __future__ import annotations

import pytest

from tests.core.values import ABANDONED, KEY, OK, OUTAGE, answer, bucket, fixed, refusal
from tidegate.core import events
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Kind, Outcome, Source

Out = list[events.Event]


def kinds(out: Out) -> list[str]:
    return [type(event).__name__ for event in out]


def of(out: Out, kind: type[events.Event]) -> list[events.Event]:
    return [event for event in out if isinstance(event, kind)]


def admit(admission: AdmissionController, out: Out, now: float = 0.0) -> Permit:
    return admission.admit(Cost(), now, 1.5, out)


def settle(admission: AdmissionController, permit: Permit, outcome: Outcome, now: float, out: Out) -> None:
    admission.settle(permit, outcome, now, 0.5, out)


def test_a_slot_is_acquired_and_released(admission: AdmissionController, out: Out) -> None:
    settle(admission, admit(admission, out), ABANDONED, 2.0, out)
    assert out == [
        events.SlotAcquired(KEY, 0.0, 1.5, 1),
        events.SlotReleased(KEY, 2.0, 2.0, 0, Kind.ABANDONED),
    ]


def test_a_permit_that_is_withdrawn_releases_its_slot(admission: AdmissionController, out: Out) -> None:
    admission.withdraw(admit(admission, out), 3.0, out)
    assert kinds(out) == ["SlotAcquired", "SlotReleased"]


def test_a_quota_is_learned_once(admission: AdmissionController, out: Out) -> None:
    for _ in range(2):
        settle(admission, admit(admission, out), answer(bucket(60.0, 10.0)), 0.0, out)
    assert of(out, events.RateLimitLearned) == [events.RateLimitLearned(KEY, 0.0, "requests", "requests", 60.0, 60.0)]


def test_scarcity_is_told_when_it_begins(admission: AdmissionController, out: Out) -> None:
    for remaining in (50.0, 5.0, 4.0, 3.0):
        settle(admission, admit(admission, out), answer(fixed(100.0, remaining)), 0.0, out)
    assert [(event.share, event.quota) for event in of(out, events.RateLimitWarning)] == [(0.05, "requests")]


def test_an_unexplained_refusal_tells_the_cut_the_pause_and_itself(admission: AdmissionController, out: Out) -> None:
    permits = [admit(admission, []) for _ in range(3)]
    settle(admission, permits[2], refusal()._replace(cause=Cause.CONCURRENCY), 0.5, out)
    settle(admission, permits[1], refusal(4.0), 0.5, out)
    assert out == [
        events.ConcurrencyDecreased(KEY, 0.5, 2, Cause.CONCURRENCY),
        events.RateLimitHit(KEY, 0.5, Kind.RATE_LIMIT, Cause.CONCURRENCY, None, ""),
        events.SlotReleased(KEY, 0.5, 0.5, 2, Kind.RATE_LIMIT, Cause.CONCURRENCY),
        events.KeyPaused(KEY, 0.5, 4.5, Source.RETRY_AFTER),
        events.RateLimitHit(KEY, 0.5, Kind.RATE_LIMIT, Cause.RATE, 4.0, ""),
        events.SlotReleased(KEY, 0.5, 0.5, 1, Kind.RATE_LIMIT, Cause.RATE),
    ]


def test_an_explained_refusal_names_its_quota(admission: AdmissionController, out: Out) -> None:
    settle(admission, admit(admission, []), refusal(None, bucket(60.0, 0.0)), 0.0, out)
    assert [event.gate for event in of(out, events.RateLimitHit)] == ["requests"]
    assert of(out, events.ConcurrencyDecreased) == of(out, events.KeyPaused) == []


def test_a_refusal_is_told_with_the_status_of_its_answer(admission: AdmissionController, out: Out) -> None:
    settle(admission, admit(admission, []), refusal(4.0)._replace(status=429), 0.5, out)
    told = [event.status for event in out if isinstance(event, events.RateLimitHit | events.SlotReleased)]
    assert told == [429, 429]


def test_a_limit_at_its_lowest_tells_no_cut(admission: AdmissionController, out: Out) -> None:
    for now in (0.0, 10.0):
        permits = [admit(admission, out, now) for _ in range(2)]
        settle(admission, permits[1], refusal()._replace(cause=Cause.CONCURRENCY), now, out)
        settle(admission, permits[0], OK, now, out)
    assert len(of(out, events.ConcurrencyDecreased)) == 1


def test_a_won_slot_is_told(admission: AdmissionController, out: Out) -> None:
    permits = [admit(admission, []) for _ in range(20)]
    settle(admission, permits[0], OK, 0.0, out)
    assert of(out, events.ConcurrencyIncreased) == [events.ConcurrencyIncreased(KEY, 0.0, 21)]


def test_every_resumption_follows_a_pause(admission: AdmissionController, out: Out) -> None:
    first, second = admit(admission, out), admit(admission, out)
    settle(admission, first, refusal(0.5), 0.0, out)
    third = admit(admission, out, 5.0)
    settle(admission, second, refusal(0.5), 5.0, out)
    admit(admission, out, 6.0)
    settle(admission, third, refusal(1.0), 6.0, out)
    assert kinds(out)[-3:] == ["KeyPaused", "RateLimitHit", "SlotReleased"]
    admit(admission, out, 9.0)
    told = [name for name in kinds(out) if name in ("KeyPaused", "KeyResumed")]
    assert told == ["KeyPaused", "KeyResumed"] * 3


def test_a_second_refusal_that_does_not_extend_the_pause_tells_none(admission: AdmissionController, out: Out) -> None:
    for permit in [admit(admission, []), admit(admission, [])]:
        settle(admission, permit, refusal(4.0), 0.0, out)
    assert len(of(out, events.KeyPaused)) == 1


def test_the_breaker_tells_each_of_its_turns(admission: AdmissionController, out: Out) -> None:
    for permit in [admit(admission, []) for _ in range(5)]:
        settle(admission, permit, OUTAGE, 0.0, out)
    settle(admission, admit(admission, out, 1.0), OUTAGE, 1.0, out)
    settle(admission, admit(admission, out, 3.0), OK, 3.0, out)
    told = [event for event in out if "Breaker" in type(event).__name__]
    assert told == [
        events.BreakerOpened(KEY, 0.0, 0.5),
        events.BreakerHalfOpened(KEY, 1.0),
        events.BreakerOpened(KEY, 1.0, 1.525),
        events.BreakerHalfOpened(KEY, 3.0),
        events.BreakerClosed(KEY, 3.0),
    ]


@pytest.mark.parametrize("outcome", [OK, OUTAGE, refusal(), ABANDONED])
def test_with_nobody_listening_no_event_is_built(
    admission: AdmissionController, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SlotAcquired", "SlotReleased", "RateLimitHit", "KeyPaused", "BreakerOpened"):
        monkeypatch.delattr(events, name)
    for _ in range(6):
        admission.settle(admission.admit(Cost(), 0.0, 0.0, None), outcome, 0.0, 0.5, None)
    assert admission.in_flight == 0
