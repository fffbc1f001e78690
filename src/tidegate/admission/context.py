"""The outermost attempt, and the places where tidegate is switched off: two facts of the running context.

Stacks lie on stacks (an SDK on httpx on aiohttp, a gateway on an SDK). The outermost recognised attempt marks its
context with a cell, and whatever is sent inside it passes through: one permit per stack. The cell is mutable and is
closed when the attempt returns, so that a task which was spawned inside it, and lives on, is governed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_cell: ContextVar[AttemptScope | None] = ContextVar("tidegate_cell", default=None)


class AttemptScope:
    """Marks an attempt under way in this context; a context manager around the sending."""

    __slots__ = ("_token", "open")

    def __init__(self) -> None:
        self.open = True

    def __enter__(self) -> AttemptScope:
        # Inside an open one it changes nothing: a task that is spawned here may outlive this cell, but not that one.
        outer = _cell.get()
        self._token = None if outer is not None and outer.open else _cell.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.open = False
        if self._token is not None:
            _cell.reset(self._token)


def is_passthrough() -> bool:
    """Return whether requests in this context pass through: inside an attempt under way, or inside `disabled()`."""
    cell = _cell.get()
    return cell is not None and cell.open


@contextmanager
def disabled() -> Iterator[None]:
    """Everything sent in this context, and in tasks started in it, passes through untouched."""
    # A cell that nobody closes: a task that outlives the block stays outside.
    token = _cell.set(AttemptScope())
    try:
        yield
    finally:
        _cell.reset(token)
