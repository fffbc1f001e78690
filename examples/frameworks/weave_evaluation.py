"""Weave: an evaluation over 40 rows with a scorer, without an account.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

import openai
import weave

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


@weave.op
async def answer(question: str) -> str:
    messages = [{"role": "user", "content": question}]
    completion = await openai.AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=messages)
    return completion.choices[0].message.content


@weave.op
def scorer(output: str, expected: str) -> dict[str, bool]:
    return {"answered": bool(output), "right": output == expected}


async def main() -> None:
    data = [{"question": row["question"], "expected": row["answer"]} for row in ROWS]
    result = (await weave.Evaluation(dataset=data, scorers=[scorer]).evaluate(answer))["scorer"]
    answered, right = (result[name]["true_count"] for name in ("answered", "right"))
    print(f"{answered} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
