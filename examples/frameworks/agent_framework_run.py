"""Microsoft Agent Framework: 40 runs of one agent at once, by the Responses API.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
AGENT = Agent(OpenAIChatClient(model="gpt-5-mini"), "Answer with the number alone.")


async def ask(question: str) -> str:
    return (await AGENT.run(question)).text


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
