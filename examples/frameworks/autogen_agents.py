"""AutoGen: 40 agents at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = OpenAIChatCompletionClient(model="gpt-5-mini")


async def ask(question: str) -> str:
    agent = AssistantAgent("multiplier", model_client=MODEL, system_message="Answer with the number alone.")
    return (await agent.run(task=question)).messages[-1].content


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
