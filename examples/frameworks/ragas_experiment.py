"""Ragas: an experiment over 40 rows; a judge says of each whether it is right.

OPENAI_BASE_URL and OPENAI_API_KEY say who judges.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from ragas import Dataset, experiment
from ragas.backends import InMemoryBackend
from ragas.llms import llm_factory
from ragas.metrics import DiscreteMetric

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]

correctness = DiscreteMetric(
    name="correctness",
    prompt="{question} Is {response} right? Answer 'right' or 'wrong'.",
    allowed_values=["right", "wrong"],
)
judge = llm_factory("gpt-4o-mini", client=AsyncOpenAI())


@experiment()
async def judged(row: dict[str, str]) -> dict[str, Any]:
    verdict = await correctness.ascore(llm=judge, question=row["question"], response=row["answer"])
    return {**row, "verdict": verdict.value}


async def main() -> None:
    dataset = Dataset(name="products", backend=InMemoryBackend(), data=ROWS)
    results = await judged.arun(dataset)
    right = sum(row["verdict"] == "right" for row in results)
    print(f"{len(results)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
