"""What evaluations only the database holds, and how a scan meets each of them."""

from __future__ import annotations

import random

from tidegate.experiments.engine.completion import EvalBacklog
from tidegate.experiments.engine.queues import Place


def test_the_scan_begins_just_before_what_was_turned_away_first() -> None:
    backlog = EvalBacklog(left_over=False)
    backlog.defer(Place(40, 1))
    assert (backlog.may_have_more, backlog.cursor) == (True, Place(40, -1))


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
