"""When lone attempts go around the end of a natural window that began with a run of calls."""

from __future__ import annotations

import pytest

from tidegate.core.pacer_phases import natural_wait

GRACE = 0.1


def instants(late: float, until: float) -> list[float]:
    """Return when attempts go that are all refused, in seconds since the run began: they would be `until` apart."""
    elapsed, found = 9.0, []
    while (wait := natural_wait(until, elapsed, GRACE, late)) < until:
        elapsed += wait
        found.append(round(elapsed, 3))
    return found


def test_a_window_is_met_once_where_messages_are_as_quick_as_they_were() -> None:
    assert instants(GRACE, 5.0) == [10.1]


def test_a_window_that_began_later_is_met_soon_after() -> None:
    """The first calls of a busy client or server arrive late, so their window begins and ends as much later."""
    assert instants(1.5, 5.0) == [10.1, 10.4, 10.8, 11.5]


@pytest.mark.parametrize("late", [0.0, 0.05])
def test_without_a_grace_nothing_is_repeated(late: float) -> None:
    assert natural_wait(5.0, 9.0, 0.0, late) == 1.0
