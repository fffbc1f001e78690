"""A process of workers for the queue of `examples/queue_worker.py`, as many as may start.

Its environment names the example, the queue's file and the number of workers; `GOVERNED` says if tidegate also holds
their calls. It begins when its standard input ends.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import openai

import tidegate
from tidegate import suspensions

LOOK_EVERY = 0.1
"""Seconds between two looks of the spawner at its queue."""


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("queue_worker", os.environ["EXAMPLE"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def connected() -> sqlite3.Connection:
    """A connection to the queue; many processes write to it."""
    queue = sqlite3.connect(Path(os.environ["QUEUE"]), isolation_level=None, timeout=600.0)
    queue.row_factory = sqlite3.Row
    return queue


def main() -> None:
    worker, workers = example(), int(os.environ["WORKERS"])
    suspensions.RATE_SECONDS = float(os.environ["WINDOW"])
    shared = tidegate.Suspensions(os.environ["SUSPENSIONS"], models=worker.TARGET)
    client: Any = openai.OpenAI(max_retries=0)
    if os.environ["GOVERNED"] == "yes":
        client = tidegate.wrap(client)
    running: set[threading.Thread] = set()

    def work() -> None:
        queue = connected()
        try:
            worker.work(queue, client, shared)
        finally:
            queue.close()
            running.discard(threading.current_thread())

    queue = connected()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    while queue.execute("SELECT 1 FROM jobs WHERE status IN ('pending', 'running') LIMIT 1").fetchone():
        for _ in range(shared.workers_to_start(worker.TARGET, wanted=workers, active=len(running))):
            thread = threading.Thread(target=work)
            running.add(thread)
            thread.start()
        time.sleep(LOOK_EVERY)


if __name__ == "__main__":
    main()
