"""`tidegate.register_provider(provider)`: a table of one's own, beside those that tidegate comes with."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from tidegate.errors import ConfigurationError
from tidegate.providers import Provider, judge
from tidegate.providers._index import add

_lock = threading.Lock()
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
