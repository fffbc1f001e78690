"""Frames and exceptions of other threads."""

from __future__ import annotations

import subprocess
import sys
import threading

from tidegate.admission.thread_states import frame_of, handled_by

HANG = 300.0
"""Seconds after which a program counts as one that stands still. They decide no test that passes."""

COLLECTING = """
import gc, os, threading
from tidegate.admission.thread_states import frame_of, handled_by

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        os.stat(".")  # Another thread may run.

def look():
    for _ in range(1000):
        Garbage()
        handled_by(threading.main_thread().ident)
        frame_of(threading.main_thread().ident)

gc.set_threshold(5)
threads = [threading.Thread(target=look) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(gc.isenabled())
"""


def test_a_program_that_collects_garbage_while_its_threads_look_at_each_other_ends() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


def test_the_frame_and_the_exception_of_a_thread_are_seen() -> None:
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            ready.set()
            end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    frame, error = frame_of(thread.ident or 0), handled_by(thread.ident or 0)
    functions = set()
    while frame is not None:
        functions.add(frame.f_code)
        frame = frame.f_back
    end.set()
    thread.join()
    assert work.__code__ in functions
    assert isinstance(error, ZeroDivisionError)
    assert handled_by(thread.ident or 0) is None
