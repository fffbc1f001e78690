"""An application of Starlette that hands each request to the stub behind the limiter."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep the connections to the stub."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        app.state.session = session
        yield


async def forward(request: Request) -> Response:
    """Answer a request with the stub's answer."""
    body = await request.body()
    async with request.app.state.session.post(os.environ["UPSTREAM"], data=body) as answer:
        return Response(await answer.read(), answer.status, media_type="application/json")


app = Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=lifespan)
