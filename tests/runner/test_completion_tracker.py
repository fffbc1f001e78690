"""What a run has open, and when it is wholly done."""

from __future__ import annotations

from tidegate.experiments.engine.completion import CompletionTracker
from tidegate.experiments.engine.queues import TASK, Item, Place

JUDGE = 1


def item(ordinal: int, stage: int = TASK) -> Item:
    return Item(stage, Place(ordinal, 1), {})


def opened(tracker: CompletionTracker, *ordinals: int, stage: int = TASK) -> list[Item]:
    items = [item(ordinal, stage) for ordinal in ordinals]
    for each in items:
        tracker.open(each)
    return items


def test_an_evaluation_that_was_turned_away_is_looked_for_when_its_run_is_durable() -> None:
    tracker = CompletionTracker(1, left_over=False, retry_failed=False)
    (task,) = opened(tracker, 0)
    tracker.defer(task.place, JUDGE)
    assert not tracker.backlogs[0].may_have_more
    tracker.close(task, failed=False)
    tracker.tasks_exhausted = True
    assert (tracker.backlogs[0].may_have_more, tracker.settled) == (True, False)
    after, again = tracker.scan(JUDGE)
    assert (after, again) == (Place(0, -1), False)
    assert tracker.scanned(JUDGE, [Place(0, 1)], at_end=True) == [Place(0, 1)]
    (judging,) = opened(tracker, 0, stage=JUDGE)
    tracker.close(judging, failed=False)
    assert tracker.settled


def test_a_scan_brings_nothing_that_memory_has_or_that_became_durable_while_it_was_made() -> None:
    tracker = CompletionTracker(1, left_over=True, retry_failed=False)
    under_way, done = opened(tracker, 1, 2, stage=JUDGE)
    tracker.scan(JUDGE)
    tracker.close(done, failed=False)
    new = tracker.scanned(JUDGE, [Place(0, 1), under_way.place, done.place], at_end=True)
    assert new == [Place(0, 1)]


def test_what_failed_in_this_run_is_not_tried_again_by_it() -> None:
    tracker = CompletionTracker(1, left_over=True, retry_failed=True)
    (judging,) = opened(tracker, 5, stage=JUDGE)
    tracker.close(judging, failed=True)
    assert tracker.scan(JUDGE) == (None, True)
    assert tracker.scanned(JUDGE, [Place(4, 1), judging.place], at_end=True) == [Place(4, 1)]
    tracker.backlogs[0].defer(Place(1, 1))
    assert tracker.scan(JUDGE) == (Place(1, -1), False)


def test_a_run_is_settled_when_nothing_is_left_here_or_in_the_database() -> None:
    tracker = CompletionTracker(0, left_over=False, retry_failed=False)
    assert not tracker.settled
    tracker.tasks_exhausted = True
    assert tracker.settled
    tracker.unwritten = 1
    assert not tracker.settled
