"""Ray Serve in front of the stub: four calls in flight, eight in its queue, and 503 for all others."""

import os
import signal
import sys
import time
from pathlib import Path

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(max_ongoing_requests=4, max_queued_requests=8, ray_actor_options={"num_cpus": 0.5})
class Chat:
    """The deployment that hands calls to the stub."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session = None

    async def __call__(self, request: Request) -> Response:
        """Answer a call that Ray Serve admits."""
        self._session = self._session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with self._session.post(self._upstream, data=await request.body()) as answer:
            return Response(await answer.read(), answer.status, media_type="application/json")


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ray.init(num_cpus=2, include_dashboard=False, _temp_dir=os.environ["RAY_FOLDER"], logging_level="warning")
serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])})
serve.run(Chat.bind(os.environ["UPSTREAM"]), route_prefix="/v1")
Path(os.environ["READY"]).touch()
try:
    while True:
        time.sleep(3600)
finally:
    serve.shutdown()
    ray.shutdown()
