"""Haystack: 40 runs of a pipeline at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
PIPELINE = Pipeline()
TEMPLATE = [ChatMessage.from_user("{{question}} Answer with the number alone.")]


async def ask(question: str) -> str:
    return (await PIPELINE.run_async({"prompt": {"question": question}}))["model"]["replies"][0].text


async def main() -> None:
    PIPELINE.add_component("prompt", ChatPromptBuilder(template=TEMPLATE, required_variables=["question"]))
    PIPELINE.add_component("model", OpenAIChatGenerator(model="gpt-5-mini"))
    PIPELINE.connect("prompt.prompt", "model.messages")
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
