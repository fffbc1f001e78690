"""Routes that a module adds to the page, with the task that they need while the server runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute

Work = Callable[[], contextlib.AbstractAsyncContextManager[Any]]
"""Context manager that is entered when the server begins, and left when it ends."""


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes of one module, in their order. Their data belongs below `/api/`, where the token is needed.

    `work` runs while the server does.
    """

    routes: Sequence[BaseRoute]
    work: Work = contextlib.AsyncExitStack
