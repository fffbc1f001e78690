"""A mark that goes with the context: for SDKs whose HTTP clients come and go below an object that stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.transports.marks import Mark

_carried: ContextVar[Mark | None] = ContextVar("tidegate_mark", default=None)


def carried() -> Mark | None:
    """The mark that this context carries."""
    return _carried.get()


@contextmanager
def carrying(mark: Mark | None) -> Iterator[None]:
    """Govern requests inside by `mark`, through whatever HTTP client they go; None changes nothing."""
    if mark is None:
        yield
        return
    token = _carried.set(mark)
    try:
        yield
    finally:
        _carried.reset(token)
