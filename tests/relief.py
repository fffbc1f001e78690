"""A simulated provider that refuses some calls first, and then has room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.testing import Limit, Simulator


@contextmanager
def relieved_after(refusals: int, provider: Simulator, *limiters: Limit) -> Iterator[None]:
    """Give the provider other limiters as soon as it has refused `refusals` calls, however long that takes."""
    over = threading.Event()

    def relieve() -> None:
        while provider.truth().total.refusals < refusals and not over.wait(0.005):
            pass
        provider.configure(limiters=limiters)

    watching = threading.Thread(target=relieve)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
