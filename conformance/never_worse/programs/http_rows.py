"""Rows through an HTTP library alone; the first word names it."""

from __future__ import annotations

from typing import Any

from kit import SERVER, gather, govern, loop, option, text, threads

URL = f"{SERVER}/v1/chat/completions"
HEADERS = {"authorization": "Bearer sk-x"}


def body(row: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text(row)}]}


def with_requests() -> None:
    import requests

    session = govern(requests.Session())

    def ask(row: int) -> object:
        answer = session.post(URL, json=body(row), headers=HEADERS, timeout=60)
        answer.raise_for_status()
        return answer.json()

    (loop if option(2) == "loop" else threads)(ask)


def with_httpx(library: Any) -> None:
    client = govern(library.AsyncClient(timeout=60))

    async def ask(row: int) -> object:
        answer = await client.post(URL, json=body(row), headers=HEADERS)
        answer.raise_for_status()
        return answer.json()

    gather(ask)


def with_aiohttp() -> None:
    import aiohttp

    seconds = float(option(2, "60"))

    async def ask(row: int) -> object:
        async with (
            govern(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds))) as session,
            session.post(URL, json=body(row), headers=HEADERS) as answer,
        ):
            answer.raise_for_status()
            return await answer.json()

    gather(ask)


def main() -> None:
    library = option(1, "requests")
    if library == "requests":
        with_requests()
    elif library == "aiohttp":
        with_aiohttp()
    elif library == "httpx":
        import httpx

        with_httpx(httpx)
    else:
        import httpx2

        with_httpx(httpx2)


if __name__ == "__main__":
    main()
