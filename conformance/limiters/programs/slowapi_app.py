"""SlowAPI in front of the stub: 100 calls in 10 seconds by key, with the strategy that the environment names."""

import os

from forwarding import forward, lifespan
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def key(request: Request) -> str:
    """Return what the calls are counted by."""
    return request.headers.get("authorization", "")


limiter = Limiter(key_func=key, strategy=os.environ["STRATEGY"])


@limiter.limit("100/10 seconds")
async def chat(request: Request) -> Response:
    """Answer a call that the limiter admits."""
    return await forward(request)


app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])], lifespan=lifespan)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
