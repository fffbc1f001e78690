"""Windows by name and by inference."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.values import Kind, Outcome, QuotaReading
from tidegate.core.window_bounds import NATURAL_WINDOWS_SECONDS, snap, window_interval
from tidegate.providers import dimensions
from tidegate.providers._values import window_name, window_of
from tidegate.providers.openai import OPENAI


@pytest.mark.parametrize(
    ("seconds", "name"),
    [(1, "s"), (10, "10s"), (60, "minute"), (300, "300s"), (3600, "hour"), (86400, "day"), (2592000, "month")],
)
def test_a_window_has_a_name(seconds, name):
    assert window_name(seconds) == name


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "resolution", "quantum", "window"),
    [
        (10000, 9999, 0.006, 1e-3, 1, 60),
        (10000, 9999, 8.64, 1e-3, 1, 86400),
        (14400, 14397, 17.399999999, 1e-9, 1, 86400),
        (500000, 499999, 0.172799999, 1e-9, 1, 86400),
        (3500, 3498, 0.017, 1e-3, 1, 60),
        (1000, 942, 5011, 1, 1, 86400),
        (20000, 19999, 0, 1e-3, 1, 60),
        (9000, 8900, 0.111, 1e-3, 1, 10),
        (24000000, 23999000, 0, 1, 1000, 60),
        (200, 199, 259, 1e-3, 1, 86400),
    ],
)
def test_the_window_follows_from_limit_remaining_and_reset(limit, remaining, reset, resolution, quantum, window):
    interval = window_interval(limit, remaining, reset, resolution, quantum)
    assert snap(*interval, 60.0) == window


@pytest.mark.parametrize(
    ("limit", "remaining", "reset"), [(10, 10, 0), (10, 11, 5), (0, 0, 0), (-1, -1, 0), (10, 5, -1), (10, -1, 1)]
)
def test_an_unused_or_senseless_quota_says_nothing_of_its_window(limit, remaining, reset):
    assert window_interval(limit, remaining, reset, 1e-3, 1) is None


def test_snapping_prefers_what_is_assumed_then_the_shortest_and_may_find_nothing():
    assert snap(1, 100, 60) == 60
    assert snap(61, math.inf, 60) == 3600
    assert snap(2, 9, 60) is None
    assert snap(0.5, 1.5) == 1


@given(
    st.sampled_from(NATURAL_WINDOWS_SECONDS),
    st.integers(2, 10**8),
    st.floats(0.001, 1.0),
    st.sampled_from([1e-9, 1e-3, 1.0]),
)
def test_the_true_window_is_always_inside_the_interval(window, limit, share, resolution):
    used = share * limit
    remaining = math.floor(limit - used)
    reset = math.floor(used * window / limit / resolution) * resolution
    interval = window_interval(limit, remaining, reset, resolution, 1.0)
    assert interval is not None
    low, high = interval
    assert low * (1 - 1e-6) <= window <= high * (1 + 1e-6)


def test_dimensions_are_named_by_what_and_window_and_default_to_the_providers():
    readings = (
        QuotaReading("requests", "requests", "continuous", 10000, 9999, 8.64),
        QuotaReading("tokens", "tokens", "continuous", 10000, 10000, 0.0),
        QuotaReading("project-tokens", "tokens", "continuous", 7),
        QuotaReading("requests-minute", "requests", "continuous", 5, window=60.0),
        QuotaReading("concurrent-requests", "concurrent_requests", "continuous", 3),
    )
    seen = dimensions(Outcome(Kind.OK, readings=readings), OPENAI)
    assert seen["limits"] == {
        "requests_per_day": 10000,
        "tokens_per_minute": 10000,
        "project_tokens_per_minute": 7,
        "requests_per_minute": 5,
        "concurrent_requests": 3,
    }
    assert seen["remaining"] == {"requests_per_day": 9999, "tokens_per_minute": 10000}
    assert seen["reset_after_s"] == {"requests_per_day": 8.64, "tokens_per_minute": 0}


def test_a_window_that_fits_nothing_natural_is_the_default():
    assert window_of(QuotaReading("requests", "requests", "continuous", 100, 50, 2.0), OPENAI) == 60
