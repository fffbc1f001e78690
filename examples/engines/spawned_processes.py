"""Processes that `multiprocessing` spawns: each imports this module anew, and with it `tidegate.auto`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import openai

import tidegate.auto  # noqa: F401

ROWS = 120


def ask(row: int) -> str | None:
    with openai.OpenAI() as client:
        messages = [{"role": "user", "content": f"Say {row}."}]
        return client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content


def main() -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        answers = list(pool.map(ask, range(ROWS)))
    print(f"{len(answers)} of {ROWS} rows answered")


if __name__ == "__main__":
    main()
