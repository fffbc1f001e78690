"""Two clients of one address, one with a credential that is refused; the first word names the way.

- `azure`  a good and a revoked key of one Azure deployment, in one process
- `fork`   a token in force and an ended one of the same subject, each in a process
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

import openai
from kit import ROWS, SERVER, caught, govern, kept, option, report, token


async def in_one_process() -> list[Any]:
    async def ask_all(key: str) -> list[Any]:
        client = govern(openai.AsyncAzureOpenAI(azure_endpoint=SERVER, api_version="2024-10-21", api_key=key))
        rows: list[Any] = []
        for _ in range(ROWS // 2):
            try:
                messages = [{"role": "user", "content": key}]
                rows.append(kept(await client.chat.completions.create(model="gpt-4o", messages=messages)))
            except openai.APIStatusError as error:
                rows.append(error)
            await asyncio.sleep(0.1)
        return rows

    good, bad = await asyncio.gather(ask_all("good"), ask_all("revoked"))
    return good + bad


def in_a_process(life: float) -> list[object]:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1", api_key=token(life)))

    def ask(row: int) -> object:
        time.sleep(0.1)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
        return "ok"

    # An exception of the SDK holds its response, which no pipe carries.
    rows = [caught(ask, row) for row in range(ROWS // 2)]
    return [row if row == "ok" else RuntimeError(f"{type(row).__name__}: {row}") for row in rows]


def main() -> None:
    if option(1) == "azure":
        report(asyncio.run(in_one_process()))
        return
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        report([row for rows in pool.map(in_a_process, (3600.0, -1000.0), 1) for row in rows])


if __name__ == "__main__":
    main()
