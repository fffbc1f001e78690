"""Ctrl-C while the threads of a pool wait out a long pause; the first word names the way.

- `pool`        one interrupt, at a `with` block that waits for its threads
- `presses`     an interrupt each two seconds, as a user presses who sees no end
- `cancel`      one interrupt; the program drops what has not begun, and reports what it has
- `terminated`  the signal of a scheduler instead
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import openai
from kit import ROWS, SERVER, caught, govern, option, report, text

WAY = option(1, "pool")
LAST = 9
"""Row whose thread sends the signal: the server answers the first eight."""


def main() -> None:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))

    def press() -> None:
        for _ in range(6 if WAY == "presses" else 1):
            time.sleep(2.0)
            os.kill(os.getpid(), signal.SIGTERM if WAY == "terminated" else signal.SIGINT)

    def ask(row: int) -> object:
        if row == LAST:
            threading.Thread(target=press, daemon=True).start()
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    # A shell starts programs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if WAY != "cancel":
        with ThreadPoolExecutor(8) as pool:
            report(list(pool.map(ask, range(ROWS))))
        return
    pool = ThreadPoolExecutor(8)
    asked: list[Future[object]] = [pool.submit(caught, ask, row) for row in range(ROWS)]
    try:
        for each in asked:
            each.result()
    except KeyboardInterrupt:
        pool.shutdown(wait=True, cancel_futures=True)
    report(each.result() for each in asked if not each.cancelled())


if __name__ == "__main__":
    main()
