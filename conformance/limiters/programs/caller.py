"""A program that sends all of its calls at once through an OpenAI client, plain or wrapped, and reports the answers."""

import asyncio
import collections
import json
import os
import time
from pathlib import Path

import openai

CALLS = int(os.environ["CALLS"])
PERIOD, OFFSET = float(os.environ["PERIOD"]), float(os.environ["OFFSET"])


def client(server: str, key: str) -> openai.AsyncOpenAI:
    """Return a client of a server, with the SDK's own two retries."""
    made = openai.AsyncOpenAI(api_key=key, base_url=f"{server}/v1")
    if os.environ["GOVERNED"] == "1":
        import tidegate

        tidegate.wrap(made)
    return made


async def ask(asked: openai.AsyncOpenAI, number: int) -> None:
    """Send one call."""
    message = {"role": "user", "content": f"Say {number:03}."}
    await asked.chat.completions.create(model="gpt-4o-mini", messages=[message], max_tokens=50)


async def send(asked: openai.AsyncOpenAI) -> tuple[float, collections.Counter[str]]:
    """Send all calls at once; return the seconds until the last one ends, and the errors by type."""
    errors = collections.Counter[str]()

    async def call(number: int) -> None:
        try:
            await ask(asked, number)
        except openai.OpenAIError as error:
            errors[type(error).__name__] += 1

    began = time.monotonic()
    await asyncio.gather(*(call(number) for number in range(CALLS)))
    return time.monotonic() - began, errors


async def main() -> None:
    """Send the calls and print the report; keep what tidegate saw and believed where EVENTS names a file."""
    async with client(os.environ["STUB"], "sk-first") as stub:
        await ask(stub, 0)  # so that nothing is loaded or compiled for the first time below
    asked = client(os.environ["SERVER"], "sk-limiters")
    seen = []
    if os.environ["EVENTS"]:
        import tidegate

        tidegate.registry().subscribe(lambda event: seen.append((time.monotonic(), event)))
    if PERIOD:  # a limiter that counts by the clock: the ideal holds for calls that begin at this offset
        await asyncio.sleep((OFFSET - time.time()) % PERIOD)
    began = time.monotonic()
    seconds, errors = await send(asked)
    told = {"answered": CALLS - errors.total(), "seconds": seconds, "errors": errors}
    print("LIMITERS " + json.dumps(told), flush=True)
    SEEN.extend(f"{at - began:8.3f} {event}\n" for at, event in seen)


SEEN: list[str] = []
asyncio.run(main())
if SEEN:
    Path(os.environ["EVENTS"]).write_text("".join(SEEN))
