"""`tidegate.install()`: governs every client of the process, made before or after, of stacks loaded or yet to come."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from types import ModuleType
from urllib.parse import urlsplit

from tidegate.clocks import winding
from tidegate.default import registry as default_registry
from tidegate.registries import RateLimitRegistry
from tidegate.sdks.table import SDKS
from tidegate.transports.marks import Installation, Mark, policy_of
from tidegate.transports.patching import when_imported
from tidegate.transports.stacks import TRANSPORTS, Transport

BASE_URLS = {
    "OPENAI_BASE_URL": "openai",
    "ANTHROPIC_BASE_URL": "openai",
    "AZURE_OPENAI_ENDPOINT": "openai",
    "ANTHROPIC_BEDROCK_BASE_URL": "bedrock",
    "AWS_BEDROCK_BASE_URL": "bedrock",
    "GOOGLE_GEMINI_BASE_URL": "gemini",
    "GOOGLE_VERTEX_BASE_URL": "gemini",
    "GROQ_BASE_URL": "groq",
    "TOGETHER_BASE_URL": "together",
    "CO_API_URL": "cohere",
    "OLLAMA_HOST": "ollama",
    "REPLICATE_BASE_URL": "replicate",
}
"""Variables by which the SDKs themselves are pointed elsewhere, and the family of who answers there.

Source: openai 3.52, anthropic 2.11, groq 1.7.0 and together 2.36.0 `_client.py`, google-genai 3.4.0 `_base_url.py`,
cohere 7.3.1 `client.py`, ollama 0.6.3 `_client.py`, replicate 1.0.7 `client.py`.
"""

logger = logging.getLogger("tidegate")
_lock = threading.Lock()
_hooked = False


def install(registry: RateLimitRegistry | None = None) -> tuple[str, ...]:
    """Governs inference requests of the whole process; returns the modules patched so far, later ones follow.

    Known providers, servers on this machine or a private network, and the hosts of `Settings.hosts` and of the SDKs'
    own base-URL variables, set by now or later, are governed; everything else passes through untouched. Timeouts of
    eval frameworks that a wait would run into are stretched (docs/clocks.md). Repeating it changes nothing but the
    registry, where one is given.
    """
    global _hooked
    with _lock:
        if registry is None:
            registry = Installation.mark.registry if Installation.mark is not None else default_registry()
        Installation.mark = Mark(registry, policy_of(registry), named=_named(registry))
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
        winding.stretch(registry.settings)
        return tuple(module.__name__ for _, module in loaded)


def uninstall() -> None:
    """Undoes `install`: clients that were wrapped stay governed, without any the patches come off."""
    with _lock:
        Installation.mark = None
        winding.restore()
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


def _named(registry: RateLimitRegistry) -> Callable[[str], str | None]:
    """What tells the family of a host that is governed by name, None of any other."""
    by_now = _hosts(registry)

    # Many programs read their variables from a file, after their imports: a host that is new is asked of them again.
    @lru_cache(maxsize=1024)
    def family(host: str) -> str | None:
        return by_now.get(host) or _hosts(registry).get(host)

    return family


def _hosts(registry: RateLimitRegistry) -> dict[str, str]:
    """The hosts that are named now, each with the family of what it speaks."""
    named = {host.lower(): "openai" for host in registry.settings.hosts}
    for variable, family in BASE_URLS.items():
        value = os.environ.get(variable, "")
        try:
            host = urlsplit(value if "//" in value else f"//{value}").hostname
        except ValueError:
            continue
        if host:
            # Where two SDKs are pointed to one host, a path that names its own dialect is all that can be told by.
            named[host] = family if named.get(host, family) == family else "openai"
    return named
