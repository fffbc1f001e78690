"""OpenEvals: a judge over 40 answers at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from openevals.llm import create_async_llm_as_judge

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
PROMPT = "Is the answer right? Question: {inputs} Answer: {outputs}"


async def main() -> None:
    judge = create_async_llm_as_judge(prompt=PROMPT, model="openai:gpt-5-mini", feedback_key="right")
    results = await asyncio.gather(*(judge(inputs=row["question"], outputs=row["answer"]) for row in ROWS))
    right = sum(result["score"] is True for result in results)
    print(f"{len(results)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
