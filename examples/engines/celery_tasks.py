"""Celery: the tasks of four worker processes at one key. This module imports `tidegate.auto`, so each worker has it.

    celery -A celery_tasks worker --concurrency 4
    python celery_tasks.py

BROKER_URL is a Redis server; OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import os

import openai
from celery import Celery, group

import tidegate.auto  # noqa: F401

ROWS = 120

app = Celery("celery_tasks", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])


@app.task(name="ask")
def ask(row: int) -> str | None:
    with openai.OpenAI() as client:
        messages = [{"role": "user", "content": f"Say {row}."}]
        return client.chat.completions.create(model="gpt-5-mini", messages=messages).choices[0].message.content


def main() -> None:
    answers = group(ask.s(row) for row in range(ROWS))().get(timeout=120)
    print(f"{len(answers)} of {ROWS} rows answered")


if __name__ == "__main__":
    main()
