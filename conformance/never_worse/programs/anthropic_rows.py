"""Rows through anthropic's clients; the first word names the way."""

from __future__ import annotations

import anthropic
from kit import SERVER, gather, govern, option, text, threads

WAY = option(1, "gather")


def main() -> None:
    if WAY == "threads":
        blocking = govern(anthropic.Anthropic(base_url=SERVER))

        def ask_sync(row: int) -> object:
            return blocking.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": text(row)}])

        threads(ask_sync)
        return
    client = govern(anthropic.AsyncAnthropic(base_url=SERVER, max_retries=int(option(3, "2"))))

    async def ask(row: int) -> object:
        messages = [{"role": "user", "content": text(row)}]
        if WAY == "stream":
            async with client.messages.stream(model="m", max_tokens=5, messages=messages) as events:
                return await events.get_final_message()
        return await client.messages.create(model="m", max_tokens=5, messages=messages)

    gather(ask, int(option(2, "32")))


if __name__ == "__main__":
    main()
