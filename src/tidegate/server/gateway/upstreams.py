"""Servers that a gateway may reach: those of known providers, and those that the user named."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from tidegate import providers
from tidegate.errors import ConfigurationError
from tidegate.transports.gateway_url import PORTS, RealServer, address_of

ADDED_VERSIONS = {("api.anthropic.com", "/messages"): "/v1/messages"}
"""Paths that a server does not have, with those that are meant.

@ai-sdk/anthropic 3.0.140 appends `/messages` to `ANTHROPIC_BASE_URL`, and the SDK of Anthropic `/v1/messages`
(https://github.com/vercel/ai/issues/15542).
"""


class Upstreams:
    """Set of the servers that a gateway may reach; raises `ConfigurationError` for a URL that names none.

    `urls` are base URLs of servers beside the known providers, and `hosts` further ones. Both `hosts` and known
    providers are reached by TLS at its usual port.
    """

    def __init__(self, urls: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        self._named = frozenset(self._server(url) for url in urls)
        self._hosts = frozenset(host.lower() for host in hosts)

    def allows(self, server: RealServer) -> bool:
        if (server.scheme, server.address) in self._named:
            return True
        return self._by_tls(server) and (server.host in self._hosts or self.is_known(server))

    def refusal(self, server: RealServer) -> str:
        """Return why a server is not reached, and the settings that allow it."""
        url = f"{server.scheme}://{server.address}"
        by_host = f", or set TIDEGATE_HOSTS={server.host}" if self._by_tls(server) else ""
        return (
            f"{url} is neither a known provider nor a server that you named; start `tidegate gateway --upstream {url}`"
            f"{by_host}; for `tidegate run`, set the program's base-URL variable to it before the run{by_host}"
        )

    def is_known(self, server: RealServer) -> bool:
        """Return whether a server is that of a known provider, which cannot be another gateway."""
        return providers.table_of(server.host) is not None

    @staticmethod
    def path_at(server: RealServer) -> str:
        return ADDED_VERSIONS.get((server.address, server.path), server.path)

    @staticmethod
    def _by_tls(server: RealServer) -> bool:
        return server.scheme == "https" and server.address == server.host

    @staticmethod
    def _server(url: str) -> tuple[str, str]:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigurationError("upstream", url, str(error)) from None
        address = address_of(parts.scheme, parts.netloc) if parts.scheme in PORTS else ""
        if not address:
            raise ConfigurationError("upstream", url, "it must be an ASCII URL such as https://llm.example/v1")
        return parts.scheme, address
