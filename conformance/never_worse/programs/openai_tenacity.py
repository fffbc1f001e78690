"""A retry decorator of the program around the SDK, as many guides advise."""

from __future__ import annotations

import openai
import tenacity
from kit import SERVER, govern, text, threads


def main() -> None:
    client = govern(openai.OpenAI(base_url=SERVER + "/v1", max_retries=0))

    @tenacity.retry(
        wait=tenacity.wait_random_exponential(min=0.5, max=4), stop=tenacity.stop_after_attempt(12), reraise=True
    )
    def ask(row: int) -> object:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text(row)}])

    threads(ask)


if __name__ == "__main__":
    main()
