from __future__ import annotations

import pytest

from tests.core.values import bucket
from tidegate.core.fixed_window import STRIKES, AdmittedBurst, FixedWindowMirror, SubWindow, portion_of
from tidegate.core.quota import QuotaSet
from tidegate.core.values import Cost, QuotaReading


def lately(under_way: list[float]) -> AdmittedBurst:
    """Calls under way that were sent so many seconds before the refused one; the key has been at work for a minute."""
    return AdmittedBurst(under_way, 500, 60.0)


def test_a_minutes_quota_may_be_let_in_by_the_second() -> None:
    told = portion_of("requests", 600.0, 60.0, lately([0.1] * 10), 0.6)
    assert told == QuotaReading("requests-1s", "requests", "fixed", 10.0, 0.0, None, 1.0)


def test_a_longer_wait_speaks_of_ten_seconds() -> None:
    told = portion_of("requests", 600.0, 60.0, lately([3.0] * 100), 6.0)
    assert told is not None
    assert (told.limit, told.window) == (100.0, 10.0)


@pytest.mark.parametrize(
    ("let_in", "wait"), [([0.1] * 2, 0.6), ([0.1] * 120, 0.6), ([5.0] * 10, 0.6), ([0.1] * 10, 30.0)]
)
def test_too_few_or_too_many_let_in_or_too_long_a_wait_speak_of_no_portion(let_in: list[float], wait: float) -> None:
    assert portion_of("requests", 600.0, 60.0, lately(let_in), wait) is None


@pytest.mark.parametrize(("calls", "speaks"), [(8, False), (9, True), (10, True), (11, True), (12, False)])
def test_where_all_that_was_let_in_is_known_it_must_be_the_whole_of_the_portion(calls: int, speaks: bool) -> None:
    """Many of few: another limit refuses a first round that happens to be a part of the portion."""
    told = portion_of("requests", 600.0, 60.0, AdmittedBurst([0.1] * 4, calls, 0.9), 0.6)
    assert (told is not None) is speaks


@pytest.mark.parametrize(("calls", "speaks"), [(66, True), (67, False)])
def test_more_calls_than_all_windows_so_far_admit_speak_of_no_portion(calls: int, speaks: bool) -> None:
    """4.2 s touch six windows of a second at most, with 11 calls each."""
    told = portion_of("requests", 600.0, 60.0, AdmittedBurst([0.1] * 10, calls, 4.2), 0.6)
    assert (told is not None) is speaks


def test_where_the_window_is_known_roughly_what_was_let_in_fits() -> None:
    told = portion_of("requests", 300.0, 6.1, lately([0.1] * 50), 0.6)
    assert told is not None
    assert told.limit == 50.0


def divided() -> QuotaSet:
    """600 a minute of which the tenth of one second was refused."""
    quotas = QuotaSet()
    quotas.observe([bucket(600.0, 580.0)], 0, 0.0, 0.0, [])
    assert quotas.portion(lately([0.9] * 10), 0.5, 1.01) == "requests-1s"
    quotas.on_refused("requests-1s", 11, 1.0, 1.01, 0.5)
    return quotas


def test_the_portion_holds_calls_until_its_boundary() -> None:
    ready, name = divided().ready_at(Cost(), 1.02)
    assert name == "requests-1s"
    assert 1.5 <= ready <= 1.6


def test_portion_is_found_where_no_header_states_the_reset_of_the_quota() -> None:
    quotas = QuotaSet()
    quotas.observe([bucket(600.0, 580.0, window=None)], 0, 0.0, 0.0, [])
    assert not quotas.mirrors["requests"].is_predictable
    assert quotas.portion(lately([0.9] * 10), 0.5, 1.01) == "requests-1s"


def test_a_refusal_that_names_no_time_speaks_of_no_portion() -> None:
    quotas = QuotaSet()
    quotas.observe([bucket(600.0, 580.0)], 0, 0.0, 0.0, [])
    assert quotas.portion(lately([0.9] * 10), None, 1.01) == ""


def test_a_limit_that_changes_has_no_known_portion() -> None:
    quotas = divided()
    quotas.observe([bucket(60.0, 50.0)], 12, 2.0, 2.0, [])
    assert set(quotas.mirrors) == {"requests"}
    assert quotas.ready_at(Cost(), 2.0) == (2.0, "")


def test_of_two_quotas_of_requests_the_one_that_is_divided_is_found() -> None:
    quotas = QuotaSet()
    day = QuotaReading("day", "requests", "continuous", 50_000.0, 40_000.0, None, 86_400.0)
    quotas.observe([day, bucket(600.0, 580.0)], 0, 0.0, 0.0, [])
    assert quotas.portion(lately([0.9] * 10), 0.5, 1.01) == "requests-1s"


def test_what_headers_tell_of_is_no_portion() -> None:
    quotas = QuotaSet()
    told = QuotaReading("requests-10s", "requests", "fixed", 1000.0, 900.0, 5.0, 10.0)
    quotas.observe([bucket(600.0, 580.0), told], 0, 0.0, 0.0, [])
    assert quotas.portion(AdmittedBurst([3.0] * 100, 500, 60.0), 6.0, 1.0) == ""


def test_a_portion_goes_with_the_quota_that_it_was_one_of() -> None:
    quotas = QuotaSet()
    quotas.seed(bucket(600.0, 580.0), "continuous", 0.0)
    assert quotas.portion(lately([0.9] * 10), 0.5, 1.01) == "requests-1s"
    quotas.prove({"tokens"}, forget=True)
    quotas.observe([], 12, 2.0, 2.0, [])
    assert not quotas.mirrors


def test_what_refuses_on_is_no_portion() -> None:
    portion = SubWindow(
        FixedWindowMirror(QuotaReading("requests-1s", "requests", "fixed", 10.0, 0.0, None, 1.0), 0.0),
        "requests",
        600.0,
    )
    for _ in range(STRIKES):
        portion.refused()
    assert not portion.fails(600.0, 1.0)
    portion.refused()
    assert portion.fails(600.0, 1.0)
    assert not portion.fails(600.0, 10.0), "one more in five windows is borne"


def test_a_refusal_before_a_portion_is_spent_shows_that_there_is_none() -> None:
    """Six of ten were refused at first: the full second that comes later is another limit's too."""
    quotas = QuotaSet()
    quotas.observe([bucket(600.0, 580.0)], 0, 0.0, 0.0, [])
    assert quotas.portion(AdmittedBurst([0.1] * 6, 6, 0.4), 0.5, 0.4) == ""
    assert quotas.portion(lately([0.9] * 10), 0.5, 3.01) == ""
