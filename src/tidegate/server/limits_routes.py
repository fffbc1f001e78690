"""Routes of the limits view, and the task that samples the live runs for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidegate.launch.runs import ProgramRun, live_runs
from tidegate.server.limit_history import PERIOD, LimitHistory
from tidegate.server.route_table import RouteTable

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
            await asyncio.sleep(max(0.1, PERIOD - (monotonic() - began)))

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
