"""Run every LLM call at your provider's true limit. Nothing to configure.

    import tidegate
    client = tidegate.wrap(openai.AsyncOpenAI())

Public names are loaded on first use, so that `import tidegate` costs next to nothing and imports no SDK.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tidegate.core.permit import Permit as Permit
    from tidegate.core.vocabulary import Cost as Cost
    from tidegate.core.vocabulary import Key as Key
    from tidegate.default import registry as registry
    from tidegate.errors import ConfigurationError as ConfigurationError
    from tidegate.errors import DeadlineExceeded as DeadlineExceeded
    from tidegate.errors import Error as Error
    from tidegate.errors import NotAdmitted as NotAdmitted
    from tidegate.errors import PermitMisuse as PermitMisuse
    from tidegate.installing import install as install
    from tidegate.installing import uninstall as uninstall
    from tidegate.nesting import disabled as disabled
    from tidegate.registering import register_provider as register_provider
    from tidegate.registries import NotReady as NotReady
    from tidegate.registries import RateLimitRegistry as RateLimitRegistry
    from tidegate.settings import Settings as Settings
    from tidegate.wrapping import wrap as wrap

__version__ = "0.1.0"

_HOMES = {
    "ConfigurationError": "tidegate.errors",
    "Cost": "tidegate.core.vocabulary",
    "DeadlineExceeded": "tidegate.errors",
    "Error": "tidegate.errors",
    "Key": "tidegate.core.vocabulary",
    "NotAdmitted": "tidegate.errors",
    "NotReady": "tidegate.registries",
    "Permit": "tidegate.core.permit",
    "PermitMisuse": "tidegate.errors",
    "RateLimitRegistry": "tidegate.registries",
    "Settings": "tidegate.settings",
    "disabled": "tidegate.nesting",
    "install": "tidegate.installing",
    "register_provider": "tidegate.registering",
    "registry": "tidegate.default",
    "uninstall": "tidegate.installing",
    "wrap": "tidegate.wrapping",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
