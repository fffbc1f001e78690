"""Rows through an HTTP library alone; the first word names it.

The second word is a number of seconds, or "told": an answer that tells an error by a HTTP 200 is an error.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from kit import SERVER, gather, govern, loop, option, text, threads

URL = f"{SERVER}/v1/chat/completions"
HEADERS = {"authorization": "Bearer sk-x", "content-type": "application/json"}


def body(row: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text(row)}]}


def checked(answer: Any) -> Any:
    if option(2) == "told" and answer.get("base_resp"):
        raise ValueError(answer["base_resp"]["status_msg"])
    return answer


def with_requests() -> None:
    import requests

    session = govern(requests.Session())
    url, proxies = (
        ("http://api.openai.com/v1/chat/completions", {"http": SERVER}) if option(2) == "proxy" else (URL, None)
    )

    def ask(row: int) -> object:
        answer = session.post(url, json=body(row), headers=HEADERS, timeout=60, proxies=proxies)
        answer.raise_for_status()
        return answer.json()

    (loop if option(2) == "loop" else threads)(ask)


def with_httpx(library: Any) -> None:
    client = govern(library.AsyncClient(timeout=60))

    async def ask(row: int) -> object:
        answer = await client.post(URL, json=body(row), headers=HEADERS)
        answer.raise_for_status()
        return checked(answer.json())

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


def with_urllib3() -> None:
    import urllib3

    pool = urllib3.PoolManager(maxsize=20)

    def ask(row: int) -> object:
        answer = pool.request("POST", URL, json=body(row), headers=HEADERS)
        if answer.status != 200:
            raise RuntimeError(answer.status)
        return answer.json()

    threads(ask)


def with_urllib() -> None:
    def ask(row: int) -> object:
        given = urllib.request.Request(URL, json.dumps(body(row)).encode(), HEADERS)
        with urllib.request.urlopen(given, timeout=60) as answer:
            return answer.read()

    threads(ask)


def main() -> None:
    library = option(1, "requests")
    if library in ("httpx", "httpx2"):
        with_httpx(__import__(library))
        return
    ways = {"requests": with_requests, "aiohttp": with_aiohttp, "urllib3": with_urllib3, "urllib": with_urllib}
    ways[library]()


if __name__ == "__main__":
    main()
