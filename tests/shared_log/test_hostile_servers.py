"""Servers that lose content, stop, refuse this user or are a cluster: no call fails, and members share if they can."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.postgres import Server as PostgreSQL
from tests.postgres import served
from tests.shared_log.redis_server import RedisServer
from tests.shared_log.store_members import StorePeer, is_alone, together, until
from tests.shared_log.test_processes import SCENARIO, go, reports, workers
from tidegate import Settings
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import Event, ShareLost
from tidegate.core.values import Key
from tidegate.shared_log.carrier import ENDED
from tidegate.shared_log.postgres_log import FUNCTION, TABLES, postgres_carrier
from tidegate.shared_log.redis_log import PROTOCOL, is_about_content, redis_carrier
from tidegate.shared_log.store_carrier import StoreCarrier
from tidegate.testing import SimulatorProcess

ENDS, ENTRIES, MEMBERS = TABLES

pytestmark = pytest.mark.real

KEYS = ("log", "meta", "members", "heads")


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


@pytest.fixture(params=["redis", "postgresql"])
def server(request: pytest.FixtureRequest) -> RedisServer | PostgreSQL:
    found: RedisServer | PostgreSQL = request.getfixturevalue(request.param)
    return found


def url_of(server: RedisServer | PostgreSQL) -> str:
    return server.url if isinstance(server, RedisServer) else server.url("postgres")


def two_peers(server: RedisServer | PostgreSQL, name: bytes) -> tuple[StorePeer, StorePeer]:
    def carrier() -> StoreCarrier:
        if isinstance(server, RedisServer):
            return redis_carrier(server.url)
        return postgres_carrier(server.url("postgres"))

    one, two = StorePeer(carrier(), name), StorePeer(carrier(), name)
    together(one, two)

    def heard() -> bool:
        # A server that answers late counts as away, and what was said meanwhile is lost by design.
        one.step(b"before")
        return b"before" in two.state

    until(heard, "what was said before", two)
    return one, two


def assert_shared(one: StorePeer, two: StorePeer) -> None:
    """Both hear each other, and nothing has ended. What is said before a loss is noticed may be lost."""

    def heard() -> bool:
        one.step(b"one")
        two.step(b"two")
        return b"two" in one.state and b"one" in two.state

    until(heard, "what both say")
    together(one, two)
    assert (one.log.ended, two.log.ended) == ("", "")


def close(*peers: StorePeer) -> None:
    for peer in peers:
        peer.carrier.close()


def test_members_share_again_after_all_content_was_deleted(redis: RedisServer) -> None:
    one, two = two_peers(redis, os.urandom(8))
    with Redis.from_url(redis.url) as client:
        client.flushall()
    until(lambda: one.returned and two.returned, "the loss to be noticed", one, two)
    assert_shared(one, two)
    close(one, two)


def carrier_at(server: RedisServer | PostgreSQL) -> StoreCarrier:
    return redis_carrier(server.url) if isinstance(server, RedisServer) else postgres_carrier(server.url("postgres"))


def test_one_spoiled_log_ends_its_own_sharing_and_no_other(
    server: RedisServer | PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    spoiled, sound = os.urandom(8), os.urandom(8)
    carriers = [carrier_at(server) for _ in range(2)]
    bad = [StorePeer(each, spoiled) for each in carriers]
    good = [StorePeer(each, sound) for each in carriers]
    together(*bad)
    together(*good)
    caplog.clear()
    if isinstance(server, RedisServer):
        with Redis.from_url(server.url) as client:
            client.delete(f"{{tidegate:{PROTOCOL}:{spoiled.hex()}}}:log")
            client.set(f"{{tidegate:{PROTOCOL}:{spoiled.hex()}}}:log", b"spoiled")
    else:
        server.sql(f"update {ENDS} set tail = 9223372036854775807 where name = '\\x{spoiled.hex()}'")

    def ended() -> bool:
        for each in bad:
            each.step(b"said")
        return all(each.log.ended for each in bad)

    until(ended, "the end of the spoiled log", *good)
    assert {"cannot use its content" in each.log.ended for each in bad} == {True}
    assert_shared(*good)
    for _ in range(50):
        assert [each.step(b"more") for each in bad] == [ENDED] * 2
        for each in good:
            each.step()
    told = [record.getMessage() for record in caplog.records if "cannot use its content" in record.getMessage()]
    assert len(told) == len(carriers), "each process says it once"
    close(*good)


@pytest.mark.parametrize("error", ["OOM command not allowed", "READONLY You can't write", "LOADING", "MISCONF Errors"])
def test_an_error_of_the_server_is_not_one_of_a_log(error: str) -> None:
    assert not is_about_content(f"{error} script: 1f, on @user_script:12.")


@pytest.mark.parametrize(
    "statement",
    [
        f"drop table {ENTRIES}",
        f"drop table {ENDS}, {MEMBERS}",
        f"drop function {FUNCTION}",
        f"create schema if not exists aside; alter function {FUNCTION} set schema aside",
    ],
)
def test_tables_that_were_removed_are_created_again(postgresql: PostgreSQL, statement: str) -> None:
    one, two = two_peers(postgresql, os.urandom(8))
    postgresql.sql(statement)
    assert_shared(one, two)
    close(one, two)


@pytest.mark.parametrize("evicted", KEYS)
def test_members_share_again_after_a_key_was_evicted(redis: RedisServer, evicted: str) -> None:
    name = os.urandom(8)
    one, two = two_peers(redis, name)
    with Redis.from_url(redis.url) as client:
        client.delete(f"{{tidegate:{PROTOCOL}:{name.hex()}}}:{evicted}")
    assert_shared(one, two)
    three = StorePeer(redis_carrier(redis.url), name)
    together(one, two, three)
    one.say(b"news")
    until(lambda: b"news" in three.state, "what is said to one that joins", one, two, three)
    close(one, two, three)


def test_a_stopped_server_is_away_until_it_runs_again(
    server: RedisServer | PostgreSQL, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = two_peers(server, os.urandom(8))
    pid = server.pid if isinstance(server, RedisServer) else None
    stopped = [pid] if pid is not None else backends(server)
    for each in stopped:
        os.kill(each, signal.SIGSTOP)
    try:
        until(lambda: one.last is not None and one.last.away, "to be away", one, two)
        assert one.last is not None
        assert one.last.members == 2
        until(lambda: "is away" in caplog.text, "the warning, while the server is stopped", one, two)
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)
    assert_shared(one, two)
    close(one, two)


def backends(server: RedisServer | PostgreSQL) -> list[int]:
    """The processes of a PostgreSQL server: its first one takes connections, the others answer."""
    assert isinstance(server, PostgreSQL)
    others = "select pid from pg_stat_activity where backend_type like 'client%' and pid <> pg_backend_pid()"
    return [server.pid, *(int(str(pid)) for (pid,) in server.sql(others))]


def test_all_keys_of_a_log_are_in_one_slot_of_a_cluster() -> None:
    cluster = RedisServer(None, "--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{os.getpid()}.conf")
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    cluster.within(folder)
    cluster.start()
    try:
        with Redis.from_url(cluster.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        one, two = two_peers(cluster, os.urandom(8))
        assert_shared(one, two)
        close(one, two)
    finally:
        cluster.stop()
        (folder / f"nodes-{os.getpid()}.conf").unlink(missing_ok=True)


def call(registry: RateLimitRegistry) -> None:
    assert registry.execute(Key("provider", "https://provider.test", "0123456789abcdef", "model"), lambda: 42) == 42


def test_a_wrong_password_fails_no_call_and_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    locked = RedisServer(None, "--requirepass", "right")
    locked.start()
    registry = RateLimitRegistry(Settings(share=locked.url.replace("//", "//:wrong@"), telemetry=False, status=False))
    try:
        for _ in range(3):
            call(registry)
        assert registry._shared is not None
        carrier = registry._shared._carrier
        assert isinstance(carrier, StoreCarrier)
        seen = StorePeer(carrier, b"any")
        until(lambda: seen.last is not None and seen.last.away, "to be away", seen)
        call(registry)
    finally:
        registry._shared.close() if registry._shared is not None else None
        locked.stop()
    told = [record.getMessage() for record in caplog.records if record.name == "tidegate"]
    assert len(told) == 1
    assert "limits not shared: redis at redis://127.0.0.1" in told[0]
    assert "wrong" not in told[0].replace("invalid username-password pair or user is disabled.", "")


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_user_without_rights_is_unshared_with_one_sentence(postgresql: PostgreSQL, has_tables: bool) -> None:
    name = f"db_{has_tables}".lower()
    postgresql.sql(f"create database {name}")
    postgresql.sql("revoke create on schema public from public", name)
    postgresql.sql(f"create role poor_{name} login")
    if has_tables:
        owner = StorePeer(postgres_carrier(postgresql.url(name)), b"x")
        until(lambda: is_alone(owner), "to be alone", owner)
        close(owner)
    url = postgresql.url(name).replace("//tidegate@", f"//poor_{name}@")
    registry = RateLimitRegistry(Settings(share=url, telemetry=False, status=False))
    told: list[Event] = []
    registry.subscribe(told.append)
    key = Key("provider", "https://provider.test", "0123456789abcdef", "model")
    peer = StorePeer(postgres_carrier(url), b"x")
    until(lambda: peer.log.ended, "the end", peer)
    assert peer.log.ended.startswith(f"its tables cannot be {'used' if has_tables else 'created'}: permission denied")
    for _ in range(1000):
        call(registry)
        if registry.snapshot().keys[key].share_lost:
            break
    until(lambda: call(registry) or registry.snapshot().keys[key].share_lost, "the reason")
    assert [type(each) for each in told if isinstance(each, ShareLost)] == [ShareLost]
    assert registry.snapshot().keys[key].members == 1
    close(peer)


def test_calls_of_real_processes_survive_the_death_of_their_server(server: RedisServer | PostgreSQL) -> None:
    with SimulatorProcess(SCENARIO) as simulator, workers(4, simulator.openai_url, 40, url_of(server)) as four:
        simulator.reset()
        go(four)
        server.kill()
        server.start()
        found = reports(four)
        truth = simulator.truth()
    assert [calls for calls, *_ in found] == [41] * 4
    assert truth.total.answered == 160
    assert {lost for *_, lost in found} == {""}
