"""Open streams that hold all slots while nobody reads them: their readers may wait for the next call in the queue."""

from __future__ import annotations

import pytest

from tests.core.test_twins import Request
from tests.core.values import KEY
from tidegate.admission.key_queue import UNREAD_SECONDS
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

OK = Outcome(Kind.OK)
LOOP = object()


class Scene:
    """A key of few slots, streams that hold them, and calls that wait; threads, or tasks of one event loop."""

    def __init__(self, slots: int, loop: object = None) -> None:
        self.clock, self.loop = VirtualClock(), loop
        self.registry = RateLimitRegistry(Settings(max_concurrency=slots), clock=self.clock, draw=lambda: 0.5)

    def open(self, begun: bool = True) -> Permit:
        permit = self.registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        return self.begin(permit, begun)

    def begin(self, permit: Permit, begun: bool = True) -> Permit:
        permit.loop, permit.seen = self.loop, bytearray()
        if begun:
            self.registry.learn(permit, OK)
        return permit

    def ask(self) -> Request:
        call = Request(object(), self.loop)
        assert self.registry.enqueue(call, KEY, 60.0) is None
        return call

    def wait(self, call: Request, seconds: float, read: Permit | None = None) -> Permit | None:
        """Let the call wait, by its own timer alone; return its permit, if it gets one. `read` is read meanwhile."""
        ends = self.clock.now + seconds
        while call.until is not None and call.until <= ends:
            self.clock.advance(max(0.001, call.until - self.clock.now))
            if read is not None and read.seen is not None:
                read.seen += b"chunk"
            permit = self.registry.poll(call)
            if permit is not None:
                return permit
        self.clock.advance(max(0.0, ends - self.clock.now))
        return None


@pytest.fixture(params=[None, LOOP], ids=["threads", "tasks"])
def loop(request: pytest.FixtureRequest) -> object:
    return request.param


def test_a_call_goes_beyond_an_open_stream_that_is_not_read(loop: object) -> None:
    scene = Scene(1, loop)
    scene.open()
    began = scene.clock.now
    assert scene.wait(scene.ask(), 10.0) is not None
    assert scene.clock.now - began <= 1.1 * UNREAD_SECONDS


def test_each_call_between_two_chunks_goes(loop: object) -> None:
    scene = Scene(1, loop)
    stream = scene.open()
    for _ in range(5):
        assert stream.seen is not None
        stream.seen += b"chunk"
        permit = scene.wait(scene.ask(), 1.1 * UNREAD_SECONDS)
        assert permit is not None
        scene.registry.settle(permit, OK)


def test_a_stream_that_is_read_keeps_its_slot(loop: object) -> None:
    scene = Scene(1, loop)
    stream = scene.open()
    assert scene.wait(scene.ask(), 20.0, read=stream) is None


def test_a_call_whose_answer_has_not_begun_keeps_its_slot(loop: object) -> None:
    scene = Scene(2, loop)
    scene.open()
    scene.open(begun=False)
    assert scene.wait(scene.ask(), 20.0) is None


def test_streams_opened_inside_streams_go_more_and_more_rarely(loop: object) -> None:
    """A bound of the user is exceeded by few calls, where servers only think long before each chunk."""
    scene = Scene(1, loop)
    scene.open()
    beyond = 0
    while scene.clock.now < 60.0 * UNREAD_SECONDS:
        permit = scene.wait(scene.ask(), 60.0 * UNREAD_SECONDS)
        if permit is not None:
            scene.begin(permit)
            beyond += 1
    assert 2 <= beyond <= 11


def test_refused_calls_come_one_at_a_time() -> None:
    scene = Scene(1)
    scene.open()
    calls = [scene.ask() for _ in range(8)]
    sent = 0
    for _ in range(200):
        scene.clock.advance(0.05 * UNREAD_SECONDS)
        for call in calls:
            permit = scene.registry.poll(call)
            if permit is not None:
                sent += 1
                calls.remove(call)
                scene.registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.CONCURRENCY, status=429))
                calls.append(scene.ask())
                break
    assert 1 <= sent <= 10


def test_a_pause_holds_the_call_too() -> None:
    scene = Scene(1)
    scene.open()
    refused = scene.wait(scene.ask(), 2.0 * UNREAD_SECONDS)
    assert refused is not None
    scene.registry.settle(refused, Outcome(Kind.RATE_LIMIT, Cause.RATE, 20.0, status=429))
    began, call = scene.clock.now, scene.ask()
    assert scene.wait(call, 18.0) is None
    assert scene.wait(call, 30.0) is not None
    assert scene.clock.now - began >= 20.0


def test_calls_that_are_admitted_test_a_learned_limit() -> None:
    """Refusals had another cause than the stream beside them: after a few calls the slots are free again."""
    scene = Scene(100)
    scene.open()
    began, refusals = scene.clock.now, 3
    for number in range(40):
        admitted = scene.registry.try_admit(KEY)
        permit = admitted if isinstance(admitted, Permit) else scene.wait(scene.ask(), 100.0)
        assert permit is not None
        scene.clock.advance(0.002)
        if number % 3 == 2 and refusals:
            refusals -= 1
            scene.registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, status=429))
        else:
            scene.registry.settle(permit, OK)
        scene.clock.advance(0.02)
    assert scene.clock.now - began < 12.0 * UNREAD_SECONDS
