"""Rows in a burst after something else: a pause, or the use of the key by another program."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import openai
from kit import ROWS, SERVER, govern, kept, option, report, text


def use_up() -> None:
    """Ask by another library until a call is refused."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    headers = {"authorization": "Bearer sk-x", "content-type": "application/json"}
    for _ in range(100):
        try:
            urllib.request.urlopen(urllib.request.Request(SERVER + "/v1/chat/completions", body, headers)).close()
        except urllib.error.HTTPError as error:
            error.close()
            return


async def every() -> list[Any]:
    client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1"))

    async def ask(row: int) -> object:
        return kept(await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}]))

    first: list[Any] = []
    if option(1) == "idle":
        first = await asyncio.gather(*(ask(row) for row in range(14)), return_exceptions=True)
        await asyncio.sleep(10)
    else:
        await asyncio.to_thread(use_up)
    return first + await asyncio.gather(*(ask(row) for row in range(len(first), ROWS)), return_exceptions=True)


if __name__ == "__main__":
    report(asyncio.run(every()))
