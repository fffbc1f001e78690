"""Marvin: 40 tasks of one agent at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

import marvin

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def main() -> None:
    agent = marvin.Agent(name="Multiplier", model="openai:gpt-5-mini")

    async def ask(question: str) -> str:
        return await agent.run_async(f"{question} Answer with the number alone.", result_type=str)

    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
