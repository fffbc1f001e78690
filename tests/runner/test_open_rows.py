"""The low water: the first row that may still need something."""

from __future__ import annotations

from tidegate.experiments.engine.watermark import OpenRows


def test_it_is_what_was_reached_when_nothing_is_open() -> None:
    frontier = OpenRows()
    frontier.reached = 7
    assert frontier.low_water() == 7


def test_it_stays_below_the_first_open_row_however_many_later_ones_are_done() -> None:
    frontier = OpenRows()
    frontier.reached = 10
    for ordinal in range(10):
        frontier.opened(ordinal)
    for ordinal in (9, 1, 2, 3):
        frontier.closed(ordinal)
    assert frontier.low_water() == 0
    frontier.closed(0)
    assert frontier.low_water() == 4


def test_a_row_is_done_when_its_last_item_is() -> None:
    frontier = OpenRows()
    frontier.reached = 5
    frontier.opened(2)
    frontier.opened(2)
    frontier.closed(2)
    assert frontier.low_water() == 2
    frontier.opened(2)
    frontier.closed(2)
    frontier.closed(2)
    assert (frontier.low_water(), frontier._open) == (5, {})


def test_a_row_that_opens_again_holds_the_water_again() -> None:
    frontier = OpenRows()
    frontier.reached = 3
    frontier.opened(1)
    frontier.closed(1)
    assert frontier.low_water() == 3
    frontier.opened(1)
    assert frontier.low_water() == 1
