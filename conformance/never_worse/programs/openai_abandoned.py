"""A harness that gives each try a thread and some seconds, leaves the thread behind, and tries again."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import openai
from kit import ROWS, SERVER, govern, kept, option, report, text

SECONDS = float(option(1, "4"))
STOP = time.monotonic() + 60.0


def main() -> None:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))

    def call(row: int) -> object:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    def persist(row: int) -> object:
        while time.monotonic() < STOP:
            pool = ThreadPoolExecutor(1)
            try:
                return kept(pool.submit(call, row).result(timeout=SECONDS))
            except Late:
                pool.shutdown(wait=False)
            except openai.RateLimitError:
                time.sleep(0.5)
        return TimeoutError("never answered")

    with ThreadPoolExecutor(ROWS) as outer:
        report(outer.map(persist, range(ROWS)))
    os._exit(0)


if __name__ == "__main__":
    main()
