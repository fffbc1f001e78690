"""Laws of calls inside calls: a signal handler, or a finalizer, may make a call at any bytecode of another one.

It runs in the same thread, so it must not wait for a lock that this thread holds.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import pytest

import tidegate
from tests.effort import effort
from tests.laws.test_interruption_laws import CUTS, Cut, drawn, make
from tests.laws.test_interruption_laws import watchdog as watchdog
from tidegate.admission import hooks
from tidegate.admission import registry as default
from tidegate.admission.redaction import CredentialStore
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder
from tidegate.pool.function_limit import FunctionLimit
from tidegate.shared_log.carrier import ALONE, Record
from tidegate.shared_log.store_carrier import StoreCarrier
from tidegate.shared_log.store_log import Answer, Ask
from tidegate.telemetry import activation
from tidegate.transports import sigv4
from tidegate.transports.request_key import account_of

URL = "https://api.openai.com/v1/chat/completions"
ANSWER = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


class Scene(NamedTuple):
    """One step, what a signal handler does inside it, and what holds after both."""

    step: Callable[[], object]
    handle: Callable[[], object]
    check: Callable[[], object] = lambda: None


class Token(httpx.Auth):
    """Credentials in an object, which gets another token with each request."""

    numbers = count()

    def __init__(self) -> None:
        self.token = f"token-{next(self.numbers)}"

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:
        self.token = f"token-{next(self.numbers)}"
        request.headers["authorization"] = f"Bearer sk-{self.token}-{'x' * 20}"
        yield request


def asked(client: httpx.Client) -> None:
    for key in ("first", "second"):
        headers = {"authorization": f"Bearer sk-{key}-{next(Token.numbers)}-{'x' * 20}"}
        assert client.post(URL, json={"model": "m", "messages": []}, headers=headers).status_code == 200


def client(registry: tidegate.RateLimitRegistry, auth: httpx.Auth | None = None) -> httpx.Client:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER))
    return tidegate.wrap(httpx.Client(transport=transport, auth=auth), registry=registry)


def wrapped() -> Scene:
    """A whole call of a client with an `auth=` object, in an audit."""
    registry = make()
    clients = [client(registry, Token()) for _ in range(2)]

    def step() -> None:
        with tidegate.audit():
            asked(clients[0])

    def handle() -> None:
        with tidegate.audit() as trail:
            for each in clients:
                asked(each)
        assert len(trail.attempts) == 4

    return Scene(step, handle, lambda: asked(clients[1]))


def told() -> Scene:
    """The first call that telemetry reports."""
    registry = make()
    each = client(registry)

    def step() -> None:
        activation.begin(registry)
        asked(each)
        activation.end(registry)

    return Scene(step, lambda: asked(each))


def installed() -> Scene:
    """An installation, and calls of clients that nobody wrapped."""
    registry = make()

    def step() -> None:
        tidegate.install(registry)
        asked(each)

    each = httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER)))
    return Scene(step, step, tidegate.uninstall)


def first() -> Scene:
    """The first use of the registry of the process."""
    default._registry = None
    found: list[object] = []

    def use() -> None:
        found.append(tidegate.registry())

    def check() -> None:
        assert tidegate.registry() in found

    return Scene(use, use, check)


def signed() -> Scene:
    """A signature of botocore, which is kept until its request is sent."""

    def sign(name: str) -> object:
        request = SimpleNamespace(headers={"Authorization": name})
        return sigv4.note(lambda request: None, f"signer of {name}", (request,), {})

    def check() -> None:
        for name in ("one", "two"):
            assert sigv4._noted[name] == f"signer of {name}"

    return Scene(lambda: sign("one"), lambda: sign("two"), check)


def remembered() -> Scene:
    """Credentials that are remembered, so that no text has them."""
    store = CredentialStore(3)
    store.remember(["credential-number-0"])

    def check() -> None:
        for number in range(3):
            assert "number" not in store.redact(f"credential-number-{number}")
            assert store.shares(f"credential-number-{number}")

    return Scene(
        lambda: store.remember(["credential-number-1"]), lambda: store.remember(["credential-number-2"]), check
    )


def identified() -> Scene:
    """The accounts of an `auth=` object and its equal, both new: all calls get the same, also after the next token."""
    first, equal = Token(), Token()
    first.token = equal.token = f"start-{next(Token.numbers)}"
    found: list[str] = []

    def ask() -> None:
        found.extend((account_of(first), account_of(equal)))

    def check() -> None:
        first.token = f"token-{next(Token.numbers)}"
        ask()
        assert len(set(found)) == 1

    return Scene(ask, ask, check)


class Worker(SimpleNamespace):
    """A function in flight."""

    __hash__ = object.__hash__


def counted() -> Scene:
    """A function of a pool that enters a call and leaves it."""
    limit = FunctionLimit(None, time.monotonic, lambda: None)
    worker = Worker(size=1, at_work_since=None, beside=0, over=False)

    def call() -> None:
        limit.calls(worker)
        limit.works(worker)

    def step() -> None:
        limit.started(worker)
        call()
        limit.has_room()

    def check() -> None:
        limit.works(worker)
        limit.ended(worker)
        assert (limit.in_flight, limit._at_work) == (0, set())

    return Scene(step, call, check)


class Server:
    """A server of a log with one other member."""

    def exchange(self, name: bytes, ask: Ask) -> Answer:
        return Answer(time.monotonic(), "epoch", 1, 0, [], {}, [1, 2])

    def close(self) -> None:
        """Do nothing."""


def exchanged() -> Scene:
    """An exchange with a server, in its thread, where a finalizer makes a call."""
    carrier = StoreCarrier(Server, "test", "test://test")
    carrier._thread = threading.current_thread()
    log = carrier.join(b"name", time.monotonic())
    assert log is not None
    carrier._exchange(log, False)

    def call() -> None:
        now = time.monotonic()
        step = log.enter(now)
        if step is not None and step is not ALONE:
            log.leave([Record(now, b"said")], None)

    def step() -> None:
        call()
        log.due_at()
        carrier._exchange(log, False)
        carrier._wake()
        carrier._exchange(log, False)

    def check() -> None:
        carrier._exchange(log, False)
        ask = log.ask(time.monotonic())
        assert (ask.records, log.ended, log.due_at() < math.inf) == ([], "", True)

    return Scene(step, call, check)


def tallied() -> Scene:
    """Failed and ungoverned calls, which the process counts in a file."""
    folder = tempfile.TemporaryDirectory()
    counters = ProcessCounters(folder.name)
    hooks.on_new_queue, hooks.on_ungoverned = counters.track, counters.count_host
    statuses = {"POST": 400, "GET": 429}
    transport = httpx.MockTransport(lambda request: httpx.Response(statuses[request.method], json={}))
    clients = [tidegate.wrap(httpx.Client(transport=transport), registry=make()) for _ in range(2)]

    def ask(each: httpx.Client) -> None:
        each.post(URL, json={"model": "m", "messages": []})
        for _ in range(2):
            each.get("https://api.openai.com/v1/files")

    def handle() -> None:
        # What is asked inside an attempt is part of that attempt, so only these are always counted.
        for host in ("one", "two"):
            counters.count_host(host)
        ask(clients[1])

    def check() -> None:
        totals = Folder(Path(folder.name)).totals()
        assert (totals.hosts["one"], totals.hosts["two"]) == (1, 1)
        assert (2 <= totals.hosts["429 api.openai.com"] <= 4, 1 <= sum(totals.failures.values()) <= 2) == (True, True)
        counters.forked()
        folder.cleanup()

    return Scene(lambda: ask(clients[0]), handle, check)


def tallied_alone() -> Scene:
    """Counts of ungoverned calls alone: none is lost, and none gets the place of another host."""
    folder = tempfile.TemporaryDirectory()
    counters = ProcessCounters(folder.name)

    def step() -> None:
        for host in ("one", "two", "one"):
            counters.count_host(host)

    def handle() -> None:
        for host in ("three", "one"):
            counters.count_host(host)

    def check() -> None:
        assert Folder(Path(folder.name)).totals().hosts == {"one": 3, "two": 1, "three": 1}
        counters.forked()
        folder.cleanup()

    return Scene(step, handle, check)


WHOLE = [wrapped, told, installed, tallied]
PARTS = [first, signed, remembered, identified, counted, exchanged, tallied_alone]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    before, opened, passed = default._registry, hooks.on_new_queue, hooks.on_ungoverned
    yield
    default._registry, hooks.on_new_queue, hooks.on_ungoverned = before, opened, passed
    tidegate.uninstall()


@pytest.mark.parametrize(
    ("scene", "most"), [*((each, effort(40, 1000)) for each in WHOLE), *((each, effort(CUTS, 2500)) for each in PARTS)]
)
def test_a_call_inside_any_step_of_a_call_waits_for_nothing_of_its_own_thread(
    scene: Callable[[], Scene], most: int
) -> None:
    def places() -> int:
        whole = Cut(0, lambda: None, False)
        step, handle, check = scene()
        whole.run(step)
        handle()
        check()
        return whole.seen

    places()
    for at in drawn(places(), most):
        step, handle, check = scene()
        Cut(at, handle, False).run(step)
        check()
