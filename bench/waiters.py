"""What waiting costs: memory for each waiter, time for each admission and cancellation, many keys.

    python -m bench.waiters [--most 100000]

Memory is counted by `tracemalloc` beside bare asyncio tasks that wait on a future. Times are CPU times.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from bench.common import MICRO, Check, conclude, table
from tidegate.admission.call import GovernedCall
from tidegate.admission.drive import adrive
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core import concurrency_limit
from tidegate.core.exchange import AttemptResult, CallPolicy, ExchangeResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cost, Key, Kind, Outcome
from tidegate.settings import Settings

MOST_BYTES = 1000.0
MOST_GROWTH = 2.0
MOST_OVER_BARE = 4.0
"""Bare tasks take longer to cancel too where there are many: the collector runs over all of them."""

MOST_LEFT_BYTES = 32.0
"""Bytes per waiter or key that may stay after everything has ended: hash tables do not shrink at once."""

ADMISSIONS = ("admission, core", "admission, tasks")
SLOTS = 64
OK = Outcome(Kind.OK, status=200)
KEY = Key("openai", "https://api.openai.com", "0", "m")
COST = Cost()
POLICY = CallPolicy(max_wait=3600.0)


class Counter:
    """A waker that wakes nobody and counts."""

    __slots__ = ("woken",)

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> bool:
        """Counts."""
        self.woken += 1
        return True

    def arm(self, until: float) -> bool:
        """Counts nothing: the clock stands still."""
        return True


def full_registry(slots: int, *, frozen: bool = False) -> tuple[RateLimitRegistry, list[Permit]]:
    """A registry with one key, all of whose slots are taken."""
    concurrency_limit.START_CONCURRENCY = slots
    registry = RateLimitRegistry(Settings(max_concurrency=slots), clock=(lambda: 0.0) if frozen else time.monotonic)
    permits = [registry.try_admit(KEY, COST) for _ in range(slots)]
    return registry, [each for each in permits if isinstance(each, Permit)]


def release(registry: RateLimitRegistry, permits: list[Permit]) -> None:
    """Gives all permits back."""
    for permit in permits:
        registry.settle(permit, OK)


async def start(count: int, wait: Callable[[], Awaitable[object]]) -> list[asyncio.Task[object]]:
    """`count` tasks that have all come to where they wait."""

    async def task() -> object:
        return await wait()

    tasks = [asyncio.create_task(task()) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def stop(tasks: list[asyncio.Task[object]]) -> None:
    """Cancels them all, in random order, and waits for their end."""
    random.Random(0).shuffle(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def bytes_each(count: int, wait: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Bytes for each waiting task, and bytes for each that stay when all were cancelled."""
    await stop(await start(100, wait))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tasks = await start(count, wait)
        gc.collect()
        during = tracemalloc.get_traced_memory()[0]
        await stop(tasks)
        del tasks
        await asyncio.sleep(0)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return (during - before) / count, (after - before) / count


async def nothing() -> None:
    """The call that is waited for."""


async def bare() -> None:
    """What any waiting task comes down to."""
    await asyncio.get_running_loop().create_future()


class BareCall(GovernedCall):
    """A call that is answered at once when it is sent."""

    __slots__ = ()

    async def asend(self, permit: Permit) -> AttemptResult:
        """The attempt."""
        return AttemptResult(OK)

    def finish(self, ended: ExchangeResult) -> Any:
        """Nothing is made of it."""


def driven(registry: RateLimitRegistry) -> Awaitable[object]:
    """What every waiting call comes down to: a turn, and its exchange."""
    call = BareCall(registry, KEY, POLICY, 60.0, 0)
    return adrive(call)


async def memory(count: int) -> dict[str, float]:
    """Bytes for each task: bare, with an exchange in its seat, in `aexecute`."""
    registry, permits = full_registry(SLOTS)
    # asyncio's own list of tasks grows once, and would be counted with the first that is measured.
    await stop(await start(count, bare))
    plain, _ = await bytes_each(count, bare)
    seated, _ = await bytes_each(count, lambda: driven(registry))
    governed, left = await bytes_each(count, lambda: registry.aexecute(KEY, nothing, cost=COST))
    release(registry, permits)
    return {
        "bare task": plain,
        "added by turn, exchange, waker": seated - plain,
        "added by aexecute, all of that included": governed - plain,
        "left after cancelling aexecute": left,
    }


def drain_core(count: int) -> float:
    """Microseconds an admission, without asyncio and with the clock standing still."""
    registry, permits = full_registry(SLOTS, frozen=True)
    waker = Counter()
    waiters = [Waiter(lambda: waker, 0) for _ in range(count)]
    for waiter in waiters:
        waiter.deadline = 3600.0
        registry.enqueue(waiter, KEY, 60.0)
    gc.collect()
    began = time.process_time()
    release(registry, permits)
    for waiter in waiters:
        permit = registry.poll(waiter)
        if permit is None:
            raise RuntimeError("a waiter was passed over")
        registry.settle(permit, OK)
    return (time.process_time() - began) / count * MICRO


async def drain_tasks(count: int) -> float:
    """Microseconds an admission, from the settling that lets it go to the end of its task."""
    registry, permits = full_registry(SLOTS)
    tasks = await start(count, lambda: registry.aexecute(KEY, nothing, cost=COST))
    gc.collect()
    began = time.process_time()
    release(registry, permits)
    await asyncio.gather(*tasks)
    return (time.process_time() - began) / count * MICRO


async def cancel_tasks(count: int) -> float:
    """Microseconds a cancellation, from any place in the line."""
    registry, permits = full_registry(SLOTS)
    tasks = await start(count, lambda: registry.aexecute(KEY, nothing, cost=COST))
    gc.collect()
    began = time.process_time()
    await stop(tasks)
    spent = time.process_time() - began
    waiting = registry.snapshot().keys[KEY].waiting
    if waiting:
        raise RuntimeError(f"{waiting} cancelled calls still wait")
    release(registry, permits)
    return spent / count * MICRO


async def cancel_bare(count: int) -> float:
    """Microseconds a cancellation of a bare task: what asyncio and the garbage collector take by themselves."""
    tasks = await start(count, bare)
    gc.collect()
    began = time.process_time()
    await stop(tasks)
    return (time.process_time() - began) / count * MICRO


async def times(counts: list[int]) -> dict[str, dict[int, float]]:
    """Every kind of time at every number of waiters: the median of several runs, more where they are short."""
    found: dict[str, dict[int, float]] = {name: {} for name in (*ADMISSIONS, "cancellation", "cancellation, bare")}
    for count in counts:
        repetitions = 5 if count > 20_000 else 15
        core = [drain_core(count) for _ in range(repetitions)]
        tasks = [await drain_tasks(count) for _ in range(repetitions)]
        cancels = [await cancel_tasks(count) for _ in range(repetitions)]
        bares = [await cancel_bare(count) for _ in range(repetitions)]
        for name, figures in zip(found, (core, tasks, cancels, bares), strict=True):
            found[name][count] = statistics.median(figures)
    return found


def keys(counts: list[int]) -> dict[int, dict[str, float]]:
    """Total megabytes, keys kept, and microseconds a key, after so many distinct keys were used once."""
    registry = RateLimitRegistry()
    found: dict[int, dict[str, float]] = {}
    used = 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for count in counts:
            while used < count:
                _use(registry, used)
                used += 1
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
            found[count] = {"megabytes": held / 1e6, "keys": float(len(registry.snapshot().keys))}
    finally:
        tracemalloc.stop()
    began = time.process_time()
    for number in range(used, used + 20_000):
        _use(registry, number)
    spent = time.process_time() - began
    found[counts[-1]]["us"] = spent / 20_000 * MICRO
    return found


def _use(registry: RateLimitRegistry, number: int) -> None:
    permit = registry.try_admit(Key("openai", "https://api.openai.com", f"{number:016x}", "m"), COST)
    if isinstance(permit, Permit):
        registry.settle(permit, OK)


def report(found: dict[str, Any], counts: list[int]) -> list[Check]:
    """Prints the tables; returns what is asked."""
    most, least = counts[-1], counts[0]
    held = found["memory"]
    table(f"Memory at {most:,} waiters", ("", "bytes each"), [[k, f"{v:.0f}"] for k, v in held.items()])
    rows = [
        [name, *(f"{by[count]:.2f}" for count in counts), f"{by[most] / by[least]:.2f}"]
        for name, by in found["times"].items()
    ]
    table("CPU us each, by waiters", ("", *(f"{count:,}" for count in counts), "growth"), rows)
    kept = found["keys"]
    rows = [[f"{c:,}", f"{by['megabytes']:.2f}", f"{by['keys']:.0f}"] for c, by in kept.items()]
    table("Distinct keys, each used once", ("used", "MB", "kept"), rows)
    print(f"one more new key: {kept[most]['us']:.1f} us")
    checks = [
        Check("bytes of a waiter: exchange", held["added by turn, exchange, waker"], MOST_BYTES),
        Check("bytes of a waiter: aexecute", held["added by aexecute, all of that included"], MOST_BYTES),
        Check("bytes left a cancelled waiter", held["left after cancelling aexecute"], MOST_LEFT_BYTES),
        Check("memory of keys, last over second-last", kept[most]["megabytes"] / kept[counts[-2]]["megabytes"], 1.1),
    ]
    spent = found["times"]
    growths = [Check(f"{name}: growth", spent[name][most] / spent[name][least], MOST_GROWTH) for name in ADMISSIONS]
    over_bare = spent["cancellation"][most] / spent["cancellation, bare"][most]
    return [*checks, *growths, Check("cancellation, times a bare task's", over_bare, MOST_OVER_BARE)]


def main() -> int:
    """Prints the tables; returns 1 where the acceptance is missed."""
    parser = argparse.ArgumentParser(description="What waiting costs")
    parser.add_argument("--most", type=int, default=100_000, help="waiters at most (default 100000)")
    given = parser.parse_args()
    most = min(1_000_000, max(10_000, given.most))
    counts = [most // 100, most // 10, most]
    found = {
        "memory": asyncio.run(memory(most)),
        "times": asyncio.run(times(counts)),
        "keys": keys(counts),
    }
    return conclude("waiters", found, report(found, counts))


if __name__ == "__main__":
    raise SystemExit(main())
