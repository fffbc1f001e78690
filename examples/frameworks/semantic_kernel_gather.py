"""Semantic Kernel: 40 prompts of one kernel at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
KERNEL = Kernel()


async def ask(question: str) -> str:
    return str(await KERNEL.invoke_prompt(f"{question} Answer with the number alone."))


async def main() -> None:
    KERNEL.add_service(OpenAIChatCompletion(ai_model_id="gpt-5-mini", async_client=AsyncOpenAI()))
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
