"""Agno: 40 runs of an agent at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from agno.agent import Agent
from agno.models.openai import OpenAIChat

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def ask(question: str) -> str:
    agent = Agent(model=OpenAIChat(id="gpt-5-mini"), instructions="Answer with the number alone.", telemetry=False)
    return str((await agent.arun(question)).content)


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
