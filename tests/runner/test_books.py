"""What a run has open, and how far it is wholly done."""

from __future__ import annotations

from tidegate.runner.item import TASK, Item, Place
from tidegate.runner.watermark import CompletionTracker

JUDGE = 1


def item(ordinal: int, stage: int = TASK) -> Item:
    return Item(stage, Place(ordinal, 1), {})


def opened(books: CompletionTracker, *ordinals: int, stage: int = TASK) -> list[Item]:
    items = [item(ordinal, stage) for ordinal in ordinals]
    for each in items:
        books.open(each)
    return items


def test_the_water_stays_below_a_row_whose_evaluation_is_open_but_its_task_is_done() -> None:
    books = CompletionTracker(1, left_over=False, again=False)
    first, second = opened(books, 0, 1)
    books.reached(2)
    (judging,) = opened(books, 0, stage=JUDGE)
    books.close(first, failed=False)
    books.close(second, failed=False)
    assert books.water() == (0, 2)
    books.close(judging, failed=False)
    assert books.water() == (2, 2)


def test_an_evaluation_that_was_turned_away_holds_the_water_and_is_looked_for_when_its_run_is_durable() -> None:
    books = CompletionTracker(1, left_over=False, again=False)
    (task,) = opened(books, 0)
    books.reached(1)
    books.turn_away(task.place, JUDGE)
    assert not books.backlogs[0].owing
    books.close(task, failed=False)
    books.tasks_exhausted = True
    assert (books.backlogs[0].owing, books.water()[0], books.settled) == (True, 0, False)
    after, again = books.scan(JUDGE)
    assert (after, again) == (Place(0, -1), False)
    assert books.scanned(JUDGE, [Place(0, 1)], at_end=True) == [Place(0, 1)]
    (judging,) = opened(books, 0, stage=JUDGE)
    assert books.water()[0] == 0
    books.close(judging, failed=False)
    assert (books.settled, books.water()[0]) == (True, 1)


def test_a_scan_brings_nothing_that_memory_has_or_that_became_durable_while_it_was_made() -> None:
    books = CompletionTracker(1, left_over=True, again=False)
    under_way, done = opened(books, 1, 2, stage=JUDGE)
    books.scan(JUDGE)
    books.close(done, failed=False)
    new = books.scanned(JUDGE, [Place(0, 1), under_way.place, done.place], at_end=True)
    assert new == [Place(0, 1)]


def test_what_failed_in_this_run_is_not_tried_again_by_it() -> None:
    books = CompletionTracker(1, left_over=True, again=True)
    (judging,) = opened(books, 5, stage=JUDGE)
    books.close(judging, failed=True)
    assert books.scan(JUDGE) == (None, True)
    assert books.scanned(JUDGE, [Place(4, 1), judging.place], at_end=True) == [Place(4, 1)]
    books.backlogs[0].turned_away(Place(1, 1))
    assert books.scan(JUDGE) == (Place(1, -1), False)


def test_a_run_is_settled_when_nothing_is_left_here_or_in_the_database() -> None:
    books = CompletionTracker(0, left_over=False, again=False)
    assert not books.settled
    books.tasks_exhausted = True
    assert books.settled
    books.unwritten = 1
    assert not books.settled
