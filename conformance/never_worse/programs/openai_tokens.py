"""Tokens that end while the program runs: renewed by hand at a 401, by a function, or by Azure's token provider.

A `fixed` token is never renewed, and has ended before the first call.
"""

from __future__ import annotations

import time

import openai
from kit import SERVER, gather, govern, loop, option, text, token

WAY = option(1, "by_hand")
LIFE = float(option(2, "3"))


class Cached:
    """A token as an identity library keeps it: renewed when a fifth of its life is left."""

    def __init__(self) -> None:
        self.value, self.ends = "", 0.0

    def __call__(self) -> str:
        if time.time() > self.ends - LIFE / 5:
            self.value, self.ends = token(LIFE), time.time() + LIFE
        return self.value


class ByHand:
    def __init__(self) -> None:
        self.new()

    def new(self) -> None:
        self.client = govern(openai.OpenAI(base_url=SERVER + "/v1", api_key=token(LIFE)))

    def ask(self, row: int) -> object:
        for _ in range(2):
            try:
                return self.once(row)
            except openai.AuthenticationError:
                self.new()
        return self.once(row)

    def once(self, row: int) -> object:
        return self.client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])


def main() -> None:
    if WAY == "by_hand":
        loop(ByHand().ask)
        return
    if WAY == "fixed":
        client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", api_key=token(LIFE)))
    elif WAY == "azure":
        client = govern(
            openai.AsyncAzureOpenAI(
                azure_endpoint=SERVER, api_version="2024-10-21", azure_ad_token_provider=Cached(), max_retries=4
            )
        )
    else:
        cached = Cached()

        async def provide() -> str:
            return cached()

        client = govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", api_key=provide, max_retries=4))

    async def ask(row: int) -> object:
        return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    gather(ask, int(option(3, "8")))


if __name__ == "__main__":
    main()
