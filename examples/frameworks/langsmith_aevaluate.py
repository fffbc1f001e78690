"""LangSmith: `aevaluate` over 40 examples with an evaluator, nothing uploaded.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import datetime
import json
import uuid
from pathlib import Path

import openai
from langsmith import Client, aevaluate, schemas

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def target(inputs: dict) -> dict:
    messages = [{"role": "user", "content": inputs["question"]}]
    answer = await openai.AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=messages)
    return {"answer": answer.choices[0].message.content}


def right(outputs: dict, reference_outputs: dict) -> bool:
    return outputs.get("answer") == reference_outputs["answer"]


def example(row: dict) -> schemas.Example:
    facts = {"inputs": {"question": row["question"]}, "outputs": {"answer": row["answer"]}}
    return schemas.Example(id=uuid.uuid4(), dataset_id=uuid.UUID(int=1), created_at=datetime.datetime.now(), **facts)


async def main() -> None:
    nobody = Client(api_key="any", api_url="http://127.0.0.1:9")
    data = [example(row) for row in ROWS]
    options = {"max_concurrency": 40, "upload_results": False, "client": nobody}
    rows = [row async for row in await aevaluate(target, data=data, evaluators=[right], **options)]
    answered = sum(bool(row["run"].outputs and not row["run"].error) for row in rows)
    good = sum(bool(each.score) for row in rows for each in row["evaluation_results"]["results"])
    print(f"{answered} of {len(ROWS)} rows answered, {good} right")


if __name__ == "__main__":
    asyncio.run(main())
