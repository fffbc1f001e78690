"""LiteLLM: 40 calls of `acompletion` at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked; another provider is another prefix of the model's name.
"""

import asyncio
import json
from pathlib import Path

import litellm

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = "openai/gpt-5-mini"


async def ask(question: str) -> str:
    prompt = f"{question} Answer with the number alone."
    answer = await litellm.acompletion(model=MODEL, messages=[{"role": "user", "content": prompt}])
    return answer.choices[0].message.content or ""


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
