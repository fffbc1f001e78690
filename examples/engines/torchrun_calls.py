"""torchrun: each of four processes asks for its part of the rows, at one key.

    torchrun --nproc-per-node 4 torchrun_calls.py

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import openai

import tidegate.auto  # noqa: F401

ROWS = 120


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with openai.OpenAI() as client, ThreadPoolExecutor(4) as threads:

        def ask(row: int) -> str | None:
            messages = [{"role": "user", "content": f"Say {row}."}]
            return client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content

        answers = list(threads.map(ask, range(rank, ROWS, ranks)))
    print(f"rank {rank}: {len(answers)} rows answered", flush=True)


if __name__ == "__main__":
    main()
