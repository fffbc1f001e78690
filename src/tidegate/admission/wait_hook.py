"""Hook around each wait of a call, for programs that measure the working time of what makes the calls."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

around_wait: Callable[[], AbstractContextManager[object]] | None = None
"""Called when a call begins to wait, in the thread or task of the caller; it must not fail.

The context that it returns is open until the wait ends. A call may wait several times.
"""
