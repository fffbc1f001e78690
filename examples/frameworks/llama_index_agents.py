"""LlamaIndex: 40 runs of an agent at once, whose answers stream.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
import os
from pathlib import Path

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


async def ask(question: str) -> str:
    return str(await AGENT.run(question))


MODEL = OpenAI(model="gpt-5-mini", api_base=os.environ["OPENAI_BASE_URL"])
AGENT = FunctionAgent(tools=[add], llm=MODEL, system_prompt="Answer with the number alone.")


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
