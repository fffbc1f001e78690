"""`map`: functions in threads, the source in the consumer's thread. Nothing here depends on how fast a thread is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import tidegate
from tests.pool.scene import Answered429
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import UnusableAnswer

pytestmark = pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.001, FIRST_PAUSE_SECONDS=0.001)

TOO_LONG = 300.0
"""Real seconds after which a wait for another thread fails; no test is near it."""


@pytest.fixture
def registry() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(telemetry=False))


def pools() -> list[threading.Thread]:
    """The threads of pools and their sources; those of functions end by themselves."""
    return [each for each in threading.enumerate() if each.name in ("tidegate pool", "tidegate source")]


def wait_until(holds: Any) -> None:
    end = time.monotonic() + TOO_LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


class Unworking(Exception):
    status_code = 500


class Held:
    """A function whose first row waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[int] = []

    def __call__(self, row: int) -> int:
        self.begun.append(row)
        if row == 0:
            assert self.go.wait(TOO_LONG)
        return row


@pytest.mark.parametrize("pool_size", [1, 2, 32])
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_rows_come_in_their_order(pool_size: int, count: int, registry: RateLimitRegistry) -> None:
    assert list(tidegate.map(str, range(count), pool_size=pool_size, registry=registry)) == [*map(str, range(count))]
    assert not pools()


def test_unordered_rows_come_as_they_end(registry: RateLimitRegistry) -> None:
    fn, given = Held(), []
    results = tidegate.map(fn, range(10), ordered=False, registry=registry)
    for row in results:
        given.append(row)
        if len(given) == 9:
            fn.go.set()
    assert sorted(given[:9]) == list(range(1, 10))
    assert given[9] == 0


def test_a_head_of_line_row_stops_the_window_and_the_source(registry: RateLimitRegistry) -> None:
    fn, pulled, given = Held(), [], []

    def source() -> Iterator[int]:
        thread = threading.get_ident()
        for row in range(10**9):
            assert threading.get_ident() == thread
            pulled.append(row)
            yield row

    def let_go() -> None:
        wait_until(lambda: len(fn.begun) == 6)
        assert len(pulled) == 6
        fn.go.set()

    helper = threading.Thread(target=let_go)
    helper.start()
    with tidegate.map(fn, source(), pool_size=2, window=6, registry=registry) as results:
        given = [next(results) for _ in range(20)]
    helper.join()
    assert given == list(range(20))
    assert len(pulled) <= 26
    assert not pools()


def test_a_pool_of_one_runs_in_the_callers_thread_and_pulls_nothing_ahead(registry: RateLimitRegistry) -> None:
    log: list[Any] = []

    def fn(row: int) -> int:
        log.append((row, threading.get_ident()))
        return row

    def source() -> Iterator[int]:
        for row in range(3):
            log.append(f"pull {row}")
            yield row

    here, threads = threading.get_ident(), threading.active_count()
    results = tidegate.map(fn, source(), pool_size=1, registry=registry)
    assert log == []
    assert next(results) == 0
    assert log == ["pull 0", (0, here)]
    assert list(results) == [1, 2]
    assert threading.active_count() == threads


def test_rows_wait_for_a_server_that_only_failed_so_far() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_unreached=0.0, telemetry=False))
    key, failures = tidegate.Key("p", "https://p.test"), iter(range(40))

    def ask() -> str:
        for _ in failures:
            raise Unworking
        return "answered"

    rows = tidegate.map(lambda row: registry.execute(key, ask), range(10), attempts=1, registry=registry).rows()
    ends = list(rows)
    # Some fail before the breaker opens: that no server works there is not known yet.
    assert sum(each.error is not None for each in ends) <= 5
    assert sum(each.value == "answered" for each in ends) >= 5


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
@pytest.mark.parametrize("pool_size", [1, 2])
def test_max_wait_ends_a_wait_inside_a_call(pool_size: int) -> None:
    registry = RateLimitRegistry(tidegate.Settings(telemetry=False, max_wait=TOO_LONG))

    def refused() -> None:
        raise Answered429({})

    def fn(row: int) -> None:
        registry.execute("service", refused)

    with pytest.raises(tidegate.CapacityTimeout) as raised:
        list(tidegate.map(fn, [0], pool_size=pool_size, max_wait=0.2, registry=registry))
    assert raised.value.max_wait == 0.2
    assert raised.value.waited < TOO_LONG


@pytest.mark.parametrize("pool_size", [1, 4])
class TestFailures:
    """What functions and sources raise, in a thread of the pool and in the caller's."""

    @pytest.mark.parametrize("raised", [ValueError("own"), StopIteration(1), StopAsyncIteration()])
    def test_an_error_is_raised_in_its_place(
        self, pool_size: int, raised: Exception, registry: RateLimitRegistry
    ) -> None:
        closed = []

        def source() -> Iterator[int]:
            try:
                yield from range(10**9)
            finally:
                closed.append(threading.get_ident())

        def fn(row: int) -> int:
            if row == 3:
                raise raised
            return row

        results, given = tidegate.map(fn, source(), pool_size=pool_size, registry=registry), []
        given.extend(next(results) for _ in range(3))
        with pytest.raises((ValueError, RuntimeError)) as caught:
            next(results)
        error: BaseException | None = caught.value
        while error is not raised:
            assert error is not None
            error = error.__cause__
        assert given == [0, 1, 2]
        assert list(results) == []
        assert closed == [threading.get_ident()]
        assert not pools()

    def test_errors_may_be_values_and_retries_are_counted(self, pool_size: int, registry: RateLimitRegistry) -> None:
        asked: list[int] = []

        def fn(row: int) -> int:
            asked.append(row)
            if row == 1:
                raise ValueError("own")
            if asked.count(row) == 1:
                raise Answered429({}) if row == 2 else UnusableAnswer("none")
            return row

        results = tidegate.map(fn, range(4), pool_size=pool_size, errors="return", registry=registry)
        ends = list(results.rows())
        assert [end.value for end in ends] == [0, None, 2, 3]
        assert [end.verdict.value for end in ends] == ["answered", "permanent", "answered", "answered"]
        assert [(end.attempts, end.capacity_retries) for end in ends] == [(2, 0), (1, 0), (1, 1), (2, 0)]
        failed = list(tidegate.map(fn, range(2), pool_size=pool_size, errors="return", registry=registry))[1]
        assert isinstance(failed, tidegate.Failed)
        assert failed.index == 1

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
    def test_an_interrupt_ends_the_pool(
        self, pool_size: int, interrupt: type[BaseException], registry: RateLimitRegistry
    ) -> None:
        def fn(row: int) -> int:
            raise interrupt

        results = tidegate.map(fn, range(3), pool_size=pool_size, errors="return", registry=registry)
        with pytest.raises(interrupt):
            next(results)
        assert list(results) == []
        assert not pools()

    @pytest.mark.parametrize("error", [LookupError("source"), KeyboardInterrupt()])
    def test_the_sources_error_comes_after_its_rows(
        self, pool_size: int, error: BaseException, registry: RateLimitRegistry
    ) -> None:
        def source() -> Iterator[int]:
            yield 1
            yield 2
            raise error

        results = tidegate.map(str, source(), pool_size=pool_size, registry=registry)
        given: list[str] = []
        with pytest.raises(type(error)):
            given.extend(results)
        # A pool of several pulls rows ahead, and an interrupt is raised at once.
        if isinstance(error, Exception) or pool_size == 1:
            assert given == ["1", "2"]
        assert list(results) == []
        assert not pools()


@pytest.mark.parametrize("name", ["tidegate pool", "tidegate source"])
def test_nothing_is_left_of_a_pool_that_gets_no_thread(
    name: str, monkeypatch: pytest.MonkeyPatch, registry: RateLimitRegistry
) -> None:
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    results = tidegate.map(str, range(9), deadline=TOO_LONG, registry=registry)
    with pytest.raises(RuntimeError, match="new thread"):
        next(results)
    gc.collect()
    wait_until(lambda: not pools())
    assert list(results) == []


@pytest.mark.parametrize("way", ["break", "close", "with", "error", "rows"])
def test_nothing_is_left_of_a_pool_that_is_given_up(way: str, registry: RateLimitRegistry) -> None:
    closed, begun, go = [], [], threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.append(True)

    def fn(row: int) -> int:
        begun.append(row)
        if row >= 3:
            go.wait(TOO_LONG)
        if way == "error" and row == 2:
            raise ValueError("own")
        return row

    def consume() -> None:
        results = tidegate.map(fn, source(), pool_size=8, registry=registry)
        if way == "with":
            with results:
                next(results)
        elif way == "close":
            next(results)
            results.close()
            results.close()
        elif way == "error":
            with pytest.raises(ValueError, match="own"):
                list(results)
        elif way == "rows":
            for end in results.rows():
                if end.index == 1:
                    break
        else:
            for row in results:
                if row == 2:
                    break

    consume()
    gc.collect()
    wait_until(lambda: not pools())
    assert closed == [True]
    go.set()
    snapshot = registry.snapshot()
    assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
    # Three rows end at once, and each of eight threads may have taken another one before.
    assert len(begun) <= 3 + 8


def test_waits_inside_calls_end_with_the_pool(registry: RateLimitRegistry) -> None:
    ended = threading.Event()

    def refused() -> None:
        raise Answered429({"retry-after": "1000"})

    def fn(row: int) -> None:
        try:
            registry.execute("service", refused)
        finally:
            ended.set()

    results = tidegate.map(fn, range(5), registry=registry)
    consumer = threading.Thread(target=lambda: list(results))
    consumer.start()
    wait_until(lambda: registry.snapshot().waiting)
    results.close()
    assert ended.wait(TOO_LONG)
    consumer.join(TOO_LONG)
    wait_until(lambda: registry.snapshot().waiting == 0)
    assert not pools()


@pytest.mark.parametrize("pool_size", [1, 4])
def test_a_deadline_ends_a_pool_whose_source_blocks(pool_size: int, registry: RateLimitRegistry) -> None:
    blocked, threads = threading.Event(), set()

    def source() -> Iterator[int]:
        for row in range(3):
            threads.add(threading.get_ident())
            yield row
        blocked.wait(TOO_LONG)

    given = []
    results = tidegate.map(str, source(), pool_size=pool_size, deadline=0.5, errors="return", registry=registry)
    with pytest.raises(tidegate.DeadlineExceeded, match="rows after the last one"):
        given.extend(results)
    assert not blocked.is_set()
    blocked.set()
    # On a busy machine the time may be over before the first row.
    assert len(threads) <= 1
    wait_until(lambda: not pools())


def test_a_deadline_ends_open_rows_in_their_places(registry: RateLimitRegistry) -> None:
    go = threading.Event()

    def fn(row: int) -> int:
        if row:
            go.wait(TOO_LONG)
        return row

    results = tidegate.map(fn, range(3), deadline=0.5, errors="return", registry=registry)
    first, *late = results
    go.set()
    # On a busy machine the first row may be late as well.
    assert first == 0 or first.index == 0
    assert [(each.index, type(each.error).__mro__[1]) for each in late] == [
        (1, tidegate.DeadlineExceeded),
        (2, tidegate.DeadlineExceeded),
    ]


def test_pools_in_pools_wait_for_no_thread_of_the_outer_one(registry: RateLimitRegistry) -> None:
    def inner(row: int) -> int:
        return registry.execute("service", lambda: row)

    def middle(row: int) -> int:
        return sum(tidegate.map(inner, range(row), pool_size=2, registry=registry))

    def outer(row: int) -> int:
        return sum(tidegate.map(middle, range(row), pool_size=2, registry=registry))

    expected = [sum(sum(range(each)) for each in range(row)) for row in range(6)]
    assert list(tidegate.map(outer, range(6), pool_size=2, registry=registry)) == expected


def test_one_pool_may_be_the_source_of_another(registry: RateLimitRegistry) -> None:
    first = tidegate.map(lambda row: row + 1, range(10**9), registry=registry)
    with tidegate.map(lambda row: row * 10, first, registry=registry) as results:
        assert [next(results) for _ in range(5)] == [10, 20, 30, 40, 50]
    assert not pools()


@pytest.mark.parametrize("pool_size", [1, 4])
def test_each_row_has_a_copy_of_the_consumers_context(pool_size: int, registry: RateLimitRegistry) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def fn(row: int) -> str:
        before = variable.get()
        variable.set(f"row {row}")
        return before

    variable.set("consumer")
    assert list(tidegate.map(fn, range(5), pool_size=pool_size, registry=registry)) == ["consumer"] * 5
    assert variable.get() == "consumer"


def test_only_one_thread_reads_a_pool(registry: RateLimitRegistry) -> None:
    fn = Held()
    results = tidegate.map(fn, [0], registry=registry)
    reader = threading.Thread(target=lambda: list(results))
    reader.start()
    wait_until(lambda: fn.begun)
    with pytest.raises(RuntimeError, match="another thread"):
        next(results)
    fn.go.set()
    reader.join(TOO_LONG)


PROGRAMS = {
    "a fork": """
import os, tidegate
results = tidegate.map(str, range(9))
next(results)
child = os.fork()
if not child:
    try: next(results)
    except RuntimeError as error: os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert list(results) == [*map(str, range(1, 9))]
print("done")
""",
    "an end with an open pool": """
import tidegate
results = tidegate.map(lambda row: __import__("time").sleep(1000 * (row > 3)), range(99))
next(results)
print("done")
""",
    "an end with an open async pool": """
import asyncio, tidegate
async def fn(row): await asyncio.sleep(1000 * (row > 3))
async def main():
    global results
    results = tidegate.amap(fn, range(99))
    await anext(results)
asyncio.run(main())
print("done")
""",
    "an interrupt of the consumer": """
import os, threading, time, tidegate
def fn(row):
    if row == 0: threading.Timer(0.2, os.kill, (os.getpid(), 2)).start()
    time.sleep(1000)
try: list(tidegate.map(fn, range(99)))
except KeyboardInterrupt: print("done")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs use POSIX signals and forks")
def test_a_program_ends_without_a_warning_after(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAMS[name]],
        capture_output=True,
        text=True,
        timeout=TOO_LONG,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
