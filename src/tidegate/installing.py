"""`tidegate.install()`: governs every client of the process, made before or after, of stacks loaded or yet to come."""

from __future__ import annotations

import os
import threading
from functools import partial
from types import ModuleType
from urllib.parse import urlsplit

from tidegate.default import registry as default_registry
from tidegate.registries import RateLimitRegistry
from tidegate.transports.govern import Installation, Mark, policy_of
from tidegate.transports.patching import when_imported
from tidegate.transports.stacks import TRANSPORTS, Transport

BASE_URLS = (
    "OPENAI_BASE_URL",
    "ANTHROPIC_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "AWS_BEDROCK_BASE_URL",
)
"""Variables by which the SDKs themselves are pointed elsewhere (openai 3.52 and anthropic 2.11 `_client.py`).

Those of Bedrock are read by anthropic's `lib/bedrock/_client.py` and openai's `providers/bedrock.py`.
"""

_lock = threading.Lock()
_hooked = False


def install(registry: RateLimitRegistry | None = None) -> tuple[str, ...]:
    """Governs inference requests of the whole process; returns the modules patched so far, later ones follow.

    Known providers, servers on this machine or a private network, and the hosts of `Settings.hosts` and of the SDKs'
    own base-URL variables are governed; everything else passes through untouched. Repeating it changes nothing but the
    registry, where one is given.
    """
    global _hooked
    with _lock:
        if registry is None:
            registry = Installation.mark.registry if Installation.mark is not None else default_registry()
        Installation.mark = Mark(registry, policy_of(registry), hosts=_hosts(registry))
        if not _hooked:
            _hooked = True
            for transport in TRANSPORTS:
                for name in transport.MODULES:
                    when_imported(name, partial(_put, transport))
        loaded = [(transport, module) for transport in TRANSPORTS for module in transport.loaded()]
        for transport, module in loaded:
            _put(transport, module)
        return tuple(module.__name__ for _, module in loaded)


def uninstall() -> None:
    """Undoes `install`: clients that were wrapped stay governed, without any the patches come off."""
    with _lock:
        Installation.mark = None
        for transport in TRANSPORTS:
            if not transport.remembered():
                transport.patches.remove()


def _put(transport: Transport, module: ModuleType) -> None:
    if Installation.mark is not None:
        transport.put(module)


def _hosts(registry: RateLimitRegistry) -> frozenset[str]:
    named = {host.lower() for host in registry.settings.hosts}
    for variable in BASE_URLS:
        host = urlsplit(os.environ.get(variable, "")).hostname
        if host:
            named.add(host)
    return frozenset(named)
