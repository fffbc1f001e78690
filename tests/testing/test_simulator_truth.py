"""The ground truth, changes in mid-run, the wire, and where the simulator listens."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import re
import socket
import threading
import time

import pytest

from tidegate.testing import Distribution, Limit, Scenario, Simulator
from tidegate.testing.server import SimulatedProvider
from tidegate.testing.wire import Connection

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def post(provider, path="/v1/chat/completions", body=CHAT, **headers):
    connection = http.client.HTTPConnection(provider.url.removeprefix("http://"), timeout=300)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def until(condition):
    """Wait for what is bound to happen; the deadline is there for a hung test only."""
    deadline = time.monotonic() + 300
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

    async def call_thrice():
        for clock.now in (0.0, 4.9, 5.0):
            connection.data_received(request_bytes())
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(call_thrice())
    assert re.findall(rb"HTTP/1.1 (\d+)", wire.written) == [b"503", b"503", b"200"]


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it():
    provider, connection, wire = connected(Scenario(), Clock())
    whole = request_bytes(extra=b"expect: 100-continue\r\n")
    split = whole.index(b"\r\n\r\n") + 4
    connection.data_received(whole[:split])
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"

    async def send_the_body():
        connection.data_received(whole[split:])
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(send_the_body())
    assert provider.accounts.truth().total.answered == 1


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


def begin_connections(address, opened, ended):
    while len(opened) < 200 and not ended.is_set():
        opened.append(socket.socket())
        opened[-1].setblocking(False)
        opened[-1].connect_ex(address)


def test_connections_that_begin_at_its_end_are_closed_too():
    """Collected, a connection that is open warns, and a warning is an error here."""
    for _ in range(5):
        opened, ended = [], threading.Event()
        with Simulator() as provider:
            address = ("127.0.0.1", int(provider.url.rpartition(":")[2]))
            beginning = threading.Thread(target=begin_connections, args=(address, opened, ended))
            beginning.start()
            until(lambda opened=opened: len(opened) > 50)
        ended.set()
        beginning.join()
        for each in opened:
            each.close()
        gc.collect()


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


def test_the_simulator_listens_on_this_machine_only_and_says_when_a_port_is_taken():
    with Simulator() as provider:
        assert provider.url.startswith("http://127.0.0.1:")
        assert provider.openai_url == provider.url + "/v1"
        with pytest.raises(OSError, match="address already in use"):
            Simulator(port=int(provider.url.rsplit(":", 1)[1])).start()
