"""Opik: its G-Eval metric over 40 answers at once, without an account.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from opik.evaluation.metrics import GEval
from opik.evaluation.models import LiteLLMChatModel

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = LiteLLMChatModel("openai/gpt-5-mini", track=False)


async def main() -> None:
    metric = GEval("You judge products.", "Is the product right? From 0 to 10.", model=MODEL, track=False)
    scores = await asyncio.gather(*(metric.ascore(output=f"{row['question']} {row['answer']}") for row in ROWS))
    right = sum(score.value == 1.0 for score in scores)
    print(f"{len(scores)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
