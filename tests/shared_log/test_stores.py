"""Logs at real servers: Redis and PostgreSQL are told apart by nothing here."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import psycopg
import pytest
from redis import Redis

from tests.ports import free_port
from tests.postgres import Server as PostgreSQL
from tests.postgres import served
from tests.shared_log.redis_server import RedisServer
from tests.shared_log.store_members import PATIENCE, StorePeer, is_alone, together, until
from tests.shared_log.table_server import TableServer
from tests.shared_log.test_processes import SCENARIO, go, reports, workers
from tidegate.errors import ConfigurationError
from tidegate.shared_log import postgres_log, redis_log, store_log
from tidegate.shared_log.carrier import ALONE, ENDED, Head
from tidegate.shared_log.postgres_log import postgres_carrier
from tidegate.shared_log.redis_log import redis_carrier
from tidegate.shared_log.store_carrier import StoreCarrier
from tidegate.shared_log.store_log import KEPT_ENTRIES, Ask, Limits
from tidegate.testing import SimulatorProcess

pytestmark = pytest.mark.real


class Server(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


class Place:
    """A server, and carriers of it, each of which is a process to the others."""

    def __init__(self, server: Server, url: str, connect: Callable[[], StoreCarrier]) -> None:
        self.server, self.url, self.name = server, url, os.urandom(8)
        self._connect = connect
        self.peers: list[StorePeer] = []

    def carrier(self) -> StoreCarrier:
        return self._connect()

    def peer(self) -> StorePeer:
        peer = StorePeer(self._connect(), self.name)
        self.peers.append(peer)
        return peer

    def close(self) -> None:
        for peer in self.peers:
            peer.carrier.close()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    with served() as server:
        yield server


@pytest.fixture
def at_redis(redis: RedisServer) -> Iterator[Place]:
    place = Place(redis, redis.url, lambda: redis_carrier(redis.url))
    yield place
    place.close()


@pytest.fixture
def at_postgresql(postgresql: PostgreSQL) -> Iterator[Place]:
    url = postgresql.url("postgres")
    place = Place(postgresql, url, lambda: postgres_carrier(url))
    yield place
    place.close()


@pytest.fixture
def at_table() -> Iterator[Place]:
    server = TableServer()
    server.start()
    place = Place(server, server.url, lambda: server.carrier(Limits()))
    yield place
    place.close()


@pytest.fixture(params=["redis", "postgresql", "table"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"at_{request.param}")
    return found


@pytest.fixture(params=["redis", "postgresql"])
def distant_place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(f"at_{request.param}")
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server of a loaded machine answer late, so that no entry is lost because it counts as away."""
    for module in (redis_log, postgres_log):
        monkeypatch.setattr(module, "SERVER_TIMEOUT_SECONDS", PATIENCE)
    # A joiner waits this long for its first exchange.
    monkeypatch.setattr(store_log, "JOIN_WAIT_SECONDS", 2.0)


def ask(member: int, epoch: str, **changes: object) -> Ask:
    return Ask(member, epoch, 0, 1, (), b"")._replace(**changes)


@pytest.mark.usefixtures("patient")
def test_a_lone_member_is_alone(place: Place) -> None:
    one = place.peer()
    until(lambda: is_alone(one), "to be alone", one)
    one.say(b"unsaid")
    assert not one.log.ended


@pytest.mark.usefixtures("patient")
def test_all_get_all_entries_in_one_order(place: Place) -> None:
    one = place.peer()
    until(lambda: is_alone(one), "to be alone", one)
    two, three = place.peer(), place.peer()
    together(one, two, three)
    for number in range(30):
        one.say(b"a%d" % number)
        two.say(b"b%d" % number)
        three.say(b"c%d" % number)
    until(lambda: {len(peer.state) for peer in place.peers} == {90}, "all entries", one, two, three)
    assert len({tuple(sorted(peer.state)) for peer in place.peers}) == 1
    # What others said has one order for all; the own is known before it is said.
    assert [each for each in one.state if each[:1] == b"b"] == [each for each in three.state if each[:1] == b"b"]


@pytest.mark.usefixtures("patient")
def test_heads_are_seen_and_cleared(place: Place) -> None:
    one, two = place.peer(), place.peer()
    together(one, two)
    head = Head(0, 3, time.monotonic() - 4.0, (1.0, 200.0, *(0.0,) * 7, 9.0))
    one.step(head=head)
    until(lambda: two.last is not None and two.last.heads, "the head", two)
    assert two.last is not None
    (seen,) = two.last.heads
    assert seen._replace(served_at=0.0) == head._replace(member=one.log.member, served_at=0.0)
    assert abs(seen.served_at - head.served_at) < 60  # one clock for both, whatever the exchange took
    until(lambda: two.last is not None and not two.last.heads, "no head", one, two)


@pytest.mark.usefixtures("patient")
def test_a_member_that_leaves_is_gone_for_all(place: Place) -> None:
    one, two, three = place.peer(), place.peer(), place.peer()
    together(one, two, three)
    number = three.log.member
    three.log.close()
    assert three.log.enter(time.monotonic()) is ALONE
    until(lambda: one.gone == two.gone == [number], "its end", one, two)
    together(one, two)


@pytest.mark.usefixtures("patient")
def test_a_member_that_dies_is_gone_after_some_beats(place: Place) -> None:
    one, two = place.peer(), place.peer()
    together(one, two)
    number = two.log.member
    pid = os.fork()
    if not pid:
        os._exit(0)  # a child that takes no step is no member
    os.waitpid(pid, 0)
    two.carrier._leaving, two.carrier._logs = [], []  # its thread says nothing any more
    until(lambda: one.gone == [number], "its end", one)
    until(lambda: is_alone(one), "to be alone", one)
    assert one.gone == [number], "its end is seen once"


@pytest.mark.usefixtures("patient")
def test_a_child_is_a_member_of_its_own(distant_place: Place) -> None:
    one = distant_place.peer()
    until(lambda: is_alone(one), "to be alone", one)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            together(one)
            until(lambda: one.last is not None and one.last.members == 2, "its parent", one)
            one.say(b"child")
            until(lambda: not one.log._outbox, "the server to hear it", one)
            code = 0
        finally:
            os._exit(code)
    until(lambda: b"child" in one.state, "the child's word", one)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("idle", [False, True], ids=["under-way", "joining"])
def test_a_server_that_goes_away_stops_no_call(place: Place, idle: bool) -> None:
    one, two = place.peer(), place.peer()
    if not idle:
        together(one, two)
        one.say(b"before")
        until(lambda: two.state, "what was said before", one, two)
    place.server.stop()
    until(lambda: all(peer.last is not None and peer.last.away for peer in place.peers), "to be away", one, two)
    if not idle:
        assert one.last is not None
        assert one.last.members == 2
    one.step(b"lost")
    assert one.carrier.error
    place.server.start()
    until(lambda: one.returned and two.returned, "the return", one, two)
    together(one, two)
    one.say(b"news")
    until(lambda: b"news" in two.state, "what is said afterwards", one, two)
    assert (one.carrier.error, one.log.ended, two.log.ended) == ("", "", "")


def test_no_record_is_stored_twice_or_under_another_epoch(place: Place) -> None:
    carrier = place.carrier()
    store = carrier._connect()
    try:
        first = store.exchange(place.name, ask(0, ""))
        assert first is not None
        said = ask(first.member, first.epoch, records=[(first.now, b"a"), (first.now, b"b")])
        store.exchange(place.name, said)
        again = store.exchange(place.name, said._replace(records=[*said.records, (first.now, b"c")]))
        assert again is not None
        assert [each.payload for each in again.entries] == [b"a", b"b", b"c"]
        other = store.exchange(place.name, said._replace(epoch="other"))
        assert other is not None
        assert other.member != first.member
        assert other.tail == 3
    finally:
        store.close()


def test_a_log_is_trimmed_and_a_late_reader_gets_the_rest(place: Place) -> None:
    store = place.carrier()._connect()
    try:
        one, two = (store.exchange(place.name, ask(0, "")) for _ in range(2))
        assert one is not None
        assert two is not None
        for first in range(1, 6001, 300):
            records = [(one.now, b"x")] * 300
            store.exchange(place.name, ask(one.member, one.epoch, records=records, sequence=first, cursor=first - 1))
        late = store.exchange(place.name, ask(two.member, two.epoch))
        assert late is not None
        assert KEPT_ENTRIES <= len(late.entries) <= KEPT_ENTRIES + 300
        assert late.entries[0].place == late.tail - len(late.entries)
    finally:
        store.close()


def test_a_slow_server_is_away(at_redis: Place, redis: RedisServer) -> None:
    client = Redis.from_url(redis.url)
    one, two = at_redis.peer(), at_redis.peer()
    together(one, two)
    client.execute_command("CLIENT", "PAUSE", "2000", "ALL")
    until(lambda: all(peer.last is not None and peer.last.away for peer in at_redis.peers), "to be away", one, two)
    together(one, two)
    assert [peer.log.ended for peer in (one, two)] == ["", ""], "both share again"
    client.close()


@pytest.fixture(scope="module")
def secure_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, str]]:
    """A server, and its URL for TLS."""
    folder, port = tmp_path_factory.mktemp("tls"), free_port()
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    words = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    server = RedisServer(None, "--tls-port", str(port), "--tls-auth-clients", "no", *words)
    server.start()
    yield server, f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none"
    server.stop()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_connection_that_the_server_closes_while_it_is_idle_fails_no_exchange(
    scheme: str, secure_redis: tuple[RedisServer, str]
) -> None:
    server, url = secure_redis
    store, name = redis_log.RedisStore(server.url if scheme == "redis" else url), os.urandom(8)
    with Redis.from_url(server.url) as client:
        for _ in range(3):
            assert store.exchange(name, ask(0, "")) is not None
            (connection,) = store._client.connection_pool._available_connections
            assert isinstance(connection._sock, redis_log.BoundedSocket)
            client.client_kill_filter(skipme=True)
            # TLS has its own record of the end, and the end of the connection follows.
            poller = select.poll()
            poller.register(connection._sock, select.POLLRDHUP)
            assert poller.poll(PATIENCE * 1000)
    store.close()


def test_content_that_is_none_is_an_error_of_the_server(at_redis: Place, redis: RedisServer) -> None:
    client = Redis.from_url(redis.url)
    one, two = at_redis.peer(), at_redis.peer()
    together(one, two)
    client.rpush(f"{{tidegate:{redis_log.PROTOCOL}:{at_redis.name.hex()}}}:log", b"nonsense")
    until(lambda: one.log.ended and two.log.ended, "both to end", one, two)
    assert "its content is not that of a log" in one.log.ended
    assert one.step(b"alone") is ENDED
    client.close()


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_a_head_that_is_none_ends_sharing_and_no_call(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(f"at_{kind}")
    one, two = place.peer(), place.peer()
    together(one, two)
    if kind == "redis":
        with Redis.from_url(place.url) as client:
            client.hset(f"{{tidegate:{redis_log.PROTOCOL}:{place.name.hex()}}}:heads", "99", b"nonsense")
    else:
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(
                f"insert into {postgres_log.TABLES[2]} values (%b, 99, 1e12, 0, %b)".encode(),
                (place.name, b"nonsense"),
            )
    until(lambda: one.log.ended and two.log.ended, "both to end", one, two)
    assert one.log.ended == "a head is not that of a member"
    assert one.step(b"alone") is ENDED


def test_nothing_blocks_while_the_server_does_not_answer(at_redis: Place, redis: RedisServer) -> None:
    client = Redis.from_url(redis.url)
    one = at_redis.peer()
    until(lambda: is_alone(one), "to be alone", one)
    client.execute_command("CLIENT", "PAUSE", "1000", "ALL")
    asked = one.carrier._store
    steps = 0
    deadline = time.monotonic() + PATIENCE
    while one.carrier._store is asked and time.monotonic() < deadline:
        steps += one.step() is not None
    # Thousands, where a step that waited for the server would be one.
    assert steps > 100
    client.close()


@pytest.mark.parametrize("url", ["redis://host:port", "redi://secret@host", "redis://:secret@host:99999999"])
def test_a_url_that_is_none_is_a_mistake_of_the_settings(url: str) -> None:
    with pytest.raises(ConfigurationError, match="share") as raised:
        redis_carrier(url)
    assert "secret" not in str(raised.value)


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigurationError, match=r"tidegate\[redis\]"):
        redis_carrier("redis://:secret@localhost")


def test_processes_at_one_key_meet_at_a_server(distant_place: Place) -> None:
    with SimulatorProcess(SCENARIO) as simulator, workers(4, simulator.openai_url, 15, distant_place.url) as four:
        simulator.reset()
        go(four)
        found = reports(four)
    assert [calls for calls, *_ in found] == [16] * 4
    assert {(members, lost) for *_, members, _, lost in found} == {(4, "")}
