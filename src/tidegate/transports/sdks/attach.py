"""Binding of one client to a registry, for any server; `tidegate.wrap` is the public function."""

from __future__ import annotations

from typing import TypeVar

from tidegate.admission import redaction
from tidegate.admission.arguments import checked_max_wait, checked_priority
from tidegate.admission.key_table import KeyTable
from tidegate.transports.governance import BINDING, Binding, policy_of
from tidegate.transports.sdks.sdk import Sdk
from tidegate.transports.sdks.table import SDKS, sdk_of
from tidegate.transports.table import TRANSPORTS, transport_of

T = TypeVar("T")

HTTP_CLIENTS = "httpx.Client, AsyncClient; httpx2.Client, AsyncClient; requests.Session; aiohttp.ClientSession"
WRAPPABLE = "; ".join([*(f"{sdk.package}.{', '.join(sdk.clients)}" for sdk in SDKS), HTTP_CLIENTS])


def attach(client: T, registry: KeyTable, max_wait: float | None, priority: int) -> T:
    """Bind a client to a registry, and return it; see `tidegate.wrap`.

    `max_wait` is in seconds, None for the registry's setting. An option out of range raises at once, because below an
    SDK the error would stay hidden.
    """
    if max_wait is not None:
        checked_max_wait(max_wait)
    checked_priority(priority)
    senders, sdk = _senders(client)
    family = sdk.family_of(client) if sdk is not None else None
    binding = Binding(registry, policy_of(registry, max_wait), priority, family, any_host=True)
    for sender in senders:
        _put(sender)
        # This acts as `setattr`, without the warning of aiohttp's sessions about foreign attributes.
        object.__setattr__(sender, BINDING, binding)
    redaction.remember(redaction.in_client(client))
    if sdk is not None:
        sdk.hooks.put()
    return client


def _senders(client: object) -> tuple[list[object], Sdk | None]:
    """Return the objects that carry the binding of `client` (its HTTP clients, or their carrier), and its SDK."""
    if transport_of(client) is not None:
        return [client], None
    sdk = sdk_of(client)
    senders: list[object] = []
    if sdk is not None:
        senders += [each for each in sdk.http_clients(client) if transport_of(each) is not None]
        carrier = sdk.carrier_of(client)
        senders += [carrier] if carrier is not None else []
    if not senders:
        if isinstance(client, type):
            raise TypeError(f"client not wrapped: {client.__qualname__} is a class; wrap an instance of it")
        raise TypeError(
            f"client not wrapped: tidegate does not know {type(client).__module__}.{type(client).__qualname__}; "
            f"it can wrap {WRAPPABLE}"
        )
    return senders, sdk


def _put(sender: object) -> None:
    """Patch the stack of an HTTP client, or every stack below a carrier; the patches stay on while it lives."""
    transport = transport_of(sender)
    if transport is not None:
        transport.put(transport.module_of(sender))
        transport.remember(sender)
        return
    for each in TRANSPORTS:
        for module in each.loaded():
            each.put(module)
        each.remember(sender)
