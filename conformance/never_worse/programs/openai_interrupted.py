"""Ctrl-C while the threads of a pool wait out a long pause."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
from kit import ROWS, SERVER, govern, report, text


def main() -> None:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1"))

    def ask(row: int) -> object:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    # A shell starts programs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    with ThreadPoolExecutor(8) as pool:
        report(list(pool.map(ask, range(ROWS))))


if __name__ == "__main__":
    main()
