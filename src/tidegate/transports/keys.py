"""The key of a request, whose quota it counts against: from where it goes and from the credential that pays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qs

from tidegate import providers, redaction
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.credentials import is_secret_segment, masked
from tidegate.core.values import Inquiry, Key
from tidegate.transports.principals import stable


class Route:
    """Where requests go, without the query, and which provider's table holds there; equal ones need not be the same."""

    __slots__ = ("facts", "host", "names", "path", "place", "port", "provider", "scheme")

    def __init__(self, provider: providers.Provider, scheme: str, host: str, port: int | None, path: str) -> None:
        self.provider = provider
        self.scheme = scheme
        self.host = host
        self.port = port
        self.path = path
        self.place = provider.endpoint(path)
        self.names = _credential_names(provider)
        self.facts = (provider.name, scheme, host, port, path)


class Sending(NamedTuple):
    """A request as its HTTP stack sees it, before it is queued.

    `headers` are its raw pairs, in any case, read once; `body` is None where it cannot be read twice. `query` is the
    raw one. `account` distinguishes credentials that the stack adds only when it sends (see `principals`).
    """

    route: Route
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes | None
    replayable: bool
    model: str = ""
    query: bytes = b""
    account: str = ""


def key_of(registry: RateLimitRegistry, sending: Sending, inquiry: Inquiry) -> Key:
    """Return the key of a request; keys are interned, so that a client's next request finds its own."""
    route = sending.route
    provider, names = route.provider, route.names
    headers = dict(sending.headers)
    found: Iterable[bytes] = names.intersection(headers)
    if not found:
        headers = {name.lower(): value for name, value in headers.items()}
        found = names.intersection(headers)
    secrets = tuple([(name, stable(headers[name])) for name in sorted(found)])
    if sending.query and provider.query_credential:
        secrets += _asked(provider, sending.query)
    if provider.credential_part is not None:
        secrets = tuple([(name, _payer(provider, value)) for name, value in secrets])
    account = sending.account if "authorization" in provider.credential else ""
    facts = (route.facts, hash((secrets, account)), inquiry.model)
    key = registry.interned.get(facts)
    if key is None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in secrets}
        credential = providers.credential_of(provider, given.get)
        address = base_url(route)
        # Only where the key is new: a request that is like one before costs nothing.
        redaction.remember(_credentials(headers, sending.query, address))
        key = Key(
            provider.name,
            masked(address, registry.digest, redaction.is_known),
            registry.digest(f"{credential}\naccount={account}" if account else credential),
            providers.scope(provider, inquiry, route.host, route.path),
            providers.family_of(provider, route.path),
        )
        registry.intern(facts, key)
    return key


def _credentials(headers: dict[bytes, bytes], query: bytes, address: str) -> Iterator[str]:
    """Yield the credentials that a request shows, whether or not its provider's table names where they stand."""
    yield from redaction.in_headers(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()
    )
    yield from redaction.in_query(query.decode("latin-1"))
    yield from filter(is_secret_segment, address.split("/")[3:])


@lru_cache(maxsize=256)
def _credential_names(provider: providers.Provider) -> frozenset[bytes]:
    # As the SDKs and the HTTP libraries spell them; another spelling is looked for only where none of these is there.
    spelt = {name for plain in provider.credential for name in (plain, plain.title())}
    spelt |= {name.replace("Openai", "OpenAI").replace("Api-Key", "API-Key") for name in spelt}
    return frozenset(name.encode("ascii") for name in spelt)


def _asked(provider: providers.Provider, query: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The credentials in the query, as the headers that they stand for."""
    given = parse_qs(query[:4096].decode("latin-1"))
    pairs = [(header, given[name][0]) for name, header in provider.query_credential if name in given]
    return tuple((header.encode("ascii"), value.encode("latin-1", "replace")) for header, value in pairs)


def _payer(provider: providers.Provider, value: bytes) -> bytes:
    return providers.payer(provider, value.decode("latin-1")).encode("latin-1")


def base_url(route: Route) -> str:
    """Scheme, host and port; for a server known by its base URL alone also the path before the endpoint.

    A credential may stand in that path: `masked` takes it out.
    """
    port = f":{route.port}" if route.port is not None else ""
    host = f"[{route.host}]" if ":" in route.host else route.host
    origin = f"{route.scheme}://{host}{port}"
    if route.provider.hosts:
        return origin
    return origin + _ENDPOINT.sub("", route.path.removesuffix("/"), count=1)


_ENDPOINT = re.compile(
    r"/(?:chat/completions|v1(?:alpha|beta1?)?/(?:interactions|(?:models|tunedModels|publishers|projects)/.+)|[^/]*)$"
)
"""The end of a path that no base URL has: Google's SDK adds the version itself."""
