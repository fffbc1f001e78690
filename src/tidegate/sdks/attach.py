"""Binding of one client to a registry, whatever server it talks to; `tidegate.wrap` is its public face."""

from __future__ import annotations

from typing import TypeVar

from tidegate import redaction
from tidegate.admission.arguments import checked_max_wait, checked_priority
from tidegate.admission.key_table import KeyTable
from tidegate.sdks.sdk import Sdk
from tidegate.sdks.table import SDKS, sdk_of
from tidegate.transports.governance import MARK, Binding, policy_of
from tidegate.transports.table import TRANSPORTS, transport_of

T = TypeVar("T")

HTTP_CLIENTS = "httpx.Client, AsyncClient; httpx2.Client, AsyncClient; requests.Session; aiohttp.ClientSession"
WRAPPABLE = "; ".join([*(f"{sdk.package}.{', '.join(sdk.clients)}" for sdk in SDKS), HTTP_CLIENTS])


def attach(client: T, registry: KeyTable, max_wait: float | None, priority: int) -> T:
    """Bind a client to a registry, and return it; see `tidegate.wrap`.

    `max_wait` is in seconds, None for the registry's setting. Raise `TypeError` for a client that cannot be wrapped,
    and `ConfigurationError` for an option out of range: below an SDK nobody would find that.
    """
    if max_wait is not None:
        checked_max_wait(max_wait)
    checked_priority(priority)
    senders, sdk = _senders(client)
    family = sdk.family_of(client) if sdk is not None else None
    binding = Binding(registry, policy_of(registry, max_wait), priority, family, any_host=True)
    for sender in senders:
        _put(sender)
        # As `setattr` does, past the warning of aiohttp's sessions about attributes that are not their own.
        object.__setattr__(sender, MARK, binding)
    redaction.remember(redaction.in_client(client))
    if sdk is not None:
        sdk.hooks.put()
    return client


def _senders(client: object) -> tuple[list[object], Sdk | None]:
    """Return the bearers of `client`'s mark, its HTTP clients or what carries it to them, and its SDK."""
    if transport_of(client) is not None:
        return [client], None
    sdk = sdk_of(client)
    senders: list[object] = []
    if sdk is not None:
        senders += [each for each in sdk.http_clients(client) if transport_of(each) is not None]
        carrier = sdk.carrier_of(client)
        senders += [carrier] if carrier is not None else []
    if not senders:
        raise TypeError(
            f"tidegate cannot wrap a {type(client).__module__}.{type(client).__qualname__}; it can wrap {WRAPPABLE}"
        )
    return senders, sdk


def _put(sender: object) -> None:
    """Patches the stack of an HTTP client, or every stack below what carries a mark; they stay on while it lives."""
    transport = transport_of(sender)
    if transport is not None:
        transport.put(transport.module_of(sender))
        transport.remember(sender)
        return
    for each in TRANSPORTS:
        for module in each.loaded():
            each.put(module)
        each.remember(sender)
