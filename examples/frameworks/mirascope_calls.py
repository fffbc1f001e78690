"""Mirascope: 40 calls of a prompt function at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from mirascope import llm

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


@llm.call("openai/gpt-5-mini:completions")
async def prompt(question: str) -> str:
    return f"{question} Answer with the number alone."


async def ask(question: str) -> str:
    return (await prompt(question)).text()


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
