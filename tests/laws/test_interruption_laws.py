"""Laws of steps that are cut off: by the garbage collector, which ends other calls, and by an interrupt of the program.

CPython looks for signals where a function begins, after a call of one that is not Python's own, and where a loop
repeats. A collection may begin at any bytecode. Each test takes one step, and cuts it at each of these places in turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import dis
import faulthandler
import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tidegate
from tests.effort import LONG, SEED
from tidegate.admission import audit
from tidegate.admission.context import current_scope
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core import events
from tidegate.core.values import INFINITY, Cause, Kind, Outcome, RequestFacts, Usage
from tidegate.errors import PermitMisuse

KEY = tidegate.Key("p", "https://p.test", "abc", "m")
OK = Outcome(Kind.OK)
REFUSED = Outcome(Kind.RATE_LIMIT, Cause.RATE)
SOURCE = str(Path(tidegate.__file__).parent)
CUTS = 250
"""Places at which `make test` cuts a long step, at most; `make test-long` cuts it at each."""

HANGS = 120.0
"""Seconds after which a cut that hangs shows all stacks and ends the run."""

LOOKS = frozenset({"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME", "PRECALL"})
"""Instructions after which the interpreter looks for signals; `PRECALL` (3.11) does where it makes the call itself."""


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Each cut begins the time anew: a test of many cuts may take as long as a slow machine needs."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Leave nothing of the interrupts of a test to the tests after it.

    An interrupt may skip what resets a context variable, what counts an open audit down, and where CPython forgets a
    handled exception. The test runs in a copy of the context, and in a generator, which has its own handled exception.
    """

    def steps(*args: Any, **kwargs: Any) -> Iterator[None]:
        test(*args, **kwargs)
        yield

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        before = audit.open_blocks.copy()
        try:
            contextvars.copy_context().run(next, steps(*args, **kwargs))
        finally:
            audit.open_blocks.intersection_update(before)

    return run


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector runs only where a test starts it, and looks only at what the test has made."""
    call(make())
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


class Cut:
    """Runs a function, and `act` at the bytecode numbered `at` of tidegate's own code in it."""

    def __init__(self, at: int, act: Callable[[], object], only_looks: bool) -> None:
        self.at, self.act, self.only_looks = at, act, only_looks
        self.seen, self.done = 0, False
        self.before: dict[int, str] = {}

    def run(self, function: Callable[[], Any]) -> Any:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(None)

    def _enter(self, frame: Any, event: str, argument: Any) -> Any:
        if self.done or not frame.f_code.co_filename.startswith(SOURCE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        # The entry of a function is no opcode that is traced, and its first place.
        self.before[id(frame)] = "RESUME"
        return self._look

    def _look(self, frame: Any, event: str, argument: Any) -> Any:
        if event != "opcode" or self.done:
            return self._look
        before, name = self.before.get(id(frame), ""), dis.opname[frame.f_code.co_code[frame.f_lasti]]
        self.before[id(frame)] = name
        if self.only_looks and (before not in LOOKS or (before, name) == ("PRECALL", "CALL")):
            return self._look
        self.seen += 1
        if self.seen == self.at:
            self.done = True
            sys.settrace(None)
            self.act()
        return self._look


class Clock:
    """A clock that is a little later at each look: waits are over at once, and limits open."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def make(slots: int = 2) -> RateLimitRegistry:
    settings = tidegate.Settings(max_concurrency=slots, share="off", telemetry=False, status=False)
    return RateLimitRegistry(settings, clock=Clock(), draw=lambda: 0.5)


class Abandoned:
    """A coroutine of a call in flight, or in the queue, in a cycle that only the collector finds."""

    def __init__(self, registry: RateLimitRegistry) -> None:
        self.coroutine = registry.aexecute(KEY, self.answer)
        self.coroutine.send(None)

    async def answer(self) -> int:
        return await asyncio.Future()


def abandon(registry: RateLimitRegistry, kind: type[Abandoned] = Abandoned) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        kind(registry)

    loop.run_until_complete(begin())
    loop.close()


def taken(registry: RateLimitRegistry) -> Any:
    permit = registry.try_admit(KEY)
    assert permit
    return permit


def call(registry: RateLimitRegistry) -> None:
    registry.execute(KEY, lambda: None)


def refused_once(registry: RateLimitRegistry) -> None:
    answers = iter([True, False])
    registry.execute(KEY, lambda: next(answers), is_rate_limited=lambda result, error: bool(result))


def failed(registry: RateLimitRegistry) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.execute(KEY, fail)


def heard(registry: RateLimitRegistry) -> None:
    end = registry.subscribe(lambda event: None)
    try:
        registry.execute(KEY, lambda: None)
    finally:
        end()


def awaited(registry: RateLimitRegistry) -> None:
    coroutine = registry.aexecute(KEY, lambda: asyncio.sleep(0))
    asyncio._set_running_loop(loop := asyncio.new_event_loop())
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        pass
    finally:
        asyncio._set_running_loop(None)
        coroutine.close()
        loop.close()


def audited(registry: RateLimitRegistry) -> None:
    with tidegate.audit():
        registry.execute(KEY, lambda: None)


def streamed(registry: RateLimitRegistry) -> None:
    def stream() -> None:
        *_, permit = registry._queues[KEY].admission.permits_in_flight.values()
        registry.learn(permit, OK)
        registry.learn_usage(permit, RequestFacts(), Usage(input_tokens=1, output_tokens=1))

    registry.execute(KEY, stream)


def looked(registry: RateLimitRegistry) -> None:
    registry.snapshot()
    registry.export_state()
    registry.forecast(KEY, None)
    registry.unavailable(KEY)


def drawn(number: int, most: float = INFINITY if LONG else CUTS) -> Sequence[int]:
    """Places of a step of `number` places: all, or `most` of them, the same ones until the step or the seed changes."""
    places = range(1, number + 1)
    return places if number <= most else sorted(Random(f"{SEED} {number}").sample(places, int(most)))


CALLS = [call, refused_once, failed, heard, awaited, audited, streamed, looked]


def places(step: Callable[[RateLimitRegistry], object], only_looks: bool, slots: int = 2) -> int:
    cut = Cut(0, lambda: None, only_looks)
    # The first step of a process fills caches: where nothing ran before, it has more places than those that are cut.
    for run in (lambda each: each(), cut.run):
        registry = make(slots)
        call(registry)
        run(lambda: step(registry))  # noqa: B023
    return cut.seen


def settled(registry: RateLimitRegistry, slots: int = 2) -> None:
    """Assert that no slot is lost, that another thread gets each of them, and that later requests are governed."""
    scope = current_scope()
    assert scope is None or not scope.open
    seen = registry.snapshot().keys[KEY]
    assert (seen.in_flight, seen.waiting) == (0, 0)
    assert isinstance(registry.clock, Clock)
    if seen.refused:
        # What was learned of a refusal holds less than all slots for a while.
        registry.clock.now += 3600.0
        registry.settle(taken(registry), OK)
    else:
        permits = [taken(registry) for _ in range(slots)]
        assert not registry.try_admit(KEY)
        for permit in permits:
            registry.settle(permit, OK)
    seen = registry.snapshot().keys[KEY]
    assert seen.attempts == seen.answered + seen.refused + seen.failed + seen.abandoned


@pytest.mark.parametrize("step", CALLS)
def test_a_call_that_the_collector_ends_inside_any_step_gives_back_its_slot(
    step: Callable[[RateLimitRegistry], object], collector: None
) -> None:
    for at in drawn(places(step, False)):
        registry = make(3)
        abandon(registry)
        assert registry.snapshot().in_flight == 1
        Cut(at, gc.collect, False).run(lambda: step(registry))  # noqa: B023
        gc.collect()
        settled(registry, 3)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("step", CALLS)
@apart
def test_an_interrupt_inside_any_step_loses_no_slot(step: Callable[[RateLimitRegistry], object]) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    whole = 0
    for at in drawn(places(step, True)):
        registry = make()
        call(registry)
        # Which places a step has depends on what the interpreter and the caches know by now.
        with suppress(KeyboardInterrupt):
            Cut(at, interrupt, True).run(lambda: step(registry))  # noqa: B023
            whole += 1
        settled(registry)
    assert whole < 10


@pytest.mark.parametrize("step", [call, failed, looked])
@apart
def test_an_interrupt_in_a_process_that_shares_leaves_later_calls_governed(
    step: Callable[[RateLimitRegistry], object], tmp_path: Path, collector: None
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    tmp_path.chmod(0o700)
    settings = tidegate.Settings(max_concurrency=2, share=str(tmp_path), telemetry=False, status=False)
    registry = RateLimitRegistry(settings, draw=lambda: 0.5)
    for _ in range(3):
        call(registry)
    whole = Cut(0, lambda: None, True)
    whole.run(lambda: step(registry))
    for at in drawn(whole.seen):
        with suppress(KeyboardInterrupt):
            Cut(at, interrupt, True).run(lambda: step(registry))
        attempts = registry.snapshot().keys[KEY].attempts
        call(registry)
        seen = registry.snapshot().keys[KEY]
        assert (seen.attempts, seen.in_flight) == (attempts + 1, 0)


@apart
def test_an_interrupt_of_a_call_lets_those_that_wait_go_on() -> None:
    """Its thread wakes the next one, at whatever place it is cut off."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    def step(registry: RateLimitRegistry) -> None:
        # It takes the only slot, and another call waits for it.
        registry.execute(KEY, lambda: begin(registry))

    def begin(registry: RateLimitRegistry) -> None:
        thread = threading.Thread(target=call, args=(registry,), daemon=True)
        threads.append(thread)
        thread.start()
        while not registry.snapshot().waiting:
            threading.Event().wait(0.0005)

    threads: list[threading.Thread] = []
    number = places(step, True, 1)
    for at in drawn(number):
        registry = make(1)
        call(registry)
        with suppress(KeyboardInterrupt):
            Cut(at, interrupt, True).run(lambda: step(registry))  # noqa: B023
        for thread in threads:
            thread.join(HANGS)
            assert not thread.is_alive()
        threads.clear()
        settled(registry, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_listener_that_ends_the_program_loses_no_slot(error: type[BaseException]) -> None:
    registry = make(1)
    call(registry)

    def listen(event: events.Event) -> None:
        if isinstance(event, events.SlotAcquired):
            raise error

    end = registry.subscribe(listen)
    for _ in range(3):
        with pytest.raises(error):
            call(registry)
    end()
    settled(registry, 1)


class Swallowing(Abandoned):
    """A coroutine that answers its end with a result, as a client may that fails to close its connection."""

    async def answer(self) -> int:
        with suppress(BaseException):
            await asyncio.Future()
        return 1


def test_a_call_that_swallows_its_end_inside_a_step_hangs_nothing(collector: None) -> None:
    for at in drawn(places(call, False)):
        registry = make(3)
        abandon(registry, Swallowing)
        Cut(at, gc.collect, False).run(lambda: call(registry))  # noqa: B023
        gc.collect()
        settled(registry, 3)


def test_what_a_signal_handler_asks_inside_a_step_is_answered_at_once() -> None:
    for at in drawn(places(call, True)):
        registry = make()
        call(registry)
        results: list[object] = []

        def handle() -> None:
            registry.snapshot()  # noqa: B023
            results.append(registry.execute(KEY, lambda: "answered"))  # noqa: B023

        Cut(at, handle, True).run(lambda: call(registry))  # noqa: B023
        assert results == ["answered"]
        settled(registry)


def test_a_slot_that_a_finalizer_gave_back_goes_to_a_call_that_waits() -> None:
    registry = make(1)
    permit = taken(registry)
    thread = threading.Thread(target=call, args=(registry,), daemon=True)
    thread.start()
    while not registry.snapshot().waiting:
        threading.Event().wait(0.0005)
    registry.drop(permit)
    thread.join(HANGS)
    assert not thread.is_alive()
    with pytest.raises(PermitMisuse):
        registry.settle(permit, OK)
    settled(registry, 1)
