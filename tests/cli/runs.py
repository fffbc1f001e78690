"""Folders of runs, as `tidegate run` makes them, with keys in any state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.core.values import KEY, answer, refusal
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import Waiter
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.values import Cost
from tidegate.launch.process_counters import ProcessCounters
from tidegate.settings import Settings
from tidegate.shared_file import lock


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, as the process of its run does."""
    descriptor = os.open(folder, os.O_RDONLY)
    assert lock(descriptor)
    yield
    os.close(descriptor)


OfARun = Callable[..., Path]


def used_at(folder: Path, model: str, ago: float, waiting: int = 0, closed_for: float | None = None) -> None:
    """Write a key of a model whose last call ended so many seconds ago; a refusal may close it."""
    then = time.monotonic() - ago
    slots = KeyQueue(AdmissionController(KEY._replace(scope=model), Settings(), 60.0, then))
    ProcessCounters(str(folder)).track(slots)
    for _ in range(waiting):
        slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))
    permit = slots.admission.admit(Cost(), then - 0.5, 0.0, None)
    slots.admission.settle(permit, refusal(closed_for) if closed_for else answer(), then, 0.5, None)
