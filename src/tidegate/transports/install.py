"""Public functions `install`, `uninstall`, `wrap` and `register_provider`.

`install` governs every client of the process, made before or after, of HTTP stacks loaded now or later. It also counts
the websocket sessions with inference servers, which are not governed: a session of Realtime or of the Responses API
sends many requests over one connection, below no HTTP client. The libraries websockets (14 and later) and aiohttp open
such sessions for the SDKs. Nothing is patched for them outside of `tidegate run`, which alone reads the counts.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tidegate import providers
from tidegate.admission import hooks
from tidegate.admission.key_table import KeyTable
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.errors import ConfigurationError
from tidegate.providers import BASE_URL_VARIABLES, Provider, add, judge
from tidegate.settings import Settings
from tidegate.transports import framework_timeouts, gateway_url
from tidegate.transports.governance import Binding, Installation, policy_of
from tidegate.transports.patches import Clients, Patches, when_imported
from tidegate.transports.sdks import SDKS, TRANSPORTS, attach

socket_patches = Patches()

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


def watch_sockets() -> None:
    """Count the sessions that the process opens from now on, if `tidegate run` reads such counts."""
    if hooks.on_ungoverned is not None:
        when_imported("websockets.client", _put_websockets)
        when_imported("aiohttp.client", _put_aiohttp)


def _put_websockets(module: ModuleType) -> None:
    # Every client of the package makes this object for its handshake: of threads, asyncio and trio.
    protocol = getattr(module, "ClientProtocol", None)
    if isinstance(protocol, type):
        socket_patches.put(protocol, "__init__", _by_websockets)


def _put_aiohttp(module: ModuleType) -> None:
    session = getattr(module, "ClientSession", None)
    if isinstance(session, type) and hasattr(session, "_ws_connect"):
        socket_patches.put(session, "_ws_connect", _by_aiohttp)


def _by_websockets(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    address = args[0] if args else kwargs.get("uri")
    _count_session(getattr(address, "host", None), getattr(address, "path", None))
    return wrapped(*args, **kwargs)


def _by_aiohttp(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        address = urlsplit(str(args[0] if args else kwargs.get("url")))
        _count_session(address.hostname, address.path)
    except ValueError:
        pass  # no address: the library says so
    return wrapped(*args, **kwargs)


def _count_session(host: object, path: object) -> None:
    hook = hooks.on_ungoverned
    if hook is not None and isinstance(host, str) and isinstance(path, str) and is_inference(host, path):
        hook(f"{hooks.SOCKET}{host}")


MAX_UNNAMED_HOSTS = 1024
"""Hosts remembered as named by no variable, then forgotten at once. Chosen: far above one program's."""

T = TypeVar("T")

logger = logging.getLogger("tidegate")
_lock = threading.RLock()
_hooked = False


def install(registry: RateLimitRegistry | None = None) -> tuple[str, ...]:
    """Govern the inference requests of the whole process; return the modules patched so far.

    Later ones follow. Governed are known providers, servers on this machine or a private network, the hosts in
    `Settings.hosts`, and inference calls of known SDKs to any host. Hosts in the base-URL variables of SDKs and
    frameworks, set by now or later, are governed too. All other requests pass through untouched. Timeouts of eval
    frameworks that a wait would exceed are stretched (`tidegate docs clocks`). A repeated call changes only the
    registry, if one is given. Raise `ConfigurationError` for a `registry` that is no registry.
    """
    global _hooked
    if registry is not None and not isinstance(registry, KeyTable):
        raise ConfigurationError("registry", registry, "a RateLimitRegistry")
    gateway_url.GatewayRoot.read()
    with _lock:
        table: KeyTable | None = registry
        if table is None:
            table = Installation.binding.registry if Installation.binding is not None else default_registry()
        Installation.binding = Binding(table, policy_of(table), named=_named(table))
        if not _hooked:
            for transport in TRANSPORTS:
                for name in transport.MODULES:
                    when_imported(name, partial(_put, transport))
            watch_sockets()
            _hooked = True
        for sdk in SDKS:
            sdk.hooks.put()
        loaded = [(transport, module) for transport in TRANSPORTS for module in transport.loaded()]
        for transport, module in loaded:
            _put(transport, module)
        framework_timeouts.stretch(table.settings)
        return tuple(module.__name__ for _, module in loaded)


def uninstall() -> None:
    """Undo `install`. Clients that the program wrapped itself stay governed.

    The patches of an HTTP stack are removed, unless a wrapped client needs them.
    """
    with _lock:
        Installation.binding = None
        framework_timeouts.restore()
        for transport in TRANSPORTS:
            if not transport.remembered():
                transport.patches.remove()
        if not any(transport.remembered() for transport in TRANSPORTS):
            for sdk in SDKS:
                sdk.hooks.remove()


def _put(transport: Clients, module: ModuleType) -> None:
    if Installation.binding is None:
        return
    try:
        transport.put(module)
    except Exception as error:
        # An unknown version, or another module of the same name: the program's import must not fail.
        logger.warning(
            "module %s not patched: %s: %s; calls through it may be ungoverned",
            module.__name__,
            type(error).__name__,
            error,
        )


def _named(registry: KeyTable) -> Callable[[str], str | None]:
    """Return a function that returns the family of a host that is governed by name, None for any other."""
    known = named_hosts(registry.settings)
    missed: dict[str, int] = {}

    # Many programs read their variables from a file, after their imports or first calls. So a host is looked up again
    # when the number of variables has changed: 75 look-ups at each call would dominate its time.
    def family(host: str) -> str | None:
        if host in known:
            return known[host]
        variables = len(os.environ)
        if missed.get(host) == variables:
            return None
        found = named_hosts(registry.settings).get(host)
        if found is not None:
            known[host] = found
        else:
            if len(missed) >= MAX_UNNAMED_HOSTS:
                missed.clear()
            missed[host] = variables
        return found

    return family


def named_hosts(settings: Settings) -> dict[str, str]:
    """Return the hosts that settings and variables name now, each with the family of the API that it serves."""
    named = {host.lower(): "openai" for host in settings.hosts}
    for variable, family, _ in BASE_URL_VARIABLES:
        value = os.environ.get(variable)
        host = host_of(gateway_url.resolved(value)) if value else ""
        if host:
            # Two SDKs point to this host: only a path that is specific to one API distinguishes them.
            named[host] = family if named.get(host, family) == family else "openai"
    return named


def host_of(address: str) -> str:
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""


_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def register_provider(provider: Provider) -> None:
    """Apply a table to every request that is sent from now on, in all registries, wrapped clients and installs.

    Its parts are in `tidegate.providers`; each row was checked when it was made. A table without hosts is found only by
    its name, in the key of an `execute`. Raise `ConfigurationError` for a name or a host that another table has, and
    for a table that does not state what a bare 429 means. Any thread may call this.
    """
    if not isinstance(provider, Provider):
        raise ConfigurationError("provider", provider, "a tidegate.providers.Provider")
    if judge(provider, 429, (), None, _ANY_TIME).row == "unknown":
        field = f"Provider({provider.name}).common_errors"
        raise ConfigurationError(field, provider.common_errors, "rows with one for status 429, as COMMON_ERRORS has")
    with _lock:
        add(provider)


def wrap(
    client: T, *, registry: RateLimitRegistry | None = None, max_wait: float | None = None, priority: int = 0
) -> T:
    """Return the same client; from now on each of its attempts passes the queue of its key.

    `max_wait` (seconds) and `priority` (higher goes first within a key) hold for this client. They default to the
    registry's setting and 0. Copies that share its HTTP client (`with_options`, `copy`) are governed too. Wrapping
    again replaces these options. Raise `TypeError` for a client that cannot be wrapped, and `ConfigurationError` for an
    option out of range.
    """
    return attach(client, registry or default_registry(), max_wait, priority)
