"""Scope of an attempt, and the blocks where tidegate is disabled: two facts of the running context.

Theory of operation. HTTP stacks are layered (an SDK on httpx on aiohttp, a gateway on an SDK). The outermost attempt
marks its context with a scope, and every request inside it passes through: one permit per stack. The scope is mutable
and closes when the attempt returns. So a task that was started inside it and outlives it is governed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.core.limiter_state import Permit

_scope: ContextVar[AttemptScope | None] = ContextVar("tidegate_cell", default=None)


class AttemptScope:
    """Mark of an attempt in flight in this context; a context manager around the sending.

    It is open until the sending returns or its `permit` is settled. An interrupt of the program may skip the return of
    a context manager, but every permit is settled.
    """

    __slots__ = ("_permit", "_returned", "_token")

    def __init__(self, permit: Permit | None = None) -> None:
        self._permit = permit
        self._returned = False

    @property
    def open(self) -> bool:
        """Return whether requests in its context are part of the attempt."""
        return not self._returned and (self._permit is None or not self._permit.settled)

    def __enter__(self) -> AttemptScope:
        # Keep an open outer scope: a task started here may outlive this scope, but the outer one must still cover it.
        outer = _scope.get()
        self._token = None if outer is not None and outer.open else _scope.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._returned = True
        if self._token is not None:
            _scope.reset(self._token)


within: ContextVar[tuple[Permit, ...]] = ContextVar("tidegate_within", default=())
"""Permits of the calls of functions (`execute`) that this context runs inside, the outermost first; settled ones do not
count."""

current_scope = _scope.get
"""Return the scope of this context, or None. While it is `open`, every request in the context passes through."""


@contextmanager
def disabled() -> Iterator[None]:
    """Let every request in this context, and in tasks started in it, pass through untouched."""
    outer = _scope.get()
    try:
        # This scope is never closed: a task that outlives the block stays ungoverned.
        _scope.set(AttemptScope())
        yield
    finally:
        _scope.set(outer)
