"""A harness that gives each try a thread and some seconds, leaves the thread behind, and tries again.

With the word `loop` its calls run on an event loop of another thread: a result that is waited for is not cancelled.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import openai
from kit import ROWS, SERVER, govern, kept, option, report, text

SECONDS = float(option(1, "4"))
STOP = time.monotonic() + 60.0


def on_a_loop() -> Callable[[int], object]:
    """Return a function that waits some seconds for a call of the loop."""
    client, loop = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1")), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def call(row: int) -> object:
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    return lambda row: asyncio.run_coroutine_threadsafe(call(row), loop).result(timeout=SECONDS)


def in_a_thread() -> Callable[[int], object]:
    """Return a function that waits some seconds for a thread with a call."""
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))

    def call(row: int) -> object:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    def wait(row: int) -> object:
        pool = ThreadPoolExecutor(1)
        try:
            return pool.submit(call, row).result(timeout=SECONDS)
        finally:
            pool.shutdown(wait=False)

    return wait


def main() -> None:
    ask = on_a_loop() if option(2, "thread") == "loop" else in_a_thread()

    def persist(row: int) -> object:
        while time.monotonic() < STOP:
            try:
                return kept(ask(row))
            except Late:
                continue
            except openai.RateLimitError:
                time.sleep(0.5)
        return TimeoutError("never answered")

    with ThreadPoolExecutor(ROWS) as outer:
        report(outer.map(persist, range(ROWS)))
    os._exit(0)


if __name__ == "__main__":
    main()
