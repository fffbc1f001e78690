"""Strands: 40 agents at once, whose answers stream.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from strands import Agent
from strands.models.openai import OpenAIModel

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def ask(question: str) -> str:
    agent = Agent(
        model=OpenAIModel(model_id="gpt-5-mini"), system_prompt="Answer with the number.", callback_handler=None
    )
    return str(await agent.invoke_async(question))


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
