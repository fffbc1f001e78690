"""Middleware that runs every LLM call at the provider's true limit, without configuration.

    import tidegate
    client = tidegate.wrap(openai.AsyncOpenAI())

Public names are loaded on first use, so `import tidegate` costs almost nothing and imports no SDK.
`tidegate run` imports the package before pytest, so pytest does not rewrite its assertions (PYTEST_DONT_REWRITE).
"""

from __future__ import annotations

from importlib import import_module

from tidegate._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.admission.audit import audit as audit
    from tidegate.admission.context import disabled as disabled
    from tidegate.admission.registry import registry as registry
    from tidegate.core.values import Key as Key
    from tidegate.errors import CapacityTimeout as CapacityTimeout
    from tidegate.errors import ConfigurationError as ConfigurationError
    from tidegate.errors import DeadlineExceeded as DeadlineExceeded
    from tidegate.errors import Error as Error
    from tidegate.fallbacks import fallback as fallback
    from tidegate.pool import Failed as Failed
    from tidegate.pool import PoolStats as PoolStats
    from tidegate.pool import RowResult as RowResult
    from tidegate.pool import amap as amap
    from tidegate.pool import map as map
    from tidegate.providers.classification import classify as classify
    from tidegate.settings import Settings as Settings
    from tidegate.suspensions import Suspensions as Suspensions
    from tidegate.suspensions import after_failure as after_failure
    from tidegate.transports.install import install as install
    from tidegate.transports.install import register_provider as register_provider
    from tidegate.transports.install import uninstall as uninstall
    from tidegate.transports.install import wrap as wrap


_HOMES = {
    "CapacityTimeout": "tidegate.errors",
    "ConfigurationError": "tidegate.errors",
    "DeadlineExceeded": "tidegate.errors",
    "Error": "tidegate.errors",
    "Failed": "tidegate.pool",
    "Key": "tidegate.core.values",
    "PoolStats": "tidegate.pool",
    "RowResult": "tidegate.pool",
    "Settings": "tidegate.settings",
    "Suspensions": "tidegate.suspensions",
    "after_failure": "tidegate.suspensions",
    "audit": "tidegate.admission.audit",
    "classify": "tidegate.providers.classification",
    "disabled": "tidegate.admission.context",
    "fallback": "tidegate.fallbacks",
    "install": "tidegate.transports.install",
    "register_provider": "tidegate.transports.install",
    "registry": "tidegate.admission.registry",
    "uninstall": "tidegate.transports.install",
    "wrap": "tidegate.transports.install",
}

__all__ = ["__version__", *sorted(_HOMES)]

# A star import must not hide the builtin `map`.
_HOMES |= {"amap": "tidegate.pool", "map": "tidegate.pool"}

# `%load_ext tidegate` and `%unload_ext tidegate` of IPython call these.
_HOMES |= dict.fromkeys(("load_ipython_extension", "unload_ipython_extension"), "tidegate.integrations.ipython")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
