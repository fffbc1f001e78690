"""One member's end of a log at a server, with the answers of the server given by hand."""

from __future__ import annotations

import math

import pytest

from tidegate.shared_log.carrier import ALONE, HEAD, CorruptLog, Record, Step
from tidegate.shared_log.store_log import JOIN_WAIT_SECONDS, Answer, Stored, StoreLog, checked


def made() -> StoreLog:
    return StoreLog(b"name", 0.0, lambda: None, lambda log: None)


def answer(member: int = 1, epoch: str = "a", tail: int = 0, **changes: object) -> Answer:
    plain = Answer(1000.0, epoch, member, tail, (), {}, [1, 2])
    return plain._replace(**changes)


def exchange(log: StoreLog, found: Answer, now: float = 0.0) -> None:
    log.answered(log.ask(now), found, 1000.0)


def joined() -> StoreLog:
    """A member that was alone, and knows of another."""
    log = made()
    exchange(log, answer(members=[1]))
    assert log.enter(0.0) is ALONE
    exchange(log, answer())
    return log


def entered(log: StoreLog, now: float = 0.0) -> Step:
    step = log.enter(now)
    assert step is not None
    assert step is not ALONE
    return step


def test_entries_come_with_their_place_and_the_own_ones_do_not() -> None:
    log = made()
    exchange(log, answer(member=2, tail=4))
    entered(log)
    entries = [Stored(4, 3, 1001.0, b"one"), Stored(5, 2, 1002.0, b"own"), Stored(6, 1, 1000.5, b"other")]
    exchange(log, answer(member=2, tail=7, entries=entries))
    step = entered(log)
    assert [tuple(entry) for entry in step.entries] == [(3, 1.0, b"one", 4), (1, 1.0, b"other", 6)]
    assert (step.place, log.ask(0.0).cursor) == (7, 7)


def test_a_member_that_the_server_has_lapped_returns() -> None:
    log = joined()
    entered(log)
    entries = [Stored(9, 2, 1000.0 - 1.5, b"old"), Stored(10, 2, 1000.0, b"new")]
    exchange(log, answer(tail=11, entries=entries))
    step = entered(log)
    assert ([each.payload for each in step.entries], step.place, step.returned) == ([b"new"], 11, True)
    assert not entered(log).returned


def test_a_member_that_was_taken_for_dead_hears_what_is_said_from_then_on() -> None:
    log = joined()
    exchange(log, answer(member=3, tail=9, members=[2, 3]))
    step = entered(log)
    assert (step.place, step.returned, log.ask(0.0).cursor) == (9, True, 9)


def test_what_an_exchange_that_failed_said_is_not_said_late() -> None:
    log = joined()
    entered(log)
    log.leave([Record(1.0, b"a"), Record(1.0, b"b")], None)
    first = log.ask(1.0)
    log.failed()
    step = entered(log)
    assert (step.away, step.members) == (True, 2)
    log.leave([Record(2.0, b"while away")], None)
    again = log.ask(2.0)
    # The server may have stored two records under the first numbers.
    assert (again.records, again.sequence) == ([], first.sequence + 2)
    log.answered(again, answer(tail=2), 1000.0)
    assert log.ask(2.0).records == []
    step = entered(log)
    assert (step.away, step.returned) == (False, True)
    assert not entered(log).returned


def test_old_events_that_a_member_did_not_hear_are_not_replayed_at_its_return() -> None:
    log = joined()
    log.ask(7.0)
    log.failed()
    entries = [Stored(0, 2, 1000.0 - 1.5, b"old"), Stored(1, 2, 1000.0 - 0.5, b"new")]
    exchange(log, answer(tail=2, entries=entries), 9.0)
    assert [each.payload for each in entered(log).entries] == [b"new"]


def test_an_exchange_that_takes_too_long_counts_as_away_before_it_ends() -> None:
    log = joined()
    log.ask(5.0)
    assert not entered(log, 5.0 + JOIN_WAIT_SECONDS).away
    assert entered(log, 5.0 + 2.1 * JOIN_WAIT_SECONDS).away


def test_a_server_that_lost_everything_is_read_from_its_beginning() -> None:
    log = joined()
    exchange(log, answer(tail=9))
    entered(log)
    log.leave([Record(1.0, b"lost")], None)
    exchange(log, answer(epoch="b", tail=3))
    again = log.ask(0.0)
    assert (again.cursor, again.epoch, again.sequence, again.records) == (0, "b", 1, [])
    assert entered(log).returned


def test_a_joiner_waits_only_so_long_for_the_server() -> None:
    log = made()
    assert log.enter(0.9 * JOIN_WAIT_SECONDS) is None
    assert entered(log, 1.1 * JOIN_WAIT_SECONDS).away
    exchange(log, answer(member=2))
    step = entered(log, 1.1 * JOIN_WAIT_SECONDS)
    assert (step.away, log.member) == (False, 2)


def packed(served_at: float = 1.0, cost: float = 1.0) -> bytes:
    return HEAD.pack(0, served_at, cost, *(0.0,) * 9)


def test_an_answer_of_a_member_that_was_never_served_is_sound() -> None:
    sound = answer(
        heads={2: packed(-math.inf)},
        entries=[Stored(4, 2, 1001.0, b"")],
    )
    assert checked(sound) is sound


@pytest.mark.parametrize(
    "changes",
    [
        {"now": math.nan},
        {"now": "1000"},
        {"epoch": None},
        {"member": "1"},
        {"tail": None},
        {"tail": -1},
        {"members": [1, "2"]},
        {"members": [None]},
        {"entries": [Stored(4, 2, math.inf, b"")]},
        {"entries": [Stored(4, 2, 1001.0, "text")]},
        {"entries": [Stored(None, 2, 1001.0, b"")]},
        {"heads": {2: b"short"}},
        {"heads": {2: packed() + b"long"}},
        {"heads": {2: packed(math.nan)}},
        {"heads": {2: packed(math.inf)}},
        {"heads": {2: packed(cost=math.nan)}},
        {"heads": {2: packed(cost=math.inf)}},
        {"heads": {2: packed(cost=-1.0)}},
    ],
    ids=repr,
)
def test_an_answer_that_no_step_can_read_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptLog):
        checked(answer(**changes))
