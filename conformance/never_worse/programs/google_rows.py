"""Rows through google-genai; `sync` asks them in threads, the second word is the timeout in seconds."""

from __future__ import annotations

from google import genai
from google.genai import types
from kit import SERVER, gather, govern, option, text, threads


def main() -> None:
    retries = types.HttpRetryOptions(attempts=3)
    timeout = 1000 * int(option(2, "60"))
    options = types.HttpOptions(base_url=SERVER, retry_options=retries, timeout=timeout)
    client = govern(genai.Client(api_key="k", http_options=options))

    async def ask(row: int) -> object:
        return await client.aio.models.generate_content(model="gemini-2.5-flash", contents=text(row))

    if option(1) == "sync":
        threads(lambda row: client.models.generate_content(model="gemini-2.5-flash", contents=text(row)))
    else:
        gather(ask)


if __name__ == "__main__":
    main()
