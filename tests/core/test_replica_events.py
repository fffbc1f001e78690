"""Records of shared events: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import random
from zlib import crc32

import pytest

from tidegate.core.replica_events import (
    EventKind,
    ReplicaEvent,
    UnreadableRecord,
    read_event,
    write_event,
)
from tidegate.core.values import (
    Cause,
    Cost,
    Kind,
    Outcome,
    QuotaReading,
    RequestFacts,
    ResetInstant,
    Usage,
)

READING = QuotaReading("requests", "requests", "fixed", 100.0, 4.0, 2.5, instant=ResetInstant(1e9, 1.0, 1e9))

EVENTS = (
    ReplicaEvent(EventKind.ADMITTED, "model", 7, 0.0, 1.5, True, Cost(tokens=3.0, weight=5.0)),
    ReplicaEvent(EventKind.ADMITTED, "", 1),
    ReplicaEvent(EventKind.WITHDRAWN, "", 7, -2.5),
    ReplicaEvent(EventKind.LEARNED, "", 7, -2.5, outcome=Outcome(Kind.OK, readings=(READING, READING))),
    ReplicaEvent(EventKind.SETTLED, "", 7, -2.5, 0.25, outcome=Outcome(Kind.RATE_LIMIT, Cause.RATE, 3.0, status=429)),
    ReplicaEvent(
        EventKind.SETTLED,
        "",
        7,
        -2.5,
        outcome=Outcome(Kind.DAILY_LIMIT, Cause.DAY, None, (), Usage(3, 4), "row", 429, 2, True),
    ),
    ReplicaEvent(EventKind.SILENT, "", 7, 0.0, 0.5, True),
    ReplicaEvent(EventKind.USAGE, "", facts=RequestFacts("model", 40, None, True), usage=Usage(1, 2, 3)),
    ReplicaEvent(EventKind.GONE, number=3),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: each.kind.name)
def test_an_event_is_read_as_it_was_written(event: ReplicaEvent) -> None:
    assert read_event(write_event(event)) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: each.kind.name)
def test_a_record_that_was_cut_or_changed_is_none(event: ReplicaEvent) -> None:
    record = write_event(event)
    for length in range(len(record)):
        with pytest.raises(UnreadableRecord):
            read_event(record[:length])
    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 0x11
        with pytest.raises(UnreadableRecord):
            read_event(bytes(changed))


def test_a_text_with_a_right_checksum_raises_nothing_but_that_it_is_no_record() -> None:
    draw = random.Random(1)
    plain = [json.loads(write_event(event)[4:]) for event in EVENTS]
    odd = [None, True, -1, 1e308, "", "x" * 5000, [], [[]], {}, float("inf"), float("nan"), 1 << 70]
    for _ in range(3000):
        chosen = json.loads(json.dumps(draw.choice(plain)))
        place = chosen
        while isinstance(place, list) and place and draw.random() < 0.7:
            number = draw.randrange(len(place))
            if isinstance(place[number], list) and place[number] and draw.random() < 0.6:
                place = place[number]
                continue
            place[number] = draw.choice(odd)
            break
        text = json.dumps(chosen).encode()
        try:
            event = read_event(crc32(text).to_bytes(4, "little") + text)
        except UnreadableRecord:
            continue
        assert event.cost.sound


def test_a_wrong_credential_is_not_told_as_a_rejection_for_others() -> None:
    outcome = Outcome(Kind.PERMANENT, Cause.AUTH, status=401, of_key=True)
    read = read_event(write_event(ReplicaEvent(EventKind.SETTLED, "", 1, outcome=outcome))).outcome
    assert read == outcome._replace(of_key=False)


def test_a_text_that_is_no_unicode_is_shared() -> None:
    outcome = Outcome(Kind.RATE_LIMIT, Cause.RATE, row="row \ud800", status=429)
    event = ReplicaEvent(EventKind.SETTLED, "", 7, outcome=outcome)
    assert read_event(write_event(event)) == event
