"""The ground truth, changes in mid-run, the wire, and where the simulator listens."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
import time

import pytest

from tidegate.errors import ConfigurationError
from tidegate.testing import Call, Distribution, Fault, Limit, Refusal, Scenario, Simulator, Truth, serve
from tidegate.testing.accounts import Accounts
from tidegate.testing.server import SimulatedProvider
from tidegate.testing.wire import Connection, MalformedError, take_request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def post(provider, path="/v1/chat/completions", body=CHAT, **headers):
    connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=300)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def get(provider, path):
    connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=300)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def until(condition):
    """Wait for what is bound to happen; the deadline is there for a hung test only."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_truth_counts_what_came_in_by_key_and_by_reason():
    with Simulator(Scenario(limiters=(Limit(limit=2, window=3600),))) as provider:
        statuses = [post(provider, Authorization="Bearer secret-of-one")[0] for _ in range(3)]
        statuses.append(post(provider, Authorization="Bearer other")[0])
        truth = provider.truth()
    assert statuses == [200, 200, 429, 200]
    assert (truth.total.received, truth.total.admitted, truth.total.answered) == (4, 3, 3)
    assert truth.total.refused == {"requests": 1}
    assert truth.total.refusals == 1
    assert sorted(counts.received for counts in truth.keys.values()) == [1, 3]
    assert sorted(round(counts.levels[0].remaining) for counts in truth.keys.values()) == [0, 1]
    assert len(truth.admitted_at) == 3
    assert list(truth.admitted_at) == sorted(truth.admitted_at)
    assert "secret" not in repr(truth)


@pytest.mark.parametrize(("scope", "keys"), [("global", 1), ("credential", 2), ("model", 2), ("credential+model", 3)])
def test_the_scope_says_what_makes_a_key(scope, keys):
    with Simulator(Scenario(scope=scope)) as provider:
        post(provider, Authorization="Bearer a")
        post(provider, Authorization="Bearer b")
        post(provider, body={**CHAT, "model": "n"}, Authorization="Bearer b")
        assert len(provider.truth().keys) == keys


def test_rows_are_listed_by_their_first_admission():
    with Simulator() as provider:
        post(provider, body={**CHAT, "user": "first"})
        post(provider, body={**CHAT, "metadata": {"row": 2}})
        post(provider, body={**CHAT, "max_tokens": 5, "metadata": {"user_id": "third"}}, path="/v1/messages")
        post(provider, **{"x-row": "first"})
        post(provider)
        assert provider.truth().order == ("first", "2", "third", "#5")


def test_the_truth_is_the_same_over_http_and_survives_json():
    with Simulator(Scenario(limiters=(Limit(limit=5), Limit(kind="slots", limit=2)))) as provider:
        post(provider)
        truth = Truth.from_json(get(provider, "/_tidegate/truth")[1])
        here = provider.truth()
    assert (truth.total, truth.order, truth.admitted_at) == (here.total, here.order, here.admitted_at)
    assert Truth.from_json(here.to_json()) == here


def test_a_reset_begins_anew():
    with Simulator(Scenario(limiters=(Limit(limit=1, window=3600),))) as provider:
        assert [post(provider)[0] for _ in range(2)] == [200, 429]
        assert post(provider, path="/_tidegate/reset")[0] == 200
        assert provider.truth().total.received == 0
        assert post(provider)[0] == 200


def test_limits_change_in_mid_run_and_keep_what_they_hold():
    with Simulator(Scenario(limiters=(Limit(kind="fixed", limit=1, window=3600),))) as provider:
        assert [post(provider)[0] for _ in range(2)] == [200, 429]
        provider.configure(limiters=[{"kind": "fixed", "limit": 2, "window": 3600}])
        assert [post(provider)[0] for _ in range(2)] == [200, 429]
        provider.configure(outage=3600, outage_status=500)
        assert post(provider)[0] == 500
        assert provider.truth().total.refused == {"requests": 2, "outage": 1}


def test_a_change_that_cannot_be_is_refused_here_and_over_http():
    with Simulator() as provider:
        with pytest.raises(ConfigurationError):
            provider.configure(latency="slow")
        status, _, body = post(provider, path="/_tidegate/configure", body={"scope": "planet"})
        assert (status, json.loads(body)["field"]) == (422, "scope")
        assert post(provider, path="/_tidegate/configure", body=[])[0] == 400
        assert post(provider, path="/_tidegate/nothing")[0] == 404


class Clock:
    """Virtual time for a provider, and a stand-in for the loop's timers."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Wire(asyncio.Transport):
    """A transport that keeps what was written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.is_cut = False

    def write(self, data):
        self.written += data

    def abort(self):
        self.is_cut = True

    def close(self):
        self.is_cut = True


def request_bytes(path="/v1/chat/completions", body=CHAT, method="POST", extra=b""):
    content = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n".encode()
    return head + extra + b"\r\n" + content


def connected(scenario, clock):
    provider, wire, connections = SimulatedProvider(scenario, clock=clock), Wire(), set()
    connection = Connection(provider.on_request, connections)
    connection.connection_made(wire)
    return provider, connection, wire


def test_an_outage_is_over_when_its_time_has_passed():
    clock = Clock()
    provider, connection, wire = connected(Scenario(), clock)
    provider.accounts.configure({}, outage=5.0, status=503)
    connection.data_received(request_bytes())
    clock.now = 4.9
    connection.data_received(request_bytes())
    clock.now = 5.0
    connection.data_received(request_bytes())
    assert re.findall(rb"HTTP/1.1 (\d+)", wire.written) == [b"503", b"503", b"200"]


def test_headers_are_those_of_the_instant_of_admission():
    clock = Clock()
    _, connection, wire = connected(Scenario(limiters=(Limit(limit=60),)), clock)
    connection.data_received(request_bytes())
    assert b"x-ratelimit-remaining-requests: 59\r\n" in wire.written
    assert b"x-ratelimit-reset-requests: 1s\r\n" in wire.written
    clock.now, wire.written = 0.5, b""
    connection.data_received(request_bytes())
    assert b"x-ratelimit-remaining-requests: 58\r\n" in wire.written
    assert b"x-ratelimit-reset-requests: 1.5s\r\n" in wire.written


def test_a_request_may_come_byte_by_byte_chunked_or_with_the_next_behind_it():
    provider, connection, wire = connected(Scenario(), Clock())
    for byte in request_bytes():
        connection.data_received(bytes([byte]))
    content = json.dumps(CHAT).encode()
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, content[:9], len(content) - 9, content[9:])
    head = b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.data_received(head + chunks + request_bytes())
    assert provider.accounts.truth().total.answered == 3
    assert wire.written.count(b"HTTP/1.1 200 OK") == 3


def test_a_connection_is_kept_unless_the_client_asks_otherwise():
    _, connection, wire = connected(Scenario(), Clock())
    connection.data_received(request_bytes())
    assert not wire.is_cut
    connection.data_received(request_bytes(extra=b"connection: close\r\n"))
    assert wire.is_cut


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it():
    provider, connection, wire = connected(Scenario(), Clock())
    whole = request_bytes(extra=b"expect: 100-continue\r\n")
    split = whole.index(b"\r\n\r\n") + 4
    connection.data_received(whole[:split])
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(whole[split:])
    assert provider.accounts.truth().total.answered == 1


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/3\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"x" * 70_000, 431),
    ],
)
def test_what_is_no_http_is_refused_and_the_connection_closed(given, status):
    with pytest.raises(MalformedError) as caught:
        take_request(bytearray(given))
    assert caught.value.status == status
    _, connection, wire = connected(Scenario(), Clock())
    connection.data_received(given)
    assert wire.written.startswith(b"HTTP/1.1 %d " % status)
    assert wire.is_cut


def test_a_client_that_leaves_abandons_its_call_and_frees_the_slot():
    scenario = Scenario(limiters=(Limit(kind="slots", limit=1),), latency=Distribution.constant(3600))
    with Simulator(scenario) as provider:
        leaver = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=300)
        leaver.request("POST", "/v1/chat/completions", json.dumps(CHAT))
        until(lambda: provider.truth().total.in_flight == 1)
        assert post(provider)[0] == 503
        leaver.close()
        until(lambda: provider.truth().total.in_flight == 0)
        provider.configure(latency="0")
        assert post(provider)[0] == 200
        truth = provider.truth().total
    assert (truth.abandoned, truth.answered, truth.peak_in_flight, truth.refused) == (1, 1, 1, {"slots": 1})


def test_an_abandoned_stream_is_charged_what_it_had_produced():
    scenario = Scenario(
        limiters=(Limit(limit=1000, window=1e9, unit="output_tokens"),),
        charge="produced",
        output_tokens=Distribution.constant(100),
        answers={"hello": "one two three four"},
    )
    with Simulator(scenario) as provider:
        provider.configure(token_pace=36.0)
        leaver = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=300)
        leaver.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}))
        stream = leaver.getresponse()
        assert b'"role":"assistant"' in stream.readline()
        stream.close()
        leaver.close()
        until(lambda: provider.truth().total.abandoned == 1)
        (counts,) = provider.truth().keys.values()
    assert counts.levels[0].remaining == pytest.approx(1000)


def test_a_paced_stream_arrives_piece_by_piece_and_is_charged_at_its_end():
    scenario = Scenario(
        limiters=(Limit(limit=1000, window=1e9, unit="output_tokens"),),
        charge="produced",
        output_tokens=Distribution.constant(100),
        token_pace=1e-5,
        answers={"hello": "one two three four"},
    )
    with Simulator(scenario) as provider:
        status, headers, body = post(provider, body={**CHAT, "stream": True})
        (counts,) = provider.truth().keys.values()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert re.findall(rb'"content":"([ a-z]+)"', body) == [b"one", b" two", b" three", b" four"]
    assert counts.levels[0].remaining == pytest.approx(900)


def test_latency_grows_beyond_the_knee_and_draws_repeat_with_the_seed():
    def latencies(knee):
        scenario = Scenario(knee=knee, seed=3, latency=Distribution.lognormal(1, 0.5))
        accounts = SimulatedProvider(scenario, clock=Clock()).accounts
        return [accounts.admit("k", "", Call(), stream=False).outcome.latency for _ in range(4)]

    plain = latencies(None)
    assert plain == latencies(None)
    assert latencies(2) == pytest.approx([plain[0], plain[1], plain[2] * 1.5, plain[3] * 2])


def test_the_simulator_starts_once_closes_twice_and_starts_again():
    simulator = Simulator()
    with pytest.raises(RuntimeError):
        _ = simulator.url
    assert simulator.start() is simulator.start()
    first = simulator.url
    assert post(simulator)[0] == 200
    simulator.close()
    simulator.close()
    assert simulator.truth().total.answered == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(first.rsplit(":", 1)[1])))
    with simulator:
        assert simulator.truth().total.answered == 0
        assert post(simulator)[0] == 200


def test_the_simulator_listens_on_this_machine_only_and_says_when_a_port_is_taken():
    with Simulator() as provider:
        assert provider.url.startswith("http://127.0.0.1:")
        assert provider.openai_url == provider.url + "/v1"
        with pytest.raises(OSError, match="address already in use"):
            Simulator(port=int(provider.url.rsplit(":", 1)[1])).start()


def test_the_simulator_is_an_async_context_as_well():
    async def main():
        async with Simulator() as provider:
            assert (await asyncio.to_thread(post, provider))[0] == 200
            return provider

    assert asyncio.run(main()).truth().total.answered == 1


def test_serving_ends_with_the_truth_when_it_is_told_to_stop():
    stop, seen = threading.Event(), []

    def on_ready(url):
        seen.append(url)
        stop.set()

    assert serve(Scenario(), stop=stop, on_ready=on_ready).total.received == 0
    assert seen[0].startswith("http://127.0.0.1:")


def test_faults_fall_on_the_same_calls_for_the_same_seed():
    def faulty(seed):
        faults = (Fault(kind="status", probability=0.3), Fault(kind="stream-error", nth=(2,)))
        accounts = SimulatedProvider(Scenario(faults=faults, seed=seed), clock=Clock()).accounts
        kinds = []
        for number in range(40):
            fault = accounts.admit("k", "", Call(), stream=number >= 38).outcome.fault
            kinds.append(fault and fault.kind)
        return kinds

    assert faulty(1) == faulty(1) != faulty(2)
    assert 4 <= faulty(1)[:38].count("status") <= 20
    assert faulty(1)[39] is not None


def test_a_greedy_client_gets_its_bucket_and_refill_and_nothing_more():
    clock = Clock()
    provider, connection, wire = connected(Scenario(limiters=(Limit(limit=60, window=6),)), clock)
    for tick in range(300):
        clock.now = tick / 100
        connection.data_received(request_bytes())
    truth = provider.accounts.truth()
    assert truth.total.admitted == 60 + 29
    assert truth.total.refused == {"requests": 300 - 89}
    assert wire.written.count(b"rate_limit_exceeded") == 211


def test_the_truth_knows_how_long_each_answered_call_was_held():
    scenario = Scenario(latency=Distribution.constant(0.05), faults=(Fault(kind="status", nth=(2,)),))
    with Simulator(scenario) as provider:
        for _ in range(3):
            post(provider)
        truth = provider.truth()
    assert len(truth.admitted_at) == 3
    assert len(truth.held) == 2
    assert min(truth.held) >= 0.05
    assert Truth.from_json(truth.to_json()) == truth


def test_keys_of_one_owner_share_a_limit() -> None:
    limits = (Limit(limit=3, shared=True), Limit(limit=2, unit="tokens"))
    accounts = Accounts(Scenario(limiters=limits), lambda: 0.0)

    def admitted(key: str, owner: str = "") -> bool:
        return not isinstance(accounts.admit(key, "", Call(1), stream=False, owner=owner).outcome, Refusal)

    assert [admitted(key) for key in ("a", "a", "a", "b", "b", "c")] == [True, True, False, True, False, False]
    assert admitted("d", "another")
    assert [level.remaining for level in accounts.levels("c")] == [0.0, 2.0]


def test_shared_limit_keeps_its_content_and_stays_shared_when_the_scenario_changes() -> None:
    accounts = Accounts(Scenario(limiters=(Limit(limit=10, shared=True),)), lambda: 0.0)
    for key in ("a", "b", "b"):
        accounts.admit(key, "", Call(), stream=False)
    accounts.configure({"limiters": [{"limit": 8, "shared": True}]}, outage=None, status=503)
    accounts.admit("a", "", Call(), stream=False)
    assert accounts.levels("a")[0].remaining == accounts.levels("b")[0].remaining == 6.0
