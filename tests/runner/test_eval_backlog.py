"""What evaluations only the database holds, and how a scan meets each of them."""

from __future__ import annotations

import random

from tidegate.experiments.engine.completion import EvalBacklog
from tidegate.experiments.engine.queues import Place


def test_a_fresh_experiment_owes_nothing_and_an_earlier_run_everything() -> None:
    assert not EvalBacklog(left_over=False).may_have_more
    left = EvalBacklog(left_over=True)
    assert (left.may_have_more, left.cursor) == (True, None)


def test_the_scan_begins_just_before_what_was_turned_away_first() -> None:
    backlog = EvalBacklog(left_over=False)
    backlog.defer(Place(40, 1))
    assert (backlog.may_have_more, backlog.cursor) == (True, Place(40, -1))


def test_it_ends_when_a_page_finds_no_more_and_nothing_came_meanwhile() -> None:
    backlog = EvalBacklog(left_over=True)
    backlog.scanned(Place(9, 0), at_end=True)
    assert not backlog.may_have_more


def test_what_comes_ahead_of_the_cursor_keeps_it_open() -> None:
    backlog = EvalBacklog(left_over=True)
    backlog.defer(Place(12, 0))
    backlog.scanned(None, at_end=True)
    assert backlog.may_have_more


def test_what_comes_behind_the_cursor_makes_it_begin_again_before_that() -> None:
    backlog = EvalBacklog(left_over=True)
    backlog.scanned(Place(50, 0), at_end=False)
    backlog.defer(Place(20, 1))
    backlog.scanned(Place(80, 0), at_end=True)
    assert (backlog.may_have_more, backlog.cursor) == (True, Place(20, -1))


def test_what_becomes_durable_while_a_page_is_read_and_may_be_missing_in_it_is_met_again() -> None:
    backlog = EvalBacklog(left_over=True)
    backlog.defer(Place(5, 0))
    backlog.scanned(Place(9, 0), at_end=True)
    assert (backlog.may_have_more, backlog.cursor) == (True, Place(5, -1))


def test_whatever_the_order_every_place_that_was_turned_away_is_met_after_it_was() -> None:
    draw = random.Random(5)
    for _ in range(300):
        backlog = EvalBacklog(left_over=False)
        durable: set[Place] = set()
        coming = [Place(ordinal, 0) for ordinal in range(30)]
        draw.shuffle(coming)
        while coming or backlog.may_have_more:
            if coming and draw.random() < 0.5:
                place = coming.pop()
                durable.add(place)
                backlog.defer(place)
            if backlog.may_have_more and draw.random() < 0.7:
                after = backlog.cursor
                seen = sorted(place for place in durable if after is None or place > after)
                page = seen[:4]
                if coming and draw.random() < 0.5:
                    place = coming.pop()
                    durable.add(place)
                    backlog.defer(place)
                durable.difference_update(page)
                backlog.scanned(page[-1] if page else None, at_end=len(seen) <= 4)
        assert not durable
