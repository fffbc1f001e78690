"""Server of the page: the routes of the limits view, the application of all routes, its socket, and its run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

import tidegate.admission.log_redaction  # noqa: F401  # its filter precedes every record
from tidegate.errors import ConfigurationError
from tidegate.launch.runs import ProgramRun, live_runs
from tidegate.server.access_policy import AccessPolicy
from tidegate.server.limit_history import SAMPLE_SECONDS, LimitHistory

Work = Callable[[], contextlib.AbstractAsyncContextManager[Any]]
"""Context manager that is entered when the server begins, and left when it ends."""


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes of one module, in their order. Their data belongs below `/api/`, where the token is needed.

    `work` runs while the server does.
    """

    routes: Sequence[BaseRoute]
    work: Work = contextlib.AsyncExitStack


logger = logging.getLogger("tidegate")


def limits_routes(
    runs: Callable[[], Iterable[ProgramRun]] = live_runs,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> RouteTable:
    history = LimitHistory(wall)

    async def sample() -> None:
        # Files are read in a thread: a slow disk must not hold up the answers.
        found = await asyncio.to_thread(lambda: list(runs()))
        history.take(found, monotonic())

    async def sample_for_ever() -> None:
        while True:
            began = monotonic()
            try:
                await sample()
            except Exception as error:
                logger.warning("runs not read: %s was raised; the page reads them again", type(error).__name__)
            await asyncio.sleep(max(0.1, SAMPLE_SECONDS - (monotonic() - began)))

    @contextlib.asynccontextmanager
    async def work() -> AsyncIterator[None]:
        task = asyncio.create_task(sample_for_ever())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def limits(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        if not since.isdecimal() or len(since) > len(str(2**53)):
            return JSONResponse({"error": "since not usable: it must be a sample number"}, 400)
        return JSONResponse(history.answer(int(since)))

    return RouteTable([Route("/api/limits", limits)], work)


STATIC = Path(__file__).parent / "static"

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts to which the page binds."""

TRIED_PORTS = 20
"""Ports above a busy one that are tried."""

HTTP_PORT = 80
"""Port of HTTP, which no URL needs to name."""

SHUTDOWN_SECONDS = 2
"""Seconds that open requests get at the end; the browser asks again after a second at most."""

HEADER_SECONDS = 60
"""Seconds in which the headers of a request must arrive; else its connection is closed. Source: `client_header_timeout`
of nginx, `headersTimeout` of Node's server."""


def create_app(
    *,
    hosts: Iterable[str],
    token: str,
    runs: Callable[[], Iterable[ProgramRun]] = live_runs,
    tables: Iterable[RouteTable] = (),
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Starlette:
    """Return the application of the page;

    `hosts` are the values of `Host` that name this server. `runs` returns the live runs. `tables` are the routes of
    further modules.
    """
    parts = (limits_routes(runs, monotonic, wall), *tables)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for part in parts:
                await stack.enter_async_context(part.work())
            yield

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    return Starlette(
        routes=[
            Route("/", index),
            *(route for part in parts for route in part.routes),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(AccessPolicy, hosts=tuple(hosts), token=token)],
        lifespan=lifespan,
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket on `port`, or on the next free one; port 0 takes any free one.

    Raise `ConfigurationError` where none of them is free, or where `host` is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small pieces at once only on sockets that name their protocol. On others they wait up to 40 ms.
    protocol = socket.IPPROTO_TCP
    problem: OSError | None = None
    for number in range(port, min(port + TRIED_PORTS, 65_535) + 1) if port else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            problem = error
            continue
        return listener
    reason = problem.strerror if problem is not None else "no port left"
    raise ConfigurationError("port", port, f"it and the next {TRIED_PORTS} are not available on {host}: {reason}")


def names_of(listener: socket.socket, host: str) -> tuple[str, ...]:
    """Return the values of `Host` that name the server of a socket, which listens on `host`; the first is shown."""
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    names = [shown] if host not in LOOPBACK else [shown, "127.0.0.1", "localhost", "[::1]"]
    # A client leaves the port out where it is that of the scheme.
    ends = ("", f":{port}") if port == HTTP_PORT else (f":{port}",)
    return tuple(dict.fromkeys(f"{name}{end}" for name in names for end in ends))


def serve(app: Starlette, listener: socket.socket, started: Callable[[], None]) -> None:
    """Serve the application until the process is interrupted; call `started` when it answers."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = CallbackServer(config, started)
    server.run(sockets=[listener])


class CallbackServer(uvicorn.Server):
    """Server that calls `started` once, when it answers, and closes connections whose headers do not end."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(config)
        self._told = started
        self._monotonic = monotonic
        self._waiting: dict[Any, float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._told()

    async def on_tick(self, counter: int) -> bool:
        """Close connections that have sent no whole headers for too long; uvicorn has no such limit."""
        now = self._monotonic()
        waiting = [each for each in self.server_state.connections if _awaits_headers(each)]
        self._waiting = {each: self._waiting.get(each, now) for each in waiting}
        for each, since in self._waiting.items():
            if now - since > HEADER_SECONDS:
                each.transport.close()
        return await super().on_tick(counter)


def _awaits_headers(connection: Any) -> bool:
    """Return whether a connection has no request, and is not one between two requests: uvicorn ends those itself."""
    cycle = connection.cycle
    return (cycle is None or cycle.response_complete) and connection.timeout_keep_alive_task is None
