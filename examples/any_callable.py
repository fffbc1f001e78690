"""Any function of your own under a limit, here plain urllib: `execute` for synchronous ones, `aexecute` for others.

    OPENAI_API_KEY=… python examples/any_callable.py

For clients that tidegate does not know. Name the limit with a key; everything else is optional and tells tidegate what
it cannot see by itself.
"""

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import tidegate

URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
KEY = "my provider, my account"
Answer = tuple[str, Mapping[str, str]]


def ask(number: int) -> Answer:
    """The text of the answer, and the headers it came with; raises HTTPError."""
    body = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": f"Spell {number}."}]}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"], dict(answer.headers)


def headers_of(answer: Answer) -> Mapping[str, str]:
    # Rate-limit headers, where there are any, are worth more than anything that can be found out by trying.
    return answer[1]


def is_rate_limited(answer: Answer | None, error: Exception | None) -> bool:
    if not isinstance(error, urllib.error.HTTPError):
        return False
    error.close()
    return error.code == 429


def retry_after(answer: Answer | None, error: Exception | None) -> float | None:
    told = error.headers.get("retry-after") if isinstance(error, urllib.error.HTTPError) else None
    return float(told) if told else None


def one(number: int) -> str:
    """Blocks this thread until it is this call's turn, and again after each refusal."""
    text, _ = tidegate.registry().execute(
        KEY,
        lambda: ask(number),
        get_headers=headers_of,
        is_rate_limited=is_rate_limited,
        get_retry_after=retry_after,
    )
    return text


async def another(number: int) -> str:
    """The same without blocking; both kinds stand in the queue of their key."""
    text, _ = await tidegate.registry().aexecute(
        KEY,
        lambda: asyncio.to_thread(ask, number),
        get_headers=headers_of,
        is_rate_limited=is_rate_limited,
        get_retry_after=retry_after,
    )
    return text


async def others(numbers: range) -> list[str]:
    return await asyncio.gather(*(another(number) for number in numbers))


def main() -> None:
    with ThreadPoolExecutor(max_workers=30) as pool:
        answers = list(pool.map(one, range(30)))
    answers += asyncio.run(others(range(30, 60)))
    print(answers[0])
    print(f"{len(answers)} calls answered")


if __name__ == "__main__":
    main()
