"""Connection pools of HTTP clients: how many calls a client can have in flight at once.

A pool is looked at when several calls are in flight, so that a program with few calls pays nothing. Its size is read
from attributes that the libraries do not publish: where one is missing, the pool counts as unknown.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from tidegate.admission.key_table import KeyTable
from tidegate.core.limiter_state import Permit

LOOK_FROM = 8
"""Calls in flight from which on a client's pool is looked at. Chosen: below the smallest default, aiohttp's 100, by
far, and above what sequential programs have in flight."""


def note_httpx(registry: KeyTable, permit: Permit, client: Any, url: Any) -> None:
    """Record the pool that an httpx or httpx2 client uses for `url`. With HTTP/2, calls share a connection."""
    if not _is_new(permit, client):
        return
    try:
        pool = client._transport_for_url(url)._pool
        size = 0 if pool._http2 else int(pool._max_connections)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return
    registry.note_pool(permit.key, pool, size)


def note_aiohttp(registry: KeyTable, permit: Permit, session: Any) -> None:
    if not _is_new(permit, session):
        return
    connector = getattr(session, "connector", None)
    sizes = [getattr(connector, name, 0) for name in ("limit", "limit_per_host")]
    given = [size for size in sizes if isinstance(size, int) and size > 0]
    if connector is not None:
        registry.note_pool(permit.key, connector, min(given, default=0))


def _is_new(permit: Permit, client: Any) -> bool:
    """Return whether the last call of the key came from another client, so that a client is looked at once."""
    bound = permit.state.bound
    if bound.client is not None and bound.client() is client:
        return False
    bound.client = ref(client)
    return True
