"""The window of a quota that users are told: the stated one, or one that later requests have confirmed."""

from __future__ import annotations

import pytest

from tests.core.values import KEY, answer, bucket
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import RateLimitLearned
from tidegate.core.limiter_state import Permit
from tidegate.core.provenance import QuotaProvenance
from tidegate.core.values import Source
from tidegate.settings import Settings
from tidegate.testing import VirtualClock


def inferred() -> QuotaProvenance:
    provenance = QuotaProvenance(60.0)
    provenance.window = Source.ANSWERS
    return provenance


def test_window_that_only_a_burst_suggests_is_not_told() -> None:
    provenance = inferred()
    for number in range(30):
        provenance.note_window(1.46, 0.01 * number, 2.0 + 0.01 * number)
    assert (provenance.reported_window, provenance.retold) == (60.0, False)


def test_window_is_told_once_two_later_rounds_agree() -> None:
    provenance = inferred()
    provenance.note_window(6.0, 0.0, 1.0)
    provenance.note_window(6.0, 1.5, 2.0)
    assert provenance.reported_window == 60.0
    provenance.note_window(6.01, 2.5, 3.0)
    assert (provenance.reported_window, provenance.retold) == (6.01, True)


def test_another_guess_begins_anew() -> None:
    provenance = inferred()
    for number, window in enumerate((86_400.0, 3600.0, 4784.4, 14_357.4, 560.7)):
        provenance.note_window(window, number + 0.5, number + 1.0)
    assert provenance.reported_window == 60.0


def test_stated_window_is_told_at_once() -> None:
    provenance = QuotaProvenance(60.0)
    provenance.window = Source.HEADERS
    provenance.note_window(1.0, 0.0, 0.0)
    assert (provenance.reported_window, provenance.retold) == (1.0, True)


@pytest.mark.constants(START_CONCURRENCY=6)
def test_burst_of_answers_is_told_as_the_usual_window_everywhere() -> None:
    # 240 a minute with a burst of 6: the first wave drains it, so the limit seems to be back in about a second.
    clock = VirtualClock()
    registry = RateLimitRegistry(Settings(), clock=clock, draw=lambda: 0.5)
    told: list[RateLimitLearned] = []
    registry.subscribe(lambda event: told.append(event) if isinstance(event, RateLimitLearned) else None)
    permits = [registry.try_admit(KEY) for _ in range(6)]
    clock.advance(2.0)
    for number, permit in enumerate(permits):
        assert isinstance(permit, Permit)
        registry.settle(permit, answer(bucket(240.0, 5.0 - number, reset_after=0.25 * (number + 1), window=None)))
    (quota,) = registry.snapshot().keys[KEY].quotas
    assert (quota.limit, quota.window) == (240.0, 60.0)
    assert [(event.limit, event.window) for event in told] == [(240.0, 60.0)]
