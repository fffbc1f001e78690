"""Ctrl-C in a program that then waits for its threads: their waiting calls end; those of any other program wait on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.transports.answering import ANSWER, Reply, Server

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the programs get a signal")

HANG = 300.0
"""Seconds after which a program counts as one that never ends. They decide no test that passes."""

PROGRAM = """
import asyncio, json, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

# A shell starts programs in the background with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
{work}
def say(text):
    # One write, also among threads.
    os.write(1, text.encode() + b"\\n")

begun = threading.Event()

def asked():
    begun.set()
    # The main thread waits here until the interrupt. It runs often: a signal that comes just before a thread blocks
    # is handled only when that thread runs again.
    while True:
        time.sleep(0.01)

def start_threads():
    threads = [threading.Thread(target=work, args=(row,)) for row in range(3)]
    for thread in threads:
        thread.start()
    return threads

async def in_tasks():
    tasks = [asyncio.create_task(asyncio.to_thread(work, row)) for row in range(3)]
    begun.set()
    while True:
        await asyncio.sleep(0.01)

{shape}
"""

INTERRUPTED = {
    "pool in a with block": "with ThreadPoolExecutor(3) as pool: pool.map(work, range(3)); asked()",
    "pool at the end of the interpreter": "ThreadPoolExecutor(3).map(work, range(3)); asked()",
    "threads at the end of the interpreter": "start_threads(); asked()",
    "threads that are joined": """
threads = start_threads()
try:
    asked()
finally:
    for thread in threads: thread.join()
""",
    "shutdown in the handler": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
try:
    asked()
except KeyboardInterrupt:
    pool.shutdown(cancel_futures=True)
""",
    "exit in the handler": """
with ThreadPoolExecutor(3) as pool:
    pool.map(work, range(3))
    try: asked()
    except KeyboardInterrupt: sys.exit(3)
""",
    "threads of tasks": "asyncio.run(in_tasks())",
    "cancelled pool, at the end of the interpreter": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
try:
    asked()
except KeyboardInterrupt:
    pool.shutdown(wait=False, cancel_futures=True)
""",
    "cancelled pool of a function": """
def main():
    pool = ThreadPoolExecutor(3)
    try:
        pool.map(work, range(3))
        asked()
    except KeyboardInterrupt:
        pool.shutdown(False, cancel_futures=True)
main()
""",
}
OTHERS = {
    "pool in a with block": "with ThreadPoolExecutor(3) as pool: [pool.submit(work, row) for row in range(3)]",
    "pool that is shut down": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
pool.shutdown(cancel_futures=True)
""",
    "pool at the end of the interpreter": "pool = ThreadPoolExecutor(3); pool.map(work, range(3))",
    "threads at the end of the interpreter": "start_threads()",
    "an error in a with block": """
with ThreadPoolExecutor(3) as pool:
    pool.map(work, range(3))
    raise ValueError
""",
    "an interrupt that was handled": """
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass
with ThreadPoolExecutor(3) as pool: pool.map(work, range(3))
""",
    "an interrupt of an earlier cell": """
sys.last_value = KeyboardInterrupt()
with ThreadPoolExecutor(3) as pool: pool.map(work, range(3))
""",
    "a pool that is not cancelled": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
pool.shutdown(wait=False)
""",
    "a cancelled pool whose threads store what they find": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
pool.shutdown(wait=False, cancel_futures=True)
""",
    "a cancelled pool whose results are awaited": """
pool = ThreadPoolExecutor(3); tasks = [pool.submit(work, row) for row in range(3)]
pool.shutdown(wait=False, cancel_futures=True)
for task in tasks: task.result()
""",
    "a cancelled pool whose results another thread reads": """
pool = ThreadPoolExecutor(3); tasks = [pool.submit(work, row) for row in range(3)]
threading.Thread(target=lambda: [task.result() for task in tasks]).start()
pool.shutdown(wait=False, cancel_futures=True)
""",
    "a question in the handler": """
threads = start_threads()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    done.wait()
""",
}

LOOKING = """
from tidegate.admission import thread_states

thread_states.watch_pools()
done, ready, instants = threading.Event(), threading.Barrier(3), iter(range(10**9))

def main_thread_waits():
    frame, found = sys._current_frames()[threading.main_thread().ident], set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return not found.isdisjoint({"join", "_shutdown", "wait"})

def work(row):
    {body}
"""
SEEN = """
    ready.wait()
    if row == 0:
        # An interrupt while a pool starts a thread leaves a thread that the pool does not know.
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)
    while not thread_states.is_exiting(100.0 * next(instants)):
        time.sleep(0.001)
    say("seen")
"""
NEVER = """
    ready.wait()
    while not main_thread_waits():
        time.sleep(0.001)
    for _ in range(20):
        if thread_states.is_exiting(100.0 * next(instants)):
            say("seen")
        time.sleep(0.001)
    done.set()
    say("waited")
"""


CANCELLED = {
    "a handler that sets an event": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
begun.set(); stop.wait()
pool.shutdown(cancel_futures=True)
""",
    "an error that was handled": """
pool = ThreadPoolExecutor(3); pool.map(work, range(3))
begun.set(); stop.wait()
try:
    raise ValueError
except ValueError:
    pool.shutdown(wait=False, cancel_futures=True)
""",
    "threads of anyio": """
import anyio, anyio.to_thread
signal.signal(signal.SIGINT, signal.default_int_handler)
async def main():
    async with anyio.create_task_group() as group:
        for row in range(3): group.start_soon(anyio.to_thread.run_sync, work, row)
        begun.set()
try: anyio.run(main)
except KeyboardInterrupt: pass
""",
    "threads of trio": """
import trio
signal.signal(signal.SIGINT, signal.default_int_handler)
async def main():
    async with trio.open_nursery() as nursery:
        for row in range(3): nursery.start_soon(trio.to_thread.run_sync, work, row)
        begun.set()
try: trio.run(main)
except* KeyboardInterrupt: pass
""",
}
"""Programs that cancel the work of their threads at an interrupt that no function of theirs handles."""


def run(work: str, shape: str) -> tuple[int, Counter[str]]:
    """Exit code of a program without calls, and what its threads printed."""
    code = PROGRAM.replace("{work}", work).replace("{shape}", shape)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    return done.returncode, Counter(done.stdout.split())


@pytest.mark.parametrize("shape", INTERRUPTED.values(), ids=INTERRUPTED.keys())
def test_threads_of_an_interrupted_program_see_that_it_waits_for_them(shape: str) -> None:
    code, printed = run(LOOKING.replace("{body}", SEEN), shape)
    assert printed == {"seen": 3}
    assert code != 0 or "except KeyboardInterrupt" in shape


@pytest.mark.parametrize("shape", OTHERS.values(), ids=OTHERS.keys())
def test_threads_of_any_other_program_see_nothing(shape: str) -> None:
    assert run(LOOKING.replace("{body}", NEVER), shape)[1] == {"waited": 3}


CALLING = """
import openai, tidegate
from tidegate.admission.registry import RateLimitRegistry

# One call is refused, two are never sent.
registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
client = registry.wrap(openai.OpenAI(base_url=os.environ["SERVER"], api_key="x"))

def work(row):
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": str(row)}])
    except Exception as error:
        say(json.dumps([type(error).__name__, str(error), getattr(error, "__notes__", [])]))

def tell():
    # Every call waits in the queue, or backs off, once the first was refused.
    while not (registry.snapshot().waiting == 3 and registry.snapshot().in_flight == 0):
        time.sleep(0.01)
    begun.wait()
    say("waiting")

threading.Thread(target=tell, daemon=True).start()
"""

HANDLER = """
stop = threading.Event()
signal.signal(signal.SIGINT, lambda *_: stop.set())
"""
"""An interrupt that raises nothing."""


def refusal(seconds: int) -> Reply:
    body = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
    return 429, {"retry-after": str(seconds), "content-type": "application/json"}, json.dumps(body).encode()


def interrupted(shape: str, reply: Callable[[int], Reply], handler: str = "") -> tuple[list[Any], int, int]:
    """Errors of three calls of a program that is interrupted while they wait, its exit code, and the requests sent."""
    code = PROGRAM.replace("{work}", CALLING + handler).replace("{shape}", shape)
    with Server(lambda number, path: reply(number)) as server:
        environment = {**os.environ, "SERVER": server.chat.removesuffix("/chat/completions")}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            told = process.communicate(timeout=HANG)[0].splitlines()
        finally:
            process.kill()
            process.wait()
        return [json.loads(line) for line in told], process.returncode, len(server.seen)


@pytest.mark.parametrize("shape", ["pool in a with block", "cancelled pool, at the end of the interpreter"])
def test_ctrl_c_ends_the_waits_of_a_programs_threads_with_the_sdks_own_error(shape: str) -> None:
    errors, code, sent = interrupted(INTERRUPTED[shape], lambda number: refusal(1000))
    assert sent == 1
    assert [name for name, _, _ in errors] == ["RateLimitError"] * 3
    assert all("interrupted" in text + "".join(notes) for _, text, notes in errors)
    assert code == (0 if "cancelled" in shape else -signal.SIGINT)


@pytest.mark.parametrize("shape", CANCELLED.values(), ids=CANCELLED.keys())
def test_calls_of_cancelled_threads_end_when_their_sdk_would_have_given_them_up(shape: str) -> None:
    errors, code, sent = interrupted(shape, lambda number: refusal(1000), HANDLER)
    assert (code, sent) == (0, 1)
    assert [name for name, _, _ in errors] == ["RateLimitError"] * 3
    assert all("cancelled" in text + "".join(notes) for _, text, notes in errors)


@pytest.mark.parametrize("shape", CANCELLED.values(), ids=CANCELLED.keys())
def test_calls_of_cancelled_threads_wait_as_long_as_their_sdk_would(shape: str) -> None:
    # Seven seconds are longer than an interrupted program waits. An SDK alone repeats its call after them.
    answer: Reply = (200, {"content-type": "application/json"}, ANSWER)
    errors, code, sent = interrupted(shape, lambda number: refusal(7) if number == 1 else answer, HANDLER)
    assert (errors, code, sent) == ([], 0, 4)
