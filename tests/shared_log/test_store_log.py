"""One member's end of a log at a server, with the answers of the server given by hand."""

from __future__ import annotations

import math

import pytest

from tidegate.shared_log.carrier import ALONE, BEGUN, FULL, HEAD, Checkpoint, CorruptLog, Record, Step
from tidegate.shared_log.store_log import JOIN_WAIT_SECONDS, Answer, Stored, StoredState, StoreLog, checked


def made() -> StoreLog:
    return StoreLog(b"name", 0.0, lambda: None, lambda log: None)


def answer(member: int = 1, epoch: str = "a", tail: int = 0, **changes: object) -> Answer:
    plain = Answer(1000.0, epoch, member, tail, (), {}, {1: FULL, 2: FULL}, None, False, FULL)
    return plain._replace(**changes)


def exchange(log: StoreLog, found: Answer, now: float = 0.0) -> None:
    log.answered(log.ask(now), found, 1000.0)


def joined() -> StoreLog:
    """A member that has the whole state, and knows of another."""
    log = made()
    exchange(log, answer(ranks={1: FULL}))
    assert log.enter(0.0) is ALONE
    exchange(log, answer())
    return log


def entered(log: StoreLog, now: float = 0.0) -> Step:
    step = log.enter(now)
    assert step is not None
    assert step is not ALONE
    return step


def test_a_checkpoint_is_sent_without_the_records_of_later_steps() -> None:
    log = joined()
    entered(log)
    log.leave([Record(1.0, b"in it")], None, Checkpoint(1.0, b"state"))
    entered(log)
    log.leave([Record(2.0, b"later")], None)
    first = log.ask(0.0)
    assert first.state == (0, 1001.0, b"state")
    assert first.records == [(1001.0, b"in it")]
    log.answered(first, answer(tail=1), 1000.0)
    second = log.ask(0.0)
    assert (second.state, second.records, second.sequence) == (None, [(1002.0, b"later")], 2)


def test_what_the_writer_of_a_checkpoint_said_until_then_is_not_replayed() -> None:
    log = made()
    exchange(log, answer(member=2))
    assert log.enter(0.0) is None
    state = StoredState(1, 4, 7, 1, FULL, 1003.0, b"state")
    entries = [Stored(4, 3, 1001.0, b"not in it"), Stored(5, 1, 1002.0, b"in it"), Stored(7, 1, 1004.0, b"later")]
    exchange(log, answer(member=2, tail=8, state=state, entries=entries))
    step = entered(log)
    assert step.checkpoint == Checkpoint(3.0, b"state")
    assert [(entry.payload, entry.at) for entry in step.entries] == [(b"not in it", 3.0), (b"later", 4.0)]
    assert log.ask(0.0).cursor == 8


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


def test_a_member_that_returns_takes_the_state_that_another_wrote_since() -> None:
    log = joined()
    log.ask(7.0)
    log.failed()
    exchange(log, answer(tail=9), 9.0)
    asked = log.ask(9.1)
    assert (asked.rank, asked.state_since) == (BEGUN, 1007.0)
    state = StoredState(3, 12, 12, 2, FULL, 1008.0, b"state")
    log.answered(asked, answer(tail=12, state=state), 1000.0)
    assert entered(log).checkpoint == Checkpoint(8.0, b"state")
    asked = log.ask(9.2)
    assert (asked.rank, asked.state_since) == (FULL, math.inf)


def test_the_last_member_that_returns_has_the_state() -> None:
    log = joined()
    log.ask(7.0)
    log.failed()
    exchange(log, answer(tail=9, ranks={1: FULL, 2: BEGUN}), 9.0)
    assert log.ask(9.1).rank == FULL
    assert entered(log).returned


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


def test_a_joiner_waits_only_so_long_for_the_server_and_for_a_state() -> None:
    log = made()
    assert log.enter(0.9 * JOIN_WAIT_SECONDS) is None
    assert entered(log, 1.1 * JOIN_WAIT_SECONDS).away
    exchange(log, answer(member=2))
    step = entered(log, 1.1 * JOIN_WAIT_SECONDS)
    assert (step.checkpoint, step.away, log.member) == (None, False, 2)


def packed(served_at: float = 1.0, cost: float = 1.0) -> bytes:
    return HEAD.pack(0, served_at, cost, *(0.0,) * 9)


def test_an_answer_of_a_member_that_was_never_served_is_sound() -> None:
    sound = answer(
        heads={2: packed(-math.inf)},
        entries=[Stored(4, 2, 1001.0, b"")],
        state=StoredState(1, 4, 7, 1, FULL, 1003.0, b"state"),
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
        {"ranks": {1: "2"}},
        {"ranks": {None: FULL}},
        {"state_rank": "2"},
        {"entries": [Stored(4, 2, math.inf, b"")]},
        {"entries": [Stored(4, 2, 1001.0, "text")]},
        {"entries": [Stored(None, 2, 1001.0, b"")]},
        {"state": StoredState(1, 4, 7, 1, FULL, math.nan, b"state")},
        {"state": StoredState(1, None, 7, 1, FULL, 1003.0, b"state")},
        {"state": StoredState(1, 4, 7, 1, FULL, 1003.0, None)},
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
