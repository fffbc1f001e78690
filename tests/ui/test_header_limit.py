"""Connections that never end the headers of their request are closed; all others stay open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvicorn
from starlette.types import Receive, Scope, Send

from tidegate.server.app import HEADER_SECONDS, CallbackServer, bind

HEAD = b"GET %b HTTP/1.1\r\nhost: x\r\n"
PATIENCE = 300.0
"""Seconds after which a test that waits fails; no test is near it."""


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)


async def answered(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await reader.readuntil(b"\r\n\r\nok")


async def conversation() -> None:
    now, asked, may_answer = [0.0], asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            asked.set()
            await may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener, ready = bind("127.0.0.1", 0), asyncio.Event()
    config = uvicorn.Config(app, lifespan="off", ws="none", log_level="critical", timeout_keep_alive=1_000_000)
    server = CallbackServer(config, ready.set, lambda: now[0])
    run = asyncio.create_task(server.serve(sockets=[listener]))
    await ready.wait()
    port = listener.getsockname()[1]
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    (silent, _), (unended, start), (second, again), (slow, begin), (idle, use) = streams
    start.write(HEAD % b"/")
    for each in (again, use):
        each.write(HEAD % b"/" + b"\r\n")
    await answered(second)
    await answered(idle)
    again.write(HEAD % b"/")  # the headers of its next request do not end
    begin.write(HEAD % b"/slow" + b"\r\n")
    await asked.wait()
    await until(lambda: len(server.server_state.connections) == len(streams))
    await until(lambda: sum(each.timeout_keep_alive_task is not None for each in server.server_state.connections) == 1)
    await server.on_tick(1)
    now[0] += HEADER_SECONDS + 1
    async with asyncio.timeout(PATIENCE):
        assert [await each.read() for each in (silent, unended, second)] == [b""] * 3
    may_answer.set()
    assert await answered(slow)
    use.write(HEAD % b"/" + b"\r\n")
    assert await answered(idle)
    for _, writer in streams:
        writer.close()
    server.should_exit = True
    await run


def test_connections_whose_headers_do_not_end_are_closed() -> None:
    asyncio.run(conversation())
