from __future__ import annotations

from tests.core.values import bucket
from tidegate.core.fixed_window import PORTION_REFUSALS, AdmittedBurst, FixedWindowMirror, SubWindow, portion_of
from tidegate.core.quota import QuotaSet
from tidegate.core.values import Cost, QuotaReading


def lately(under_way: list[float]) -> AdmittedBurst:
    """Calls under way that were sent so many seconds before the refused one; the key has been at work for a minute."""
    return AdmittedBurst(under_way, 500, 60.0)


def test_a_minutes_quota_may_be_let_in_by_the_second() -> None:
    told = portion_of("requests", 600.0, 60.0, lately([0.1] * 10), 0.6)
    assert told == QuotaReading("requests-1s", "requests", "fixed", 10.0, 0.0, None, 1.0)


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
    for _ in range(PORTION_REFUSALS):
        portion.refused()
    assert not portion.fails(600.0, 1.0)
    portion.refused()
    assert portion.fails(600.0, 1.0)
    assert not portion.fails(600.0, 10.0), "one more in five windows is borne"
