"""Rows through openai's clients with another library around the calls; the first word names it."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import openai
from kit import ROWS, SERVER, caught, gather, govern, kept, option, report, text, threads


def messages(row: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": text(row)}]


def blocking(retries: int = 2) -> Any:
    return govern(openai.OpenAI(base_url=SERVER + "/v1", max_retries=retries))


def with_tenacity() -> None:
    """Retry by a decorator around the SDK, as many guides advise."""
    import tenacity

    client = blocking(retries=0)

    @tenacity.retry(
        wait=tenacity.wait_random_exponential(min=0.5, max=4), stop=tenacity.stop_after_attempt(12), reraise=True
    )
    def ask(row: int) -> object:
        return client.chat.completions.create(model="m", messages=messages(row))

    threads(ask)


def with_aiolimiter() -> None:
    """Hold the program's own pace, which is below the limit."""
    import aiolimiter

    client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1"))
    pace = aiolimiter.AsyncLimiter(3, 1.0)

    async def ask(row: int) -> object:
        async with pace:
            return await client.chat.completions.create(model="m", messages=messages(row))

    gather(ask)


def with_trio() -> None:
    """Ask in tasks of trio's loop, over the SDK's own HTTP client."""
    import trio

    client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1"))
    rows: list[object] = []

    async def one(row: int) -> None:
        try:
            rows.append(kept(await client.chat.completions.create(model="m", messages=messages(row))))
        except openai.OpenAIError as error:
            rows.append(error)

    async def every() -> None:
        async with trio.open_nursery() as nursery:
            for row in range(ROWS):
                nursery.start_soon(one, row)

    trio.run(every)
    report(rows)


def with_fastapi() -> None:
    """Ask from the handlers of a web server, as an assistant's backend does."""
    import fastapi
    import httpx
    import uvicorn

    client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1"))
    app = fastapi.FastAPI()

    @app.get("/{row}")
    async def answer(row: int) -> str:
        try:
            got = await client.chat.completions.create(model="m", messages=messages(row))
        except openai.APIStatusError as error:
            raise fastapi.HTTPException(error.status_code, str(error)) from error
        return str(got.choices[0].message.content)

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def every() -> list[Any]:
        async with httpx.AsyncClient(timeout=100.0) as browser:

            async def one(row: int) -> Any:
                got = await browser.get(f"http://127.0.0.1:{port}/{row}")
                return kept(got) if got.is_success else RuntimeError(got.text)

            return await asyncio.gather(*(one(row) for row in range(ROWS)))

    rows = asyncio.run(every())
    server.should_exit = True
    thread.join()
    report(rows)


def with_vcr() -> None:
    """Record all calls on a cassette, as tests do."""
    import vcr

    client = blocking()

    def ask(row: int) -> object:
        return client.chat.completions.create(model="m", messages=messages(row))

    with tempfile.TemporaryDirectory() as folder, vcr.use_cassette(str(Path(folder) / "calls.yaml"), record_mode="all"):
        report([caught(ask, row) for row in range(ROWS)])


def with_websockets() -> None:
    """Ask over a websocket, at a server of the program."""
    import json

    import websockets

    async def serve(socket: Any) -> None:
        async for _ in socket:
            response = {"id": "r", "object": "realtime.response", "status": "completed", "output": []}
            await socket.send(json.dumps({"type": "response.done", "event_id": "e", "response": response}))

    async def every() -> list[Any]:
        async with websockets.serve(serve, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            client = govern(openai.AsyncOpenAI(websocket_base_url=f"ws://127.0.0.1:{port}/v1"))

            async def one(row: int) -> Any:
                async with client.realtime.connect(model="gpt-realtime") as connection:
                    await connection.response.create()
                    return kept(await connection.recv())

            return await asyncio.gather(*(one(row) for row in range(ROWS)), return_exceptions=True)

    report(asyncio.run(every()))


def with_openai_proxy() -> None:
    """Reach the server through a forward proxy, which stands for it."""
    client = govern(
        openai.OpenAI(
            base_url="http://llm.example.test/v1",
            http_client=openai.DefaultHttpxClient(proxy=SERVER),
        )
    )
    threads(lambda row: client.chat.completions.create(model="m", messages=messages(row)))


WAYS = (
    with_tenacity,
    with_aiolimiter,
    with_trio,
    with_fastapi,
    with_vcr,
    with_websockets,
    with_openai_proxy,
)


if __name__ == "__main__":
    {way.__name__.removeprefix("with_"): way for way in WAYS}[option(1)]()
