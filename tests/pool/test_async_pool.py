"""`amap` in virtual time: order, bounds, failures, capacity, its ends."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import tidegate
from tests.chaos.virtual_time import in_virtual_time
from tests.pool.scene import Answered429, VirtualProvider, per_minute, registry_of
from tidegate.errors import NotAdmitted
from tidegate.experiments import UnusableAnswer
from tidegate.testing import Distribution, Scenario


def now() -> float:
    return asyncio.get_running_loop().time()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def collect(results: Any, given: list[Any]) -> None:
    async for value in results:
        given.append(value)


def others() -> set[Any]:
    return asyncio.all_tasks() - {asyncio.current_task()}


class Counting:
    """A source that counts its rows, and knows whether it was closed."""

    def __init__(self, count: int = 1_000_000) -> None:
        self.count = count
        self.given = 0
        self.closed = False

    def __call__(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                self.given += 1
                yield number
        finally:
            self.closed = True

    async def stream(self) -> AsyncIterator[int]:
        try:
            for number in range(self.count):
                self.given += 1
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed = True


@in_virtual_time
async def test_rows_come_in_their_order_whatever_ends_first() -> None:
    ends: list[int] = []
    delays = dict(zip((2, 0, 4, 1, 3), range(1, 6), strict=True))

    async def fn(row: int) -> int:
        await asyncio.sleep(delays[row])
        ends.append(row)
        return row

    registry = registry_of()
    assert [row async for row in tidegate.amap(fn, range(5), registry=registry)] == [0, 1, 2, 3, 4]
    ends.clear()
    given = [row async for row in tidegate.amap(fn, range(5), ordered=False, registry=registry)]
    assert given == ends


@pytest.mark.parametrize("pool_size", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("is_stream", [False, True])
@in_virtual_time
async def test_a_pool_may_be_larger_than_its_source(pool_size: int, count: int, is_stream: bool) -> None:
    source = Counting(count)
    rows = source.stream() if is_stream else source()

    async def fn(row: int) -> None:
        await asyncio.sleep(0.1)

    given = [row async for row in tidegate.amap(fn, rows, pool_size=pool_size, registry=registry_of())]
    assert given == [None] * count
    assert source.closed
    assert not others()


@pytest.mark.parametrize("is_stream", [False, True])
@in_virtual_time
async def test_a_row_that_blocks_the_window_stops_the_source_and_never_the_memory(is_stream: bool) -> None:
    source, held, started = Counting(), asyncio.Event(), []

    async def fn(row: int) -> int:
        started.append(row)
        if row == 0:
            await held.wait()
        await asyncio.sleep(0)
        return row

    rows = source.stream() if is_stream else source()
    results = tidegate.amap(fn, rows, pool_size=3, window=7, registry=registry_of())
    assert source.given == 0
    first = asyncio.ensure_future(anext(results))
    await asyncio.sleep(10)
    assert started == list(range(7))
    assert source.given <= 8
    held.set()
    assert [await first, await anext(results)] == [0, 1]
    await asyncio.sleep(10)
    assert source.given <= 10
    await results.aclose()
    assert source.closed
    assert not others()


@pytest.mark.parametrize("is_stream", [False, True])
@in_virtual_time
async def test_source_is_read_one_row_ahead_of_the_slots_and_not_to_the_window(is_stream: bool) -> None:
    source, held, started = Counting(), asyncio.Event(), []

    async def fn(row: int) -> int:
        started.append(row)
        await held.wait()
        return row

    rows = source.stream() if is_stream else source()
    results = tidegate.amap(fn, rows, pool_size=3, window=100, registry=registry_of())
    first = asyncio.ensure_future(anext(results))
    await asyncio.sleep(10)
    assert started == [0, 1, 2]
    assert source.given == 4
    held.set()
    assert await first == 0
    await results.aclose()


@in_virtual_time
async def test_no_more_than_the_pool_are_under_way() -> None:
    inside, most = 0, 0

    async def fn(row: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.05 + row % 7 / 10)
        inside -= 1
        return row

    began = now()
    assert [row async for row in tidegate.amap(fn, range(100), pool_size=10, registry=registry_of())] == [*range(100)]
    assert most == 10
    assert now() - began <= 1.1 * (sum(0.05 + row % 7 / 10 for row in range(100)) / 10 + 0.7)


@in_virtual_time
async def test_a_fifth_of_429_costs_no_row_and_no_attempt() -> None:
    registry, asked = registry_of(), Counter[int]()

    async def fn(row: int) -> int:
        asked[row] += 1
        await asyncio.sleep(0.05)
        if row % 5 == 0 and asked[row] == 1:
            raise Answered429({"retry-after": "1"})
        return row

    results = tidegate.amap(fn, range(100), pool_size=10, registry=registry)
    ends = [end async for end in results.rows()]
    assert [end.value for end in ends] == list(range(100))
    assert {end.attempts for end in ends} == {1}
    assert [end.capacity_retries for end in ends] == [int(row % 5 == 0) for row in range(100)]


@in_virtual_time
async def test_rows_of_a_throttled_key_hold_up_no_row_of_another_key() -> None:
    registry = registry_of()
    throttled = VirtualProvider(per_minute(60_000, 0.1), "throttled", registry)
    healthy = VirtualProvider(per_minute(60_000, 0.1), "healthy", registry)
    opens_at = now() + 3.0

    async def refusing() -> dict[str, str]:
        if now() < opens_at:
            raise Answered429({"retry-after": f"{opens_at - now():.3f}"})
        await asyncio.sleep(0.1)
        return {}

    async def fn(row: int) -> int:
        if row < 10:
            await registry.aexecute(throttled.key, refusing)
        else:
            await healthy.ask(row)
        return row

    ends = [end async for end in tidegate.amap(fn, range(40), pool_size=10, registry=registry).rows()]
    assert [end.value for end in ends] == list(range(40))
    assert max(end.completed_at for end in ends[10:]) < opens_at - 1.0
    assert min(end.completed_at for end in ends[:10]) >= opens_at


class TestFailures:
    """What a row's function raises."""

    @pytest.mark.parametrize("raised", [ValueError("own"), StopIteration(1), StopAsyncIteration(), GeneratorExit()])
    @pytest.mark.parametrize("ordered", [True, False])
    @in_virtual_time
    async def test_an_error_is_raised_in_its_place_and_ends_the_pool(
        self, raised: BaseException, ordered: bool
    ) -> None:
        cancelled = []

        async def fn(row: int) -> int:
            if row == 3:
                raise raised
            try:
                await asyncio.sleep(0.1 if row < 3 else 100)
            except asyncio.CancelledError:
                cancelled.append(row)
                raise
            return row

        source, given = Counting(), []
        results = tidegate.amap(fn, source(), pool_size=8, ordered=ordered, registry=registry_of())
        with pytest.raises((ValueError, RuntimeError)) as caught:
            await collect(results, given)
        assert given == ([0, 1, 2] if ordered else [0])
        assert raised in (caught.value, caught.value.__cause__)
        assert [row async for row in results] == []
        await settled()
        assert 4 in cancelled
        assert source.closed
        assert not others()

    @in_virtual_time
    async def test_an_error_can_be_a_value(self) -> None:
        error = ValueError("own")

        async def fn(row: int) -> int:
            if row % 2:
                raise error
            return row

        results = tidegate.amap(fn, range(4), errors="return", registry=registry_of())
        failed = tidegate.Failed
        assert [row async for row in results] == [0, failed(1, error), 2, failed(3, error)]

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
    @in_virtual_time
    async def test_an_interrupt_ends_the_pool_at_once(self, interrupt: type[BaseException]) -> None:
        async def fn(row: int) -> int:
            if row == 3:
                raise interrupt
            await asyncio.sleep(1000)
            return row

        began = now()
        results = tidegate.amap(fn, range(10), errors="return", registry=registry_of())
        with pytest.raises(interrupt):
            await anext(results)
        assert now() - began < 1
        await settled()
        assert not others()

    @in_virtual_time
    async def test_a_failure_that_may_pass_is_tried_as_often_as_asked(self) -> None:
        asked = Counter[int]()

        async def fn(row: int) -> int:
            asked[row] += 1
            if asked[row] <= row:
                raise UnusableAnswer("no score")
            return row

        ends = [
            end async for end in tidegate.amap(fn, range(5), attempts=4, errors="return", registry=registry_of()).rows()
        ]
        assert [end.attempts for end in ends] == [1, 2, 3, 4, 4]
        assert [end.verdict.value for end in ends] == ["answered"] * 4 + ["unusable"]

    @pytest.mark.constants(TRANSIENT_ATTEMPTS=2)
    @pytest.mark.parametrize(
        ("package", "attempts", "expected"), [("an_sdk", None, 2), ("an_sdk", 2, 4), ("httpx", None, 4)]
    )
    @in_virtual_time
    async def test_what_an_sdk_has_repeated_is_repeated_only_where_attempts_are_given(
        self, package: str, attempts: int | None, expected: int
    ) -> None:
        own_error = type("OwnError", (Exception,), {"status_code": 500, "__module__": package})

        registry, asked = registry_of(), 0

        async def attempt() -> None:
            nonlocal asked
            asked += 1
            raise own_error

        async def fn(row: int) -> None:
            await registry.aexecute("service", attempt)

        results = tidegate.amap(fn, [1], attempts=attempts, registry=registry)
        with pytest.raises(own_error):
            await anext(results)
        assert asked == expected

    @in_virtual_time
    async def test_a_call_that_takes_too_long_is_cancelled_and_repeated(self) -> None:
        asked = 0

        async def fn(row: int) -> int:
            nonlocal asked
            asked += 1
            await asyncio.sleep(100 if asked == 1 else 0.1)
            return row

        ends = [end async for end in tidegate.amap(fn, [7], timeout=5.0, registry=registry_of()).rows()]
        assert [(end.value, end.attempts) for end in ends] == [(7, 2)]
        assert ends[0].seconds == pytest.approx(5.1)
        with pytest.raises(TimeoutError, match="row 0 not answered"):
            await anext(tidegate.amap(lambda row: asyncio.sleep(9), [7], timeout=1, attempts=1, registry=registry_of()))

    @in_virtual_time
    async def test_the_sources_error_comes_after_its_rows(self) -> None:
        def rows() -> Iterator[int]:
            yield 1
            yield 2
            raise LookupError("source")

        async def stream() -> AsyncIterator[int]:
            for row in rows():
                yield row

        class Ends:
            def __iter__(self) -> Any:
                return self

            def __next__(self) -> int:
                raise StopAsyncIteration

        async def fn(row: int) -> int:
            await asyncio.sleep(1)
            return row

        for source in (rows(), stream()):
            given = []
            with pytest.raises(LookupError):
                await collect(tidegate.amap(fn, source, registry=registry_of()), given)
            assert given == [1, 2]
        with pytest.raises(RuntimeError, match="source failed"):
            await anext(tidegate.amap(fn, Ends(), registry=registry_of()))
        assert not others()


class TestCapacity:
    """What a provider lacks."""

    @in_virtual_time
    async def test_a_row_ends_after_max_wait_of_active_waiting(self) -> None:
        async def fn(row: int) -> int:
            raise Answered429({})

        began = now()
        results = tidegate.amap(fn, range(3), max_wait=30.0, errors="return", registry=registry_of())
        ends = [end async for end in results.rows()]
        assert all(isinstance(end.error, tidegate.CapacityTimeout) for end in ends)
        assert [end.attempts for end in ends] == [0, 0, 0]
        assert isinstance(ends[0].error.__cause__, Answered429)
        assert 30.0 <= now() - began <= 100.0

    @in_virtual_time
    async def test_a_governed_row_ends_so_too_and_names_its_key(self) -> None:
        registry = registry_of()

        async def attempt() -> None:
            raise Answered429({})

        async def fn(row: int) -> None:
            await registry.aexecute("service", attempt)

        began = now()
        results = tidegate.amap(fn, range(3), max_wait=30.0, errors="return", registry=registry)
        ends = [end async for end in results.rows()]
        assert [type(end.error) for end in ends] == [tidegate.CapacityTimeout] * 3
        error = ends[0].error
        assert isinstance(error, tidegate.CapacityTimeout)
        assert (error.key.base_url, error.max_wait, error.status) == ("service", 30.0, 429)
        assert 29.0 <= now() - began <= 170.0
        snapshot = registry.snapshot()
        assert (snapshot.in_flight, snapshot.waiting) == (0, 0)

    @pytest.mark.parametrize("key", [None, "service"])
    @in_virtual_time
    async def test_the_time_until_a_stated_reset_does_not_count(self, key: str | None) -> None:
        registry, began = registry_of(), now()
        opens_at = began + 200.0

        async def attempt() -> None:
            # The provider names one reset, and at that time another one.
            stated = began + 100.0 if now() < began + 100.0 else opens_at
            if now() < stated:
                raise Answered429({"retry-after": str(stated - now())})

        async def fn(row: int) -> int:
            await registry.aexecute("service", attempt)
            return row

        results = tidegate.amap(fn, range(9), max_wait=5.0, key=key, registry=registry)
        assert [row async for row in results] == list(range(9))
        assert now() >= opens_at

    @in_virtual_time
    async def test_the_first_refusal_without_a_key_pauses_the_pool_for_its_time(self) -> None:
        began, times = now(), []

        async def fn(row: int) -> int:
            times.append(now() - began)
            if len(times) == 1:
                raise Answered429({"retry-after": "7"})
            return row

        assert [row async for row in tidegate.amap(fn, range(3), registry=registry_of())] == [0, 1, 2]
        assert [at >= 7.0 for at in times] == [False, True, True, True]

    @in_virtual_time
    async def test_what_never_reached_a_server_and_a_plain_503_spend_no_attempt(self) -> None:
        class Unavailable(Exception):
            status_code = 503

        asked = Counter[int]()

        async def fn(row: int) -> int:
            asked[row] += 1
            if asked[row] < 6:
                raise Unavailable if row % 2 else ConnectionRefusedError
            return row

        ends = [end async for end in tidegate.amap(fn, range(8), registry=registry_of()).rows()]
        assert [(end.value, end.attempts) for end in ends] == [(row, 1) for row in range(8)]
        assert all(end.capacity_retries == 5 for end in ends)

    @in_virtual_time
    async def test_rows_wait_for_a_server_that_only_failed_so_far(self) -> None:
        class BadGateway(Exception):
            status_code = 502

        registry, began = registry_of(), now()

        async def ask() -> str:
            await asyncio.sleep(0.1)
            if now() < began + 120.0:
                raise BadGateway
            return "answered"

        key = tidegate.Key("p", "https://p.test")
        rows = tidegate.amap(lambda row: registry.aexecute(key, ask), range(100), pool_size=16, registry=registry)
        assert [row async for row in rows] == ["answered"] * 100

    @in_virtual_time
    async def test_a_key_admits_functions_that_make_no_governed_call(self) -> None:
        registry, began, times = registry_of(), now(), []

        async def fn(row: int) -> int:
            times.append(now())
            await asyncio.sleep(0.1)
            if row == 0 and len(times) == 1:
                raise Answered429({"retry-after": "7"})
            return row

        rows = [row async for row in tidegate.amap(fn, range(20), key="service", registry=registry)]
        assert rows == list(range(20))
        [(key, state)] = registry.snapshot().keys.items()
        assert key.base_url == "service"
        assert (state.in_flight, state.waiting) == (0, 0)
        assert [at for at in times if began + 0.2 <= at < began + 7.0] == []


class TestEnds:
    """The end of a pool before that of its source."""

    @pytest.mark.parametrize("way", ["break", "aclose", "with", "cancel"])
    @pytest.mark.parametrize("is_stream", [False, True])
    @in_virtual_time
    async def test_nothing_is_left_of_a_pool_that_is_given_up(self, way: str, is_stream: bool) -> None:
        provider = VirtualProvider(per_minute(60, 0.5, initial=5))
        source = Counting()

        async def consume() -> None:
            rows = source.stream() if is_stream else source()
            results = tidegate.amap(provider.ask, rows, pool_size=8, registry=provider.registry)
            if way == "with":
                async with results:
                    assert await anext(results) == 0
                return
            count = 0
            async for _ in results:
                count += 1
                if count == 3 and way != "cancel":
                    break
            if way == "aclose":
                await results.aclose()

        task = asyncio.ensure_future(consume())
        if way == "cancel":
            await asyncio.sleep(20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        del task
        gc.collect()
        await settled()
        asked = provider.asked
        assert not others()
        assert source.closed
        snapshot = provider.registry.snapshot()
        assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
        await asyncio.sleep(100)
        assert provider.asked == asked

    @pytest.mark.parametrize("errors", ["raise", "return"])
    @in_virtual_time
    async def test_a_deadline_ends_the_open_rows_even_if_the_source_blocks(self, errors: Any) -> None:
        async def stream() -> AsyncIterator[int]:
            yield 0
            yield 1
            await asyncio.Event().wait()

        async def fn(row: int) -> int:
            await asyncio.sleep(1 if row == 0 else 1000)
            return row

        began, given = now(), []
        results = tidegate.amap(fn, stream(), pool_size=2, deadline=5.0, errors=errors, registry=registry_of())
        with pytest.raises(tidegate.DeadlineExceeded):
            await collect(results, given)
        assert given[0] == 0
        assert all(isinstance(each.error, tidegate.DeadlineExceeded) for each in given[1:])
        assert (len(given) == 1) is (errors == "raise")
        assert now() - began == pytest.approx(5.0, abs=0.01)
        await settled()
        assert not others()

    @in_virtual_time
    async def test_a_reset_beyond_the_deadline_ends_a_row_at_once(self) -> None:
        registry = registry_of()

        async def attempt() -> None:
            raise Answered429({"retry-after": "100"})

        async def fn(row: int) -> None:
            await registry.aexecute("service", attempt)

        async def stream() -> AsyncIterator[int]:
            yield 0

        began = now()
        results = tidegate.amap(fn, stream(), deadline=50.0, registry=registry)
        with pytest.raises(NotAdmitted):
            await anext(results)
        assert now() - began < 50.0

    @in_virtual_time
    async def test_a_pool_in_a_pool_needs_no_permit_of_the_outer_one(self) -> None:
        registry = registry_of(max_concurrency=1)
        provider = VirtualProvider(Scenario(latency=Distribution.constant(0.1)), registry=registry)

        async def outer(row: int) -> int:
            if row % 2 == 0:
                await provider.ask(row)
            return sum([each async for each in tidegate.amap(provider.ask, range(row), registry=registry)])

        given = [row async for row in tidegate.amap(outer, range(8), registry=registry)]
        assert given == [sum(range(row)) for row in range(8)]

    @in_virtual_time
    async def test_each_row_has_a_copy_of_the_consumers_context(self) -> None:
        variable: ContextVar[str] = ContextVar("variable", default="unset")

        async def fn(row: int) -> str:
            before = variable.get()
            variable.set(f"row {row}")
            await asyncio.sleep(0.1)
            return before

        def source() -> Iterator[int]:
            for row in range(3):
                assert variable.get() == "consumer"
                yield row

        variable.set("consumer")
        for pool_size in (1, 4):
            rows = tidegate.amap(fn, source(), pool_size=pool_size, registry=registry_of())
            assert [row async for row in rows] == ["consumer"] * 3
        assert variable.get() == "consumer"

    @in_virtual_time
    async def test_two_tasks_cannot_read_one_pool(self) -> None:
        results = tidegate.amap(asyncio.sleep, [1.0, 1.0], registry=registry_of())
        first = asyncio.ensure_future(anext(results))
        await settled()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(results)
        assert await first is None
        assert [row async for row in results] == [None]

    @in_virtual_time
    async def test_the_numbers_of_a_row_add_up(self) -> None:
        provider = VirtualProvider(per_minute(600, 0.2, initial=0))
        ends = [end async for end in tidegate.amap(provider.ask, range(50), registry=provider.registry).rows()]
        for index, end in enumerate(ends):
            assert end.index == end.submit_index == index
            assert end.waited + end.seconds == pytest.approx(end.completed_at - end.submitted_at)
            assert end.seconds == pytest.approx(0.2)
            assert end.buffer_wait >= 0
        assert sorted(end.complete_index for end in ends) == list(range(50))
