"""Uploads whose first request is refused, over HTTP libraries: forms, opened files and generators."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import requests
from kit import SERVER, govern, report

DATA = bytes(range(256)) * 400
HEADERS = {"authorization": "Bearer sk-x"}


def url(way: str) -> str:
    return f"{SERVER}/{way}/v1/audio/transcriptions"


async def pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(DATA), 10000):
        yield DATA[start : start + 10000]


async def by_aiohttp(way: str, sound: str) -> object:
    with open(sound, "rb") as opened:  # noqa: ASYNC230, PTH123
        form = aiohttp.FormData({"model": "whisper-1"})
        form.add_field("file", opened, filename="a.wav")
        data = {"form": form, "file": opened, "pieces": pieces()}[way]
        async with (
            govern(aiohttp.ClientSession()) as session,
            session.post(url(f"aiohttp-{way}"), data=data, headers=HEADERS) as answer,
        ):
            answer.raise_for_status()
            return await answer.json()


async def by_requests(way: str, sound: str) -> object:
    def send() -> object:
        with open(sound, "rb") as opened:  # noqa: PTH123
            given: dict[str, Any] = {"files": {"file": opened}} if way == "form" else {"data": opened}
            answer = govern(requests.Session()).post(url(f"requests-{way}"), headers=HEADERS, **given)
            answer.raise_for_status()
            return answer.json()

    return await asyncio.to_thread(send)


async def by_httpx(way: str, sound: str) -> object:
    with open(sound, "rb") as opened:  # noqa: ASYNC230, PTH123
        given: dict[str, Any] = {"files": {"file": opened}} if way == "form" else {"content": pieces()}
        async with govern(httpx.AsyncClient()) as client:
            answer = await client.post(url(f"httpx-{way}"), headers=HEADERS, **given)
            answer.raise_for_status()
            return answer.json()


UPLOADS: tuple[tuple[Callable[[str, str], Awaitable[object]], str], ...] = (
    (by_aiohttp, "form"),
    (by_aiohttp, "file"),
    (by_aiohttp, "pieces"),
    (by_requests, "form"),
    (by_requests, "file"),
    (by_httpx, "form"),
    (by_httpx, "pieces"),
)


async def every(sound: str) -> list[object]:
    return await asyncio.gather(*(send(way, sound) for send, way in UPLOADS), return_exceptions=True)


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile(suffix=".wav") as written:
        written.write(DATA)
        written.flush()
        report(asyncio.run(every(written.name)))
