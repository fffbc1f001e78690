"""Which requests are governed, by which registry and how: the mark that `wrap` and `install` leave.

A transport asks `marked` and `provider_of` before it sends; None from either means: pass through untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple

from tidegate import providers
from tidegate.core.dialogue import Policy
from tidegate.nesting import passes
from tidegate.registries import RateLimitRegistry
from tidegate.transports.carrying import carried

MARK = "_tidegate_mark"
"""The attribute that `wrap` leaves on an HTTP client, or on an SDK's object that sends through clients of its own."""


def nobody(host: str) -> str | None:
    """No host is governed by its name."""
    return None


class Mark(NamedTuple):
    """How a client is governed; `family` is its SDK's (see `providers.adopt`), None for a bare HTTP client.

    With `any_host` every inference path is governed, else those of known providers, of local servers, and of the hosts
    that `named` knows, with the family of what they speak.
    """

    registry: RateLimitRegistry
    policy: Policy
    priority: int = 0
    family: str | None = None
    any_host: bool = False
    named: Callable[[str], str | None] = nobody

    def __deepcopy__(self, memo: object) -> Mark:
        """The same: the copy of a client counts at the registry of the first."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """None: a registry stays in its process, and elsewhere the client is as if it had never been wrapped."""
        return type(None), ()


def policy_of(registry: RateLimitRegistry, max_wait: float | None = None) -> Policy:
    """What a client's calls may do by themselves: transient failures are its SDK's to repeat."""
    return Policy(registry.settings.max_wait if max_wait is None else max_wait, 1)


class Installation:
    """The process-wide mark, while tidegate is installed."""

    mark: Mark | None = None


def marked(client: Any) -> Mark | None:
    """The mark that decides over a client's requests: its own, else the carrier's, else that of the installation.

    None: nobody's.
    """
    mark = getattr(client, MARK, None)
    if mark is None:
        mark = carried() or Installation.mark
    if mark is None or mark.registry.disabled or passes():
        return None
    return mark


def provider_of(mark: Mark, host: str, path: str) -> providers.Provider | None:
    """Whose inference endpoint `path` on `host` is, as far as `mark` governs it; None: pass through."""
    if mark.any_host:
        return providers.adopt(host, path, mark.family)
    provider = providers.recognise(host, path)
    if provider is not None:
        return provider
    family = mark.named(host)
    return providers.adopt(host, path, family or "openai") if family is not None or is_local(host) else None


@lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Whether `host` is this machine or an address of a private network: self-hosted servers live there."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_private
