"""`tidegate.install()`: governs every client of the process, made before or after, of stacks loaded or yet to come.

`tidegate.register_provider(provider)`: a table of one's own, beside those that tidegate comes with.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import TypeVar
from urllib.parse import urlsplit

from tidegate.admission.key_table import KeyTable
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.errors import ConfigurationError
from tidegate.framework_timeouts import patch
from tidegate.providers import BASE_URL_VARIABLES, Provider, add, judge
from tidegate.sdks.attach import attach
from tidegate.sdks.table import SDKS
from tidegate.settings import Settings
from tidegate.transports.governance import Binding, Installation, policy_of
from tidegate.transports.patches import when_imported
from tidegate.transports.table import TRANSPORTS, Transport

MOST_MISSED = 1024
"""Hosts of which it is kept that no variable names them."""

T = TypeVar("T")

logger = logging.getLogger("tidegate")
_lock = threading.Lock()
_hooked = False


def install(registry: RateLimitRegistry | None = None) -> tuple[str, ...]:
    """Governs inference requests of the whole process; returns the modules patched so far, later ones follow.

    Known providers, servers on this machine or a private network, the hosts of `Settings.hosts` and of the base-URL
    variables of SDKs and frameworks, set by now or later, and inference calls of known SDKs to any host are governed;
    everything else passes through untouched. Timeouts of eval frameworks that a wait would run into are stretched
    (docs/clocks.md). Repeating it changes nothing but the registry, where one is given.
    """
    global _hooked
    with _lock:
        table: KeyTable | None = registry
        if table is None:
            table = Installation.mark.registry if Installation.mark is not None else default_registry()
        Installation.mark = Binding(table, policy_of(table), named=_named(table))
        if not _hooked:
            for transport in TRANSPORTS:
                for name in transport.MODULES:
                    when_imported(name, partial(_put, transport))
            _hooked = True
        for sdk in SDKS:
            sdk.hooks.put()
        loaded = [(transport, module) for transport in TRANSPORTS for module in transport.loaded()]
        for transport, module in loaded:
            _put(transport, module)
        patch.stretch(table.settings)
        return tuple(module.__name__ for _, module in loaded)


def uninstall() -> None:
    """Undoes `install`: clients that were wrapped stay governed, without any the patches come off."""
    with _lock:
        Installation.mark = None
        patch.restore()
        for transport in TRANSPORTS:
            if not transport.remembered():
                transport.patches.remove()
        if not any(transport.remembered() for transport in TRANSPORTS):
            for sdk in SDKS:
                sdk.hooks.remove()


def _put(transport: Transport, module: ModuleType) -> None:
    if Installation.mark is None:
        return
    try:
        transport.put(module)
    except Exception as error:
        # Another version than any we know, or another module of the same name: the program's import must not fail.
        logger.warning("%s cannot be governed: %s: %s", module.__name__, type(error).__name__, error)


def _named(registry: KeyTable) -> Callable[[str], str | None]:
    """Return what tells the family of a host that is governed by name, None of any other."""
    known = named_hosts(registry.settings)
    missed: dict[str, int] = {}

    # Many programs read their variables from a file, after their imports or first calls. A host is looked for again
    # when variables have come or gone: 75 look-ups at each call would take longer than all else.
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
            if len(missed) >= MOST_MISSED:
                missed.clear()
            missed[host] = variables
        return found

    return family


def named_hosts(settings: Settings) -> dict[str, str]:
    """Return the hosts that settings and variables name now, each with the family of what it speaks."""
    named = {host.lower(): "openai" for host in settings.hosts}
    for variable, family, _ in BASE_URL_VARIABLES:
        value = os.environ.get(variable)
        host = host_of(value) if value else ""
        if host:
            # Where two SDKs are pointed to one host, a path that names its own dialect is all that can be told by.
            named[host] = family if named.get(host, family) == family else "openai"
    return named


def host_of(address: str) -> str:
    """Return the host of a URL, or of an address without a scheme; empty where there is none."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""


_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def register_provider(provider: Provider) -> None:
    """Makes a table hold for every request that is sent from now on, in all registries, wrapped clients and installs.

    Its parts are in `tidegate.providers`; each row was checked when it was made. One without hosts is found by its
    name alone, in the key of an `execute`. Raises `ConfigurationError` for a name or a host that a table has already,
    and for a table that does not say what a bare 429 means. May be called from any thread.
    """
    if not isinstance(provider, Provider):
        raise ConfigurationError("provider", provider, "a tidegate.providers.Provider")
    if judge(provider, 429, (), None, _ANY_TIME).row == "unknown":
        field = f"Provider({provider.name}).common_errors"
        raise ConfigurationError(field, provider.common_errors, "has a row for status 429, as COMMON_ERRORS does")
    with _lock:
        add(provider)


def wrap(
    client: T, *, registry: RateLimitRegistry | None = None, max_wait: float | None = None, priority: int = 0
) -> T:
    """Return the same client; from now on each of its attempts passes the queue of its key.

    `max_wait` (seconds) and `priority` (higher goes first within a key) hold for this client; by default the
    registry's setting and 0. Copies that share its HTTP client (`with_options`, `copy`) are governed too. Wrapping
    again replaces these options. Raise `TypeError` for a client that cannot be wrapped, and `ConfigurationError` for
    an option out of range.
    """
    return attach(client, registry or default_registry(), max_wait, priority)
