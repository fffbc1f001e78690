"""instructor: 40 questions at once, each answer read into a pydantic model.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

import instructor
from pydantic import BaseModel

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


class Product(BaseModel):
    answer: int


async def main() -> None:
    client = instructor.from_provider("openai/gpt-5-mini", async_client=True)

    async def ask(question: str) -> int:
        product = await client.create(response_model=Product, messages=[{"role": "user", "content": question}])
        return product.answer

    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer == int(row["answer"]) for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
