"""LLM, by its Python interface: 40 prompts on 40 threads, every other one streamed.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llm

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = llm.get_model("gpt-5-mini")


def ask(row: tuple[int, str]) -> str:
    number, question = row
    return MODEL.prompt(f"{question} Answer with the number alone.", stream=bool(number % 2)).text()


def main() -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, enumerate(row["question"] for row in ROWS)))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
