"""Server of the gateway: one process with a listening socket, until it is told to end."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress

import httpx
import uvicorn

from tidegate.gateway.proxy import GatewayProxy
from tidegate.gateway.upstreams import Upstreams
from tidegate.ui.server import names_of

KEEP_ALIVE = 120
"""Seconds that an idle connection of a client stays open. Raising it keeps more sockets of idle programs. Chosen: far
longer than the pools of clients (undici: 4 s, httpx: 5 s), so that no request meets a connection that is closing."""

SHUTDOWN_SECONDS = 1
"""Seconds that open requests get at the end, when their programs have ended or were told to."""

EXTRA_CERTIFICATES = "NODE_EXTRA_CA_CERTS"
"""Variable with further certificate authorities, which programs of Node trust; so must their gateway."""


def run(
    listener: socket.socket,
    token: str,
    upstreams: Upstreams,
    started: Callable[[], None] = lambda: None,
    until: int | None = None,
) -> None:
    """Serve until the process is interrupted or, where `until` is a file descriptor, until its end.

    tidegate must be installed in this process. Call `started` when the gateway answers.
    """
    # asyncio sends small pieces at once only on sockets that name their protocol. On others they wait up to 40 ms.
    listener = socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach())
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(listener, token, upstreams, started, until))


async def _serve(
    listener: socket.socket, token: str, upstreams: Upstreams, started: Callable[[], None], until: int | None
) -> None:
    host = listener.getsockname()[0]
    # No bounds and no timeouts: those of the program hold, and it closes the connection when they are over.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, verify=_trusted(os.environ)) as client:
        proxy = GatewayProxy(hosts=names_of(listener, host), token=token, upstreams=upstreams, client=client)
        config = uvicorn.Config(
            proxy,
            lifespan="off",
            ws="none",
            # An answer that breaks off is an exception of the application, and no news.
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        server = _GatewayServer(config, started)
        if until is not None:
            asyncio.get_running_loop().add_reader(until, server.end)
        await server.serve(sockets=[listener])


class _GatewayServer(uvicorn.Server):
    """Server that tells when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and tell so."""
        await super().startup(sockets)
        if self.started:
            self._told()

    def end(self) -> None:
        """End soon."""
        self.should_exit = True


def _trusted(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context for connections to servers, which trusts the further authorities of programs of Node, too."""
    context = httpx.create_ssl_context()
    extra = environ.get(EXTRA_CERTIFICATES)
    if extra and os.path.isfile(extra):  # noqa: PTH113
        context.load_verify_locations(extra)
    return context
