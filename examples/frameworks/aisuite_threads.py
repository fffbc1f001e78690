"""aisuite: 40 calls on 40 threads.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aisuite

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
CLIENT = aisuite.Client()


def ask(question: str) -> str:
    messages = [{"role": "user", "content": f"{question} Answer with the number alone."}]
    return CLIENT.chat.completions.create(model="openai:gpt-5-mini", messages=messages).choices[0].message.content


def main() -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, (row["question"] for row in ROWS)))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
