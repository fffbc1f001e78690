"""Hooks for `tidegate run` and `tidegate status` (each key and ungoverned call), and for programs that time waits."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

on_new_queue: Callable[[Any], Callable[[], object] | None] | None = None
"""Called with the `KeyQueue` of each new key, under the key table's lock; it must not fail.

A function that it returns is called once that lock is free, to write to the log.
"""

on_ungoverned: Callable[[str], None] | None = None
"""Called with the host of each ungoverned call to an inference path; it must not fail.

For a websocket session with an inference server it is called with `SOCKET` and the host, for a call of an SDK whose URL
has no host with `NO_HOST`, and for a refused request that asks for no inference with `REFUSED` and the host.
"""

NO_HOST = "(no host)"
"""Name of the host of a call whose URL has none: the address of a server without `https://` is such a URL."""

REFUSED = "429 "
"""Prefix of the host of a refused request to another endpoint than that of inference."""

SOCKET = "wss://"
"""Prefix of the host of a websocket session."""


around_wait: Callable[[], AbstractContextManager[object]] | None = None
"""Called when a call begins to wait, in the thread or task of the caller; it must not fail.

The context that it returns is open until the wait ends. A call may wait several times.
"""
