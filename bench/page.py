"""The page of `tidegate serve`: time until it answers, bytes it sends, and what an open page costs a governed process.

    python -m bench.page [--rounds 12] [--calls 4000]

The governed process is this one: a client over a transport that answers from memory. A server with a reader that asks
once a second, as a browser does, runs beside it in half of the blocks. Only the CPU time of this process counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2

from bench.common import MICRO, PAIR_HEADER, Check, Pairs, conclude, median_interval, table
from bench.overhead import answer, sending
from tidegate.admission.registry import RateLimitRegistry
from tidegate.settings import Settings

MOST_UP = 0.5
"""Seconds until the page answers."""

MOST_ADDED_SHARE = 0.01
URL = "https://api.openai.com/v1/chat/completions"

READER = """
import sys, time, httpx
url, token = sys.argv[1:]
with httpx.Client(headers={"authorization": f"Bearer {token}"}) as client:
    since = 0
    while True:
        since = client.get(f"{url}api/limits", params={"since": since}).json()["sample"]
        time.sleep(1.0)
"""


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far (proc(5), fields 14 and 15)."""
    user, system = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served() -> Iterator[tuple[str, str, tuple[float, float]]]:
    """A server: its URL, its token, and the seconds and the CPU seconds until it had answered its page."""
    began = time.monotonic()
    command = [str(Path(sys.executable).with_name("tidegate")), "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"(http://\S+/)#(\S+)", process.stdout.readline())
        assert found is not None, "the server has not begun"
        assert httpx.get(found[1]).status_code == 200
        yield found[1], found[2], (time.monotonic() - began, cpu_of(process.pid))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def first_load(url: str) -> int:
    """Bytes of the page and of every file that it loads."""
    seen: dict[str, int] = {}
    todo = ["/"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        text = httpx.get(f"{url.rstrip('/')}{path}").text
        seen[path] = len(text.encode())
        todo += re.findall(r'(?:src|href|from)[= ]"(/static/[^"]+)"', text)
    return sum(seen.values())


def polls(url: str, token: str) -> tuple[int, int, float]:
    """Bytes of the first answer and of a later one, and the milliseconds of a later one."""
    with httpx.Client(headers={"authorization": f"Bearer {token}"}) as client:
        given = client.get(f"{url}api/limits")
        time.sleep(1.2)
        began = time.perf_counter()
        later = client.get(f"{url}api/limits", params={"since": given.json()["sample"]})
        return len(given.content), len(later.content), 1000 * (time.perf_counter() - began)


@contextmanager
def page_open() -> Iterator[None]:
    """A server, and a reader that asks it once a second."""
    with served() as (url, token, _):
        reader = subprocess.Popen([sys.executable, "-c", READER, url, token])
        try:
            yield
        finally:
            reader.terminate()
            reader.wait()


async def compared(rounds: int, calls: int) -> Pairs:
    """CPU per call without and with an open page, in turns."""
    registry = RateLimitRegistry(Settings())
    client = registry.wrap(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
    send = sending(client, URL)
    pairs = Pairs([], [])
    for is_open_first in [bool(number % 2) for number in range(rounds)]:
        for is_open in (is_open_first, not is_open_first):
            with page_open() if is_open else gone():
                gc.collect()
                for _ in range(calls // 4):
                    await send()
                began = time.process_time()
                for _ in range(calls):
                    await send()
                spent = (time.process_time() - began) / calls * MICRO
                (pairs.governed if is_open else pairs.plain).append(spent)
    return pairs


async def written(rounds: int, calls: int) -> Pairs:
    """CPU per call of a process that writes no counter file, and of one that does."""
    clients = [
        RateLimitRegistry(settings).wrap(httpx2.AsyncClient(transport=httpx2.MockTransport(answer)))
        for settings in (Settings(status=False), Settings())
    ]
    sends = [sending(client, URL) for client in clients]
    pairs = Pairs([], [])
    order = random.Random(1)
    for _ in range(rounds):
        sides = [0, 1]
        order.shuffle(sides)
        spent = [0.0, 0.0]
        for side in (*sides, *reversed(sides)):
            gc.collect()
            for _ in range(200):
                await sends[side]()
            began = time.process_time()
            for _ in range(calls // 2):
                await sends[side]()
            spent[side] += time.process_time() - began
        pairs.plain.append(spent[0] / (calls // 2 * 2) * MICRO)
        pairs.governed.append(spent[1] / (calls // 2 * 2) * MICRO)
    return pairs


@contextmanager
def gone() -> Iterator[None]:
    """No page."""
    yield


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--calls", type=int, default=4000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        figures: dict[str, Any] = {}
        ups, cpus = [], []
        for _ in range(given.starts):
            with served() as (url, token, (up, cpu)):
                ups.append(up)
                cpus.append(cpu)
                figures["first_load_bytes"] = first_load(url)
        pairs = asyncio.run(compared(given.rounds, given.calls))
        with served() as (url, token, _):
            time.sleep(1.5)
            figures["first_answer_bytes"], figures["poll_bytes"], figures["poll_ms"] = polls(url, token)
        rows = asyncio.run(written(given.rounds, given.calls))
        assert list(Path(folder).glob("tidegate-run-*")), "this process has written no counters"
    figures |= {"up_s": ups, "up_cpu_s": cpus, "page": pairs.figures(), "counters": rows.figures()}
    table("The page", ("", "value"), [
        ["up", f"{statistics.median(ups):.2f} s (of {min(ups):.2f} to {max(ups):.2f})"],
        ["CPU time until then", f"{statistics.median(cpus):.2f} s"],
        ["first load", f"{figures['first_load_bytes']} bytes"],
        ["first answer, a key with two quotas", f"{figures['first_answer_bytes']} bytes"],
        ["each later answer", f"{figures['poll_bytes']} bytes, {figures['poll_ms']:.1f} ms"],
    ])  # fmt: skip
    table("CPU of a governed process per call", PAIR_HEADER, [
        pairs.row("page closed, open"), rows.row("without, with counter file"),
    ])  # fmt: skip
    # On a machine with other work the interval is wide: what is accepted is its lower end.
    share = median_interval(pairs.added)[0] / statistics.median(pairs.plain)
    checks = [
        Check("seconds until the page answers", min(ups), MOST_UP),
        Check("CPU added by an open page, lower end, as a share", share, MOST_ADDED_SHARE),
    ]
    return conclude("page", figures, checks)


if __name__ == "__main__":
    raise SystemExit(main())
