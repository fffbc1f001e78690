"""The HTTP stacks that are governed, one module of this package each."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Protocol, cast

from tidegate.transports import aiohttp, botocore, httpx, requests
from tidegate.transports.patches import Patches


class Transport(Protocol):
    """The interface of each stack: a `Clients`, or a module with these names where its clients are marked otherwise."""

    MODULES: tuple[str, ...]
    """The modules it governs, whether or not they are loaded."""
    patches: Patches
    put: Callable[[ModuleType], None]
    loaded: Callable[[], list[ModuleType]]
    module_of: Callable[[object], ModuleType]
    is_client: Callable[[object], bool]
    remember: Callable[[object], None]
    remembered: Callable[[], bool]


TRANSPORTS = cast("tuple[Transport, ...]", (httpx.TRANSPORT, requests.TRANSPORT, aiohttp.TRANSPORT, botocore.TRANSPORT))


def transport_of(client: object) -> Transport | None:
    """The transport of an HTTP client, None for what is none."""
    return next((transport for transport in TRANSPORTS if transport.is_client(client)), None)
