"""The process's default registry, made on first use."""

from __future__ import annotations

import threading

from tidegate.registries import RateLimitRegistry

_lock = threading.Lock()
_registry: RateLimitRegistry | None = None


def registry() -> RateLimitRegistry:
    """The default `RateLimitRegistry` of this process; its settings are those of the environment at first use."""
    global _registry
    with _lock:
        if _registry is None:
            _registry = RateLimitRegistry()
        return _registry
