"""Websocket sessions with inference servers, which are not governed: `tidegate run` counts them by host.

A session of Realtime or of the Responses API sends many requests over one connection, below no HTTP client. The
libraries websockets (14 and later) and aiohttp open such sessions for the SDKs. Nothing is patched outside of
`tidegate run`, as nobody reads the counts there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tidegate import providers
from tidegate.admission import hooks
from tidegate.transports.patches import Patches, when_imported

patches = Patches()

_ANYWHERE = re.compile(r"/v\d+[a-z]*/(?:realtime|responses)/?\Z|/openai/realtime/?\Z")
"""Paths of OpenAI's two websocket modes, on any host (openai 3.52 `resources/realtime`, `resources/responses`)."""

_OF_PROVIDERS = re.compile(r"/(?:realtime|responses|inference)/?\Z|BidiGenerateContent\Z")
"""Further paths, on hosts of known providers (google-genai 3.4.0 `live.py`; DashScope's `/api-ws/v1/inference`)."""


def is_inference(host: str, path: str) -> bool:
    """Return whether a websocket at `path` of `host` is a session with a model; `path` may have a query."""
    path = path.partition("?")[0]
    if _ANYWHERE.search(path) is not None:
        return True
    return providers.table_of(host) is not None and _OF_PROVIDERS.search(path) is not None


def watch() -> None:
    """Count the sessions that the process opens from now on, if `tidegate run` reads such counts."""
    if hooks.on_ungoverned is not None:
        when_imported("websockets.client", _put_websockets)
        when_imported("aiohttp.client", _put_aiohttp)


def _put_websockets(module: ModuleType) -> None:
    # Every client of the package makes this object for its handshake: of threads, asyncio and trio.
    protocol = getattr(module, "ClientProtocol", None)
    if isinstance(protocol, type):
        patches.put(protocol, "__init__", _by_websockets)


def _put_aiohttp(module: ModuleType) -> None:
    session = getattr(module, "ClientSession", None)
    if isinstance(session, type) and hasattr(session, "_ws_connect"):
        patches.put(session, "_ws_connect", _by_aiohttp)


def _by_websockets(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    address = args[0] if args else kwargs.get("uri")
    _count(getattr(address, "host", None), getattr(address, "path", None))
    return wrapped(*args, **kwargs)


def _by_aiohttp(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        address = urlsplit(str(args[0] if args else kwargs.get("url")))
        _count(address.hostname, address.path)
    except ValueError:
        pass  # no address: the library says so
    return wrapped(*args, **kwargs)


def _count(host: object, path: object) -> None:
    hook = hooks.on_ungoverned
    if hook is not None and isinstance(host, str) and isinstance(path, str) and is_inference(host, path):
        hook(f"{hooks.SOCKET}{host}")
