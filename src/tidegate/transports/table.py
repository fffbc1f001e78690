"""The governed HTTP stacks. Each is one module of this package."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Protocol, cast

from tidegate.transports import aiohttp, botocore, httpx, requests
from tidegate.transports.patches import Patches


class Transport(Protocol):
    """The interface of an HTTP stack: a `Clients` object, or a module with the same names."""

    MODULES: tuple[str, ...]
    """The modules that it governs, loaded or not."""
    patches: Patches
    put: Callable[[ModuleType], None]
    loaded: Callable[[], list[ModuleType]]
    module_of: Callable[[object], ModuleType]
    is_client: Callable[[object], bool]
    remember: Callable[[object], None]
    remembered: Callable[[], bool]


TRANSPORTS = cast("tuple[Transport, ...]", (httpx.TRANSPORT, requests.TRANSPORT, aiohttp.TRANSPORT, botocore.TRANSPORT))


def transport_of(client: object) -> Transport | None:
    return next((transport for transport in TRANSPORTS if transport.is_client(client)), None)
