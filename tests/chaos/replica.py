"""A replica as a process of its own: takes orders on standard input, and tells on standard output what came of them.

    python -m tests.chaos.replica URL HOURS
    > start e0        < e0 started        and when its run here has ended     < e0 ended COMPLETED
    > stop e0         < e0 stop done

By HOURS, its clock is wrong: both of Python's ways to the time of day. It ends when standard input does.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
import time
from pathlib import Path
from typing import Any


def set_clock(hours: float) -> None:
    """Makes the local clock wrong by so many hours."""
    offset = datetime.timedelta(hours=hours)
    true_time, true_ns = time.time, time.time_ns
    true_datetime = datetime.datetime

    class WrongClock(true_datetime):
        """The time of day as a wrong clock has it."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return true_datetime.now(tz) + offset

        @classmethod
        def utcnow(cls) -> Any:
            return true_datetime.now(datetime.UTC).replace(tzinfo=None) + offset

        @classmethod
        def today(cls) -> Any:
            return true_datetime.now() + offset

    time.time = lambda: true_time() + offset.total_seconds()
    time.time_ns = lambda: true_ns() + int(offset.total_seconds()) * 10**9
    datetime.datetime = WrongClock  # type: ignore[misc]


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(url: str) -> None:
    import tidegate
    from tests.constants import replace_named
    from tidegate.experiments import ExperimentRunner, RunnerSettings, load

    replace_named()

    tidegate.install()
    source = Path(__file__).with_name("experiments.py")
    runner = ExperimentRunner(url, settings=RunnerSettings.from_environment())
    waiting: set[asyncio.Task[None]] = set()

    async def wait(name: str) -> None:
        tell(name, "ended", (await runner.wait(name)).status)

    async with runner:
        tell("replica", runner.replica)
        async for line in await orders():
            order, name = line.decode().split()
            if order == "start":
                await runner.start(load(f"{source}:{name}"))
                tell(name, "started")
                waiting.add(asyncio.create_task(wait(name)))
            else:
                tell(name, "stop", (await runner.stop(name)).value)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


if __name__ == "__main__":
    set_clock(float(sys.argv[2]))
    asyncio.run(main(sys.argv[1]))
