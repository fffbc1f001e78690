"""Synchronous calls on the thread of a running event loop, and loops that are blocked by something else."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
import trio.testing

import tidegate
from tidegate.admission import callers
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Key, Kind, Outcome

pytestmark = pytest.mark.constants(UNTAKEN_SECONDS=0.25)

KEY = tidegate.Key("p", "https://p.test", "abc", "m")
OK = Outcome(Kind.OK)
PATIENT = 60.0
"""Seconds after which a call that hangs gives up: far beyond what any of these takes."""

PAUSE = 2.0
"""Seconds of a pause in which a busy machine has the time to let other calls join the queue."""


def make(slots: int = 1, **settings: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(max_concurrency=slots, **settings))


def taken(registry: RateLimitRegistry, key: Key = KEY) -> Permit:
    permit = registry.try_admit(key)
    assert isinstance(permit, Permit)
    return permit


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


async def answer(value: object = None) -> object:
    return value


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


def run_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return trio.run(main)


@pytest.fixture(params=[run_asyncio, run_trio], ids=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "_warned", False)


class Tasks:
    """Tasks of the running event loop, asyncio's or trio's, and a way to let them run."""

    def __init__(self) -> None:
        self.results: list[object] = []
        self._nursery: trio.Nursery | None = None
        self._manager: Any = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Tasks:
        if trio.lowlevel.in_trio_run():
            self._manager = trio.open_nursery()
            self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self._manager is not None:
            await self._manager.__aexit__(*exc)
        else:
            await asyncio.gather(*self._tasks)

    def start(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async def run() -> None:
            self.results.append(await call())

        if self._nursery is not None:
            self._nursery.start_soon(run)
        else:
            self._tasks.append(asyncio.ensure_future(run()))

    async def governed(self) -> None:
        if self._nursery is not None:
            await trio.testing.wait_all_tasks_blocked()
        else:
            for _ in range(5):
                await asyncio.sleep(0)


def called_on_full_loop(run: Callable[..., Any], call: Callable[[RateLimitRegistry], object]) -> object:
    """Return what `call` returns on a loop whose task holds the only slot, while three more of its tasks wait."""
    registry = make()

    async def main() -> object:
        answered = asyncio.Event() if run is run_asyncio else trio.Event()
        async with Tasks() as tasks:

            async def slow() -> None:
                await answered.wait()

            tasks.start(lambda: registry.aexecute(KEY, slow))
            await tasks.governed()
            for number in range(3):
                tasks.start(lambda number=number: registry.aexecute(KEY, lambda: answer(number)))
                await tasks.governed()
            assert registry.snapshot().waiting == 3
            result = call(registry)
            assert registry.snapshot().waiting == 3
            answered.set()
        assert tasks.results == [None, 0, 1, 2]
        return result

    result = run(main)
    assert registry.snapshot().in_flight == 0
    return result


def test_sync_call_on_loop_ignores_attempts_that_the_loop_cannot_end(run: Callable[..., Any]) -> None:
    """The only slot is a task's; its answer cannot be read while the loop's thread is blocked."""
    assert called_on_full_loop(run, lambda registry: registry.execute(KEY, lambda: "sync", max_wait=PATIENT)) == "sync"


def test_sync_call_on_loop_waits_for_a_pause_and_goes_before_its_tasks(run: Callable[..., Any]) -> None:
    registry = make(2)
    order: list[str] = []

    async def main() -> None:
        async with Tasks() as tasks:
            registry.settle(taken(registry), Outcome(Kind.RATE_LIMIT, Cause.RATE, PAUSE, status=429))

            async def task(name: str) -> None:
                order.append(name)

            for name in "abc":
                tasks.start(lambda name=name: registry.aexecute(KEY, lambda: task(name)))
                await tasks.governed()
            assert registry.snapshot().waiting == 3
            registry.execute(KEY, lambda: order.append("sync"), max_wait=PATIENT)

    run(main)
    assert order == ["sync", "a", "b", "c"]
    assert (registry.snapshot().in_flight, registry.snapshot().waiting) == (0, 0)


def test_sync_call_on_loop_takes_back_a_permit_its_task_has_not_taken(run: Callable[..., Any]) -> None:
    registry = make()
    order: list[str] = []

    async def main() -> None:
        async with Tasks() as tasks:
            permit = taken(registry)

            async def task() -> None:
                order.append("task")

            tasks.start(lambda: registry.aexecute(KEY, task))
            await tasks.governed()
            registry.settle(permit, OK)
            assert (registry.snapshot().waiting, registry.snapshot().in_flight) == (0, 1)
            registry.execute(KEY, lambda: order.append("sync"), max_wait=PATIENT)

    run(main)
    assert order == ["sync", "task"]
    assert (registry.snapshot().in_flight, registry.snapshot().attempts) == (0, 3)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
def test_sync_calls_on_loop_in_a_row_leave_every_task_answered(run: Callable[..., Any]) -> None:
    """An evaluator per row, as langfuse and semantic-kernel call it: on the loop, beside the other rows' tasks."""
    registry = make(2)

    async def main() -> list[object]:
        async with Tasks() as tasks:

            async def row(number: int) -> object:
                said = await registry.aexecute(KEY, lambda: answer(number))
                return registry.execute(KEY, lambda: ("judged", said), max_wait=PATIENT)

            for number in range(30):
                tasks.start(lambda number=number: row(number))
        return tasks.results

    assert sorted(run(main)) == [("judged", number) for number in range(30)]


@pytest.fixture
def blocked() -> Iterator[Callable[[RateLimitRegistry, int], list[object]]]:
    """Blocks a loop of another thread, as `time.sleep` does, while so many calls of it stand in the queue."""
    release, ended = threading.Event(), []

    def block(registry: RateLimitRegistry, waiting: int) -> list[object]:
        standing, results = threading.Event(), []

        async def main() -> None:
            tasks = [asyncio.ensure_future(registry.aexecute(KEY, lambda: answer("late"))) for _ in range(waiting)]
            for _ in range(5):
                await asyncio.sleep(0)
            standing.set()
            release.wait()
            results.extend(await asyncio.gather(*tasks))

        ended.append((in_thread(lambda: asyncio.run(main())), results, waiting))
        standing.wait()
        return results

    yield block
    release.set()
    for thread, results, waiting in ended:
        thread.join(PATIENT)
        assert results == ["late"] * waiting


def test_loop_blocked_by_other_code_holds_up_no_other_loop(
    blocked: Callable[..., list[object]], run: Callable[..., Any]
) -> None:
    registry = make(2)
    registry.settle(taken(registry), Outcome(Kind.RATE_LIMIT, Cause.RATE, 0.1, status=429))
    late = blocked(registry, 3)

    async def main() -> list[object]:
        async with Tasks() as tasks:
            for number in range(3):
                tasks.start(lambda number=number: registry.aexecute(KEY, lambda: answer(number), max_wait=PATIENT))
        return sorted(tasks.results)

    assert run(main) == [0, 1, 2]
    assert late == []


def test_loop_blocked_with_a_permit_gives_it_to_another_thread(blocked: Callable[..., list[object]]) -> None:
    registry = make()
    permit = taken(registry)
    late = blocked(registry, 2)
    results: list[object] = []
    thread = in_thread(lambda: results.append(registry.execute(KEY, lambda: "thread", max_wait=PATIENT)))
    while registry.snapshot().waiting != 3:
        threading.Event().wait(0.001)
    registry.settle(permit, OK)
    thread.join(PATIENT)
    assert results == ["thread"]
    assert late == []


def test_deadline_behind_a_blocked_loop_is_met(blocked: Callable[..., list[object]]) -> None:
    registry = make()
    permit = taken(registry)
    blocked(registry, 2)

    async def main() -> None:
        with pytest.raises(tidegate.DeadlineExceeded):
            await registry.aexecute(KEY, answer, max_wait=0.05)

    asyncio.run(main())
    registry.settle(permit, OK)


def test_closed_loop_with_calls_in_the_queue_holds_up_nobody() -> None:
    registry = make()
    permit = taken(registry)
    loop = asyncio.new_event_loop()
    task = loop.create_task(registry.aexecute(KEY, answer))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert registry.snapshot().waiting == 1
    registry.settle(permit, OK)
    assert registry.execute(KEY, lambda: 1, max_wait=PATIENT) == 1
    loop.run_until_complete(task)
    loop.close()
    assert registry.snapshot().in_flight == 0


def test_loops_closed_over_calls_in_flight_hold_up_nobody() -> None:
    registry = make(2)
    left: list[asyncio.Task[object]] = []
    for _ in range(2):
        loop = asyncio.new_event_loop()
        never = loop.create_future()

        async def wait(never: asyncio.Future[object] = never) -> object:
            return await never

        left += [loop.create_task(registry.aexecute(KEY, wait)) for _ in range(4)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert registry.snapshot().in_flight == 2
    assert registry.execute(KEY, lambda: "thread", max_wait=PATIENT) == "thread"
    assert asyncio.run(registry.aexecute(KEY, lambda: answer("task"), max_wait=PATIENT)) == "task"
    assert (registry.snapshot().in_flight, registry.snapshot().waiting) == (0, 0)
    for each in left:
        each._log_destroy_pending = False  # type: ignore[attr-defined]


class ReentrantLoop(asyncio.SelectorEventLoop):
    """A loop whose callbacks may run it again, as nest_asyncio patches them to."""

    def run_nested(self, work: Coroutine[Any, Any, Any]) -> Any:
        outer = asyncio.current_task(self)
        asyncio._leave_task(self, outer)  # type: ignore[arg-type]
        try:
            future = self.create_task(work)
            while not future.done():
                self._run_once()  # type: ignore[attr-defined]
            return future.result()
        finally:
            asyncio._enter_task(self, outer)  # type: ignore[arg-type]


def test_reentered_loop_runs_its_calls_and_its_sync_calls() -> None:
    registry = make(2)

    async def main() -> None:
        registry.settle(taken(registry), Outcome(Kind.RATE_LIMIT, Cause.RATE, 0.05, status=429))
        tasks = [asyncio.ensure_future(registry.aexecute(KEY, lambda n=n: answer(n))) for n in range(3)]
        await asyncio.sleep(0)

        async def inner() -> object:
            said = await registry.aexecute(KEY, lambda: answer("inner"), max_wait=PATIENT)
            return said, registry.execute(KEY, lambda: "sync", max_wait=PATIENT)

        assert loop.run_nested(inner()) == ("inner", "sync")
        assert await asyncio.gather(*tasks) == [0, 1, 2]

    loop = ReentrantLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert (registry.snapshot().in_flight, registry.snapshot().waiting) == (0, 0)


def test_loop_that_runs_inside_a_blocked_loop_passes_it() -> None:
    """Some frameworks run a second loop on the thread of the first, which stands still meanwhile."""
    registry = make(2)

    async def outer() -> list[object]:
        registry.settle(taken(registry), Outcome(Kind.RATE_LIMIT, Cause.RATE, 0.05, status=429))
        tasks = [asyncio.ensure_future(registry.aexecute(KEY, lambda: answer("outer"))) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        running, current = asyncio.get_running_loop(), asyncio.current_task()
        asyncio._leave_task(running, current)  # type: ignore[arg-type]
        asyncio._set_running_loop(None)
        inner = asyncio.new_event_loop()
        try:
            said = inner.run_until_complete(registry.aexecute(KEY, lambda: answer("inner"), max_wait=PATIENT))
        finally:
            inner.close()
            asyncio._set_running_loop(running)
            asyncio._enter_task(running, current)  # type: ignore[arg-type]
        return [said, *await asyncio.gather(*tasks)]

    assert asyncio.run(outer()) == ["inner", "outer", "outer", "outer"]


def test_call_of_a_worker_thread_that_a_loop_waits_for_is_answered(
    run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """`pool.submit(call).result()` on the loop's thread: the bridge of many frameworks from async to sync code."""

    def bridged(registry: RateLimitRegistry) -> object:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(registry.execute, KEY, lambda: "sync", max_wait=PATIENT).result()

    with caplog.at_level(logging.WARNING, "tidegate"):
        assert called_on_full_loop(run, bridged) == "sync"
    assert [each.message.partition(":")[0] for each in caplog.records] == ["event loop of thread MainThread blocked"]


def test_sync_call_that_blocks_a_loop_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = make()

    async def main() -> None:
        release = asyncio.Event()
        task = asyncio.ensure_future(registry.aexecute(KEY, release.wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for host in ("https://q.test", "https://r.test"):
            key = KEY._replace(base_url=host)
            registry.settle(taken(registry, key), Outcome(Kind.RATE_LIMIT, Cause.RATE, PAUSE, status=429))
            registry.execute(key, lambda: 1, max_wait=PATIENT)
        release.set()
        await task

    with caplog.at_level(logging.WARNING, logger="tidegate"):
        asyncio.run(main())
    (record,) = [record for record in caplog.records if "blocked" in record.message]
    assert "asyncio.to_thread" in record.message
    assert record.levelno == logging.WARNING


def test_sync_call_in_a_worker_thread_blocks_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    registry = make()
    registry.settle(taken(registry), Outcome(Kind.RATE_LIMIT, Cause.RATE, 0.01, status=429))

    async def main() -> None:
        assert await asyncio.to_thread(registry.execute, KEY, lambda: 1, max_wait=PATIENT) == 1

    with caplog.at_level(logging.WARNING, logger="tidegate"):
        asyncio.run(main())
        trio.run(lambda: trio.to_thread.run_sync(lambda: registry.execute(KEY, lambda: 1, max_wait=PATIENT)))
    assert not [record for record in caplog.records if "blocked" in record.message]
