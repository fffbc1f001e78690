from __future__ import annotations

from math import inf

import pytest

from tidegate.core.window_bounds import NATURAL_WINDOWS_SECONDS, snap, window_interval


@pytest.mark.parametrize("window", NATURAL_WINDOWS_SECONDS)
@pytest.mark.parametrize(("limit", "used"), [(60.0, 2.5), (500.0, 0.5), (10_000.0, 9_999.5)])
def test_the_true_window_is_inside_what_a_reading_allows(window: float, limit: float, used: float) -> None:
    reset = int(used * window / limit * 1000) / 1000
    seen = window_interval(limit, float(int(limit - used)), reset, 0.001, 1.0)
    assert seen is not None
    assert seen[0] <= window <= seen[1]


def test_one_unit_used_says_nothing_of_how_long_the_window_may_be() -> None:
    assert window_interval(100.0, 99.0, 0.6, 0.001, 1.0) == (60.0, inf)


def test_a_rounding_to_more_than_one_unit_widens_both_ends() -> None:
    exact = window_interval(1000.0, 500.0, 30.0, 0.001, 1.0)
    rounded = window_interval(1000.0, 500.0, 30.0, 0.001, 100.0)
    assert exact is not None
    assert rounded is not None
    assert rounded[0] < exact[0] < exact[1] < rounded[1]


@pytest.mark.parametrize(
    ("limit", "remaining", "reset"),
    [(0.0, 0.0, 1.0), (10.0, 5.0, -1.0), (10.0, -5.0, 1.0), (10.0, 10.0, 0.0), (10.0, 11.0, 1.0)],
)
def test_a_reading_that_cannot_be_turned_round_says_nothing(limit: float, remaining: float, reset: float) -> None:
    assert window_interval(limit, remaining, reset, 0.001, 1.0) is None


@pytest.mark.parametrize(
    ("low", "high", "prefer", "window"),
    [
        (40.0, inf, None, 60.0),
        (0.5, inf, 60.0, 60.0),
        (0.5, inf, None, 1.0),
        (60.0000001, 70.0, None, 60.0),
        (70.0, 80.0, 60.0, None),
        (86_399.99, 86_400.0, None, 86_400.0),
    ],
)
def test_the_preferred_window_wins_where_it_fits_else_the_shortest_natural_one(
    low: float, high: float, prefer: float | None, window: float | None
) -> None:
    assert snap(low, high, prefer) == window
