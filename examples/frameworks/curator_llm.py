"""Bespoke Curator: a generator over 40 prompts.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
import os
from pathlib import Path

from bespokelabs import curator

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def main() -> None:
    where = {"base_url": os.environ["OPENAI_BASE_URL"]}
    model = curator.LLM(model_name="gpt-5-mini", backend="openai", backend_params=where)
    made = model([row["question"] for row in ROWS]).dataset
    answers = [row["response"] for row in made]
    right = len({row["answer"] for row in ROWS}.intersection(answers))
    print(f"{sum(map(bool, answers))} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
