"""A table of logs, which an actor of Ray serves: what its members say, and what each of them is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.shared_log.store_members import StorePeer, is_alone, until
from tests.shared_log.table_server import TableServer
from tidegate.shared_log.carrier import MAX_MEMBERS, NoConnection
from tidegate.shared_log.ray_log import LogTable
from tidegate.shared_log.store_carrier import EXPIRY_SECONDS, GONE_AFTER_SECONDS, LEAST_RETRY_SECONDS, StoreCarrier
from tidegate.shared_log.store_log import KEPT_ENTRIES, Answer, Ask, Limits

NAME, OTHER = b"one", b"other"


def ask(member: int, epoch: str, **changes: object) -> Ask:
    return Ask(member, epoch, 0, 1, (), b"")._replace(**changes)


class Members:
    """The members of one log, whose exchanges are at instants that the test gives."""

    def __init__(self) -> None:
        self.table = LogTable()

    def exchange(self, now: float, found: Answer | None = None, **changes: object) -> Answer:
        """The answer to a member that has a former one; to a joiner without."""
        member, epoch = (0, "") if found is None else (found.member, found.epoch)
        answer = self.table.exchange(NAME, ask(member, epoch, **changes), now)
        assert answer is not None
        return answer


def test_a_joiner_reads_from_its_place_on() -> None:
    members = Members()
    one = members.exchange(1.0)
    assert (one.member, one.tail, one.members) == (1, 0, [1])
    members.exchange(2.0, one, records=[(2.0, b"a")])
    two = members.exchange(3.0)
    assert (two.member, two.tail, two.entries, two.members) == (2, 1, [], [1, 2])
    members.exchange(5.0, one, sequence=2, records=[(5.0, b"b")], cursor=1)
    two = members.exchange(6.0, two, cursor=1)
    assert [(each.place, each.payload) for each in two.entries] == [(1, b"b")]


def test_no_record_is_stored_twice_or_under_another_epoch() -> None:
    members = Members()
    one = members.exchange(1.0)
    said = [(1.0, b"a"), (1.0, b"b")]
    members.exchange(1.0, one, records=said)
    again = members.exchange(1.0, one, records=[*said, (1.0, b"c")])
    assert [each.payload for each in again.entries] == [b"a", b"b", b"c"]
    other = members.exchange(1.0, one._replace(epoch="other"), records=said)
    assert (other.member, other.tail, other.epoch) == (2, 3, one.epoch)


def test_a_member_without_a_beat_is_gone_and_one_that_leaves_at_once() -> None:
    members = Members()
    one, two, three = (members.exchange(0.0) for _ in range(3))
    assert members.table.exchange(NAME, ask(three.member, three.epoch, leaves=True), 1.0) is None
    one = members.exchange(GONE_AFTER_SECONDS, one)
    assert [(each.member, each.payload) for each in one.entries] == [(three.member, b"")]
    one = members.exchange(GONE_AFTER_SECONDS + 0.1, one, cursor=1)
    assert [(each.member, each.payload) for each in one.entries] == [(two.member, b"")]
    assert one.members == [one.member]
    assert members.exchange(GONE_AFTER_SECONDS + 0.2, two).member == 4, "it was taken for dead"


def test_heads_are_those_of_the_last_exchange() -> None:
    members = Members()
    one, two = members.exchange(0.0), members.exchange(0.0)
    members.exchange(1.0, one, head=b"head")
    assert members.exchange(1.0, two).heads == {one.member: b"head"}
    members.exchange(2.0, one)
    assert members.exchange(2.0, two).heads == {}


def test_a_log_is_trimmed_and_a_late_reader_gets_the_rest() -> None:
    members = Members()
    one, two = members.exchange(0.0), members.exchange(0.0)
    members.exchange(0.0, one, records=[(0.0, b"x")] * (KEPT_ENTRIES + 500))
    late = members.exchange(0.0, two)
    assert (len(late.entries), late.entries[0].place) == (KEPT_ENTRIES, 500)


def test_a_clock_that_runs_backwards_ends_no_member() -> None:
    members = Members()
    one = members.exchange(100.0)
    assert members.exchange(50.0, one).now == 100.0


def test_a_log_that_nobody_uses_is_forgotten_and_a_full_one_takes_nobody() -> None:
    members = Members()
    first = members.exchange(0.0)
    for _ in range(MAX_MEMBERS - 1):
        members.exchange(0.0)
    assert members.table.exchange(NAME, ask(0, ""), 0.0) is None
    members.table.exchange(OTHER, ask(0, ""), EXPIRY_SECONDS + 1.0)
    assert members.exchange(EXPIRY_SECONDS + 2.0, first).epoch != first.epoch


@pytest.fixture
def server() -> Iterator[TableServer]:
    found = TableServer()
    yield found
    found.stop()


def test_a_joiner_waits_for_a_server_that_starts_late(server: TableServer) -> None:
    """Until then no step admits a call, so that several joiners do not take a burst each."""
    there = threading.Event()

    def connect() -> TableServer:
        there.wait()
        server.start()
        return server

    carrier = StoreCarrier(connect, "table", server.url, "this process", Limits(1.0, 1e6))
    peer = StorePeer(carrier, NAME)
    try:
        assert {peer.step() for _ in range(100)} == {None}
        there.set()
        until(lambda: is_alone(peer), "to be alone", peer)
    finally:
        there.set()
        carrier.close()


def test_a_joiner_waits_no_longer_than_its_limit(server: TableServer) -> None:
    there = threading.Event()

    def connect() -> TableServer:
        there.wait()
        return server

    carrier = StoreCarrier(connect, "table", server.url, "this process", Limits(1.0, 10.0))
    log = carrier.join(NAME, 0.0)
    assert log is not None
    try:
        assert log.enter(9.9) is None
        step = log.enter(10.1)
        assert step is not None
        assert step.away
    finally:
        there.set()
        carrier.close()


def test_a_process_without_a_connection_tries_again_soon_however_long_it_has_had_none(server: TableServer) -> None:
    def connect() -> TableServer:
        raise NoConnection("not connected")

    carrier = StoreCarrier(connect, "table", server.url, "this process", Limits())
    log = carrier.join(NAME, time.monotonic())
    assert log is not None
    try:
        began = time.monotonic()
        carrier._away_since = began - 1000.0
        carrier._fail(NoConnection("not connected"))
        assert carrier._retry_at - time.monotonic() <= LEAST_RETRY_SECONDS
        carrier._fail(ConnectionError("away"))
        assert carrier._retry_at - began > LEAST_RETRY_SECONDS
    finally:
        carrier.close()
