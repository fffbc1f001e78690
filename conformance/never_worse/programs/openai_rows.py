"""Rows through openai's clients, in the ways that programs ask them; the first word names the way."""

from __future__ import annotations

import asyncio
import os

import openai
from kit import ROWS, SERVER, caught, gather, govern, loop, option, report, text, threads

WAY = option(1, "gather")
RETRIES = int(option(2, "2"))


def ask_sync(row: int) -> object:
    return SYNC.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])


async def ask(row: int) -> object:
    messages = [{"role": "user", "content": text(row)}]
    if WAY == "responses":
        return await ASYNC.responses.create(model="m", input=text(row))
    if WAY == "embeddings":
        return await ASYNC.embeddings.create(model="m", input=text(row), encoding_format="float")
    if WAY == "raw":
        raw = await ASYNC.chat.completions.with_raw_response.create(model="m", messages=messages)
        return raw.parse()
    if WAY == "wait_for":
        while True:
            try:
                return await asyncio.wait_for(ASYNC.chat.completions.create(model="m", messages=messages), 4)
            except (TimeoutError, openai.RateLimitError):
                await asyncio.sleep(0.5)
    if WAY == "to_thread":
        while True:
            try:
                return await asyncio.wait_for(asyncio.to_thread(ask_sync, row), 4)
            except (TimeoutError, openai.RateLimitError):
                await asyncio.sleep(0.5)
    if WAY == "files":
        return await ASYNC.files.create(file=(f"a{row}.jsonl", b"{}"), purpose="batch")
    if WAY == "poll":
        return await ASYNC.responses.retrieve(f"resp_{row}")
    answer = await ASYNC.chat.completions.create(model="m", messages=messages)
    # A server may answer without a choice.
    return answer.choices[0].message.content


def new_loops(row: int) -> object:
    async def alone() -> object:
        async with govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", max_retries=RETRIES)) as client:
            return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    return asyncio.run(alone())


def main() -> None:
    if WAY == "threads":
        threads(ask_sync)
    elif WAY == "loop":
        loop(ask_sync)
    elif WAY == "chunks":
        opening = [{"role": "user", "content": "q"}]
        chunks = SYNC.chat.completions.create(model="m", messages=opening, stream=True)
        report([caught(ask_sync, row) for row, _ in enumerate(chunks)])
    elif WAY == "loops":
        loop(new_loops)
    elif WAY == "uncaught":
        answers = [ask_sync(row) for row in range(ROWS)]
        report(answers)
    elif WAY == "eight":
        gather(ask, 8)
    elif WAY == "many":
        gather(ask, 32)
    else:
        gather(ask)
    # Threads of calls that nobody waits for would be joined at exit.
    os._exit(0) if WAY == "to_thread" else None


if __name__ == "__main__":
    SYNC = govern(openai.OpenAI(base_url=SERVER + "/v1", max_retries=RETRIES))
    ASYNC = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", max_retries=RETRIES))
    main()
