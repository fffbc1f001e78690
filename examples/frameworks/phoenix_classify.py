"""Phoenix Evals: a classifier over a data frame of 40 rows.

OPENAI_BASE_URL and OPENAI_API_KEY say who judges.
"""

import asyncio
import json
from pathlib import Path

import pandas as pd
from phoenix.evals import LLM, async_evaluate_dataframe, create_classifier

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def main() -> None:
    correctness = create_classifier(
        name="correctness",
        prompt_template="{question} Is {answer} right?",
        llm=LLM(provider="openai", model="gpt-5-mini"),
        choices={"right": 1.0, "wrong": 0.0},
    )
    judged = await async_evaluate_dataframe(pd.DataFrame(ROWS), evaluators=[correctness])
    scores = [score["score"] for score in judged["correctness_score"] if score is not None]
    print(f"{len(scores)} of {len(ROWS)} rows answered, {sum(score == 1.0 for score in scores)} right")


if __name__ == "__main__":
    asyncio.run(main())
