"""The clocks of a key that answers nobody."""

from __future__ import annotations

import pytest

from tests.core.values import KEY
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.circuit_breaker import FailingCalls, OutageClock
from tidegate.core.values import Cause, Cost, Kind, Outcome
from tidegate.settings import Settings

RATE = Outcome(Kind.RATE_LIMIT, Cause.RATE, status=429)


def test_clock_runs_from_the_first_refusal_to_the_next_answer() -> None:
    clocks = OutageClock()
    assert clocks.at(5.0).unanswered == 0.0
    clocks.refused(RATE, 10.0)
    clocks.refused(RATE, 20.0)
    assert (clocks.at(25.0).unanswered, clocks.at(25.0).outage, clocks.at(25.0).last) == (15.0, 0.0, RATE)
    clocks.answered()
    assert clocks.at(30.0).unanswered == 0.0


def test_clock_stands_still_until_a_stated_reset() -> None:
    clocks = OutageClock()
    clocks.refused(RATE, 10.0)
    clocks.stated(12.0, 20.0)
    clocks.stated(15.0, 18.0)
    assert (clocks.at(16.0).unanswered, clocks.at(16.0).stated_for) == (2.0, 4.0)
    clocks.stated(30.0, 40.0)
    assert (clocks.at(50.0).unanswered, clocks.at(50.0).stated_for) == (22.0, 0.0)


class DrivenAdmission:
    """An admission whose calls end as a test says."""

    def __init__(self, **changes: object) -> None:
        self.admission = AdmissionController(KEY, Settings(**changes), 60.0, 0.0)

    def call(self, now: float, outcome: Outcome) -> None:
        permit = self.admission.admit(Cost(), now, 0.0, None)
        self.admission.settle(permit, outcome, now, 0.5, None)


class TestAdmission:
    def test_refusal_that_names_a_time_stops_the_clock(self) -> None:
        driven = DrivenAdmission()
        driven.call(1.0, RATE._replace(retry_after=30.0))
        assert driven.admission.unavailable(21.0).unanswered == 0.0
        assert driven.admission.unavailable(41.0).unanswered == pytest.approx(10.0)


def test_failures_between_answers_of_long_ago_explain_no_outage() -> None:
    failing = FailingCalls()
    for answers in range(100, 5_000, 100):
        failing.outran(answers)
    for _ in range(8):
        failing.began(6_000)
    assert not failing.is_no_outage(6_000, 5_000)


def test_last_calls_that_fail_by_themselves_are_no_outage_until_one_more_is_answered() -> None:
    failing = FailingCalls()
    assert not failing.is_no_outage(0, 0)
    for answers in (9, 18, 27):
        failing.outran(answers)
    for _ in range(4):
        failing.began(40)
    assert failing.is_no_outage(40, 36)
    for _ in range(4):
        failing.began(40)
    assert not failing.is_no_outage(40, 36)
    failing.began(50)
    assert failing.is_no_outage(50, 37)
