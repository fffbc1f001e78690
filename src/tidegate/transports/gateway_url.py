"""URLs below the root of a gateway: each names the real server, so governed processes can leave the gateway out.

Theory of operation. The root is `http://127.0.0.1:PORT/TOKEN`. Below it, the first segment of the path is the host of
the real server, and the rest is its path: `ROOT/api.openai.com/v1`. A server without TLS follows a segment `http`:
`ROOT/http/localhost:8000/v1`. A process that governs its own calls sends them to the real server. Their keys are then
those that they have without the gateway.
"""

from __future__ import annotations

import os
import re
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple
from urllib.parse import urlsplit

from tidegate.admission.context import current_scope

VARIABLE = "TIDEGATE_GATEWAY"
"""Variable with the root of the gateway, without a slash at its end."""

LOOPBACK = ("http://127.0.0.1:", "http://localhost:", "http://[::1]:")
"""Beginnings of a root. Requests to any other address are never redirected."""

PLAIN = "http"
"""Segment before the host of a server without TLS."""

PORTS = {"http": 80, "https": 443}
"""Ports that an address leaves out, by scheme."""

AUTHORITY = re.compile(
    r"(?:(?P<name>[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*)\.?|\[(?P<ip>[0-9a-f:.]{2,45})\])(?::(?P<port>[0-9]{0,5}))?"
)
"""Host and port of a URL, in lower case: no user name, no character that one reader of URLs takes for another part."""


class RealServer(NamedTuple):
    """Server behind a path below the root: its scheme, its address by `address_of`, and the rest of the path."""

    scheme: str
    address: str
    path: str

    @property
    def host(self) -> str:
        """Return the host without the port; an IPv6 address has its brackets."""
        return self.address if self.address.endswith("]") else self.address.rpartition(":")[0] or self.address

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}{self.path}"


def address_of(scheme: str, authority: str) -> str:
    """Return host and port in the one form that is compared and connected to; empty for an odd authority.

    A host that is not ASCII is odd: libraries differ in its encoding, so they could connect to different hosts.
    """
    found = AUTHORITY.fullmatch(authority.lower())
    port = int(found["port"] or 0) if found is not None else 0
    if found is None or port > 0xFFFF:
        return ""
    try:
        host = found["name"] or f"[{IPv6Address(found['ip'])}]"
    except AddressValueError:
        return ""
    return f"{host}:{port}" if port and port != PORTS[scheme] else host


def real_server(path: str) -> RealServer | None:
    """Return the server that a path below the root names; None for a path that names none."""
    scheme, (authority, slash, rest) = "https", path.removeprefix("/").partition("/")
    if authority == PLAIN:
        scheme, (authority, slash, rest) = PLAIN, rest.partition("/")
    address = address_of(scheme, authority)
    return RealServer(scheme, address, f"{slash}{rest}") if address else None


def through(root: str, url: str) -> str:
    """Return the URL of `url` through the gateway at `root`; raise `ValueError` for a user name, a query, no host."""
    parts = urlsplit(url)
    address = address_of(parts.scheme, parts.netloc) if parts.scheme in PORTS else ""
    if not address or parts.query or (parts.scheme, address) == ("https", PLAIN):
        raise ValueError("no plain http or https URL")
    plain = f"{PLAIN}/" if parts.scheme == PLAIN else ""
    return f"{root}/{plain}{address}{parts.path}"


class GatewayRoot:
    """Root of the gateway that this process was told of; empty for none."""

    value = ""

    @classmethod
    def read(cls) -> None:
        given = os.environ.get(VARIABLE, "")
        cls.value = given.rstrip("/") if given.startswith(LOOPBACK) else ""


GatewayRoot.read()


def real_url(url: str) -> str | None:
    """Return the URL at the real server for one below the root of this process's gateway; None for any other."""
    root = GatewayRoot.value
    if not root or not url.startswith(f"{root}/"):
        return None
    server = real_server(url[len(root) :])
    return server.url if server is not None else None


def resolved(url: str) -> str:
    return real_url(url) or url


def leaves(bound: bool) -> bool:
    """Return whether requests bypass the gateway: a client with a binding, or a scope in which requests pass."""
    if not GatewayRoot.value:
        return False
    scope = current_scope()
    return bound or (scope is not None and scope.open)
