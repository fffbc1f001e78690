"""Server of the gateway: one process with a listening socket, until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import httpx
import uvicorn

from tidegate.admission.registry import RateLimitRegistry
from tidegate.server.app import CallbackServer, names_of
from tidegate.server.gateway.proxy import GatewayProxy, Upstreams
from tidegate.settings import Settings
from tidegate.transports.install import host_of, install, named_hosts

logger = logging.getLogger("tidegate")

KEEP_ALIVE = 120
"""Seconds that an idle connection of a client stays open. Chosen: far longer than the pools of clients (undici: 4 s,
httpx: 5 s), so that no request meets a connection that is closing."""

SHUTDOWN_SECONDS = 1
"""Seconds that open requests get at the end, when their programs have ended or were told to."""

EXTRA_CERTIFICATES = "NODE_EXTRA_CA_CERTS"
"""Variable with further certificate authorities, which programs of Node trust; so must their gateway."""


def _governed(urls: Sequence[str]) -> Settings:
    """Return the settings of a gateway that governs all calls to these base URLs, with the families of variables."""
    settings = Settings.from_environment()
    known = named_hosts(settings)
    added = [host for host in map(host_of, urls) if host not in known]
    return settings.model_copy(update={"hosts": (*settings.hosts, *added)})


def run(
    listener: socket.socket,
    token: str,
    urls: Sequence[str],
    started: Callable[[], None] = lambda: None,
    until: int | None = None,
) -> None:
    """Serve until the process is interrupted, or until the end of the file descriptor `until`.

    `urls` are base URLs of servers beside the known providers. `started` is called when the gateway answers.
    """
    settings = _governed(urls)
    upstreams = Upstreams(urls, settings.hosts)
    install(RateLimitRegistry(settings))
    # A socket that `tidegate run` hands over has lost its protocol; see `tidegate.server.app.bind`.
    listener = socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach())
    _allow_more_files()
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
        server = CallbackServer(config, started)
        if until is not None:
            asyncio.get_running_loop().add_reader(until, setattr, server, "should_exit", True)
        await server.serve(sockets=[listener])


def _allow_more_files() -> None:
    """Raise the number of open files to what the system allows: each call needs a connection, also while it waits."""
    if os.name != "posix":
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _trusted(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the context for connections to servers, which trusts the further authorities of programs of Node, too."""
    context = httpx.create_ssl_context()
    extra = environ.get(EXTRA_CERTIFICATES)
    if extra:
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            text = "certificates of %s not read: %s; the gateway trusts the usual authorities alone"
            logger.warning(text, EXTRA_CERTIFICATES, error.strerror or error)
    return context
