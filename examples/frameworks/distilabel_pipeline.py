"""distilabel: a pipeline that generates an answer for each of 40 rows.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from pathlib import Path

from distilabel.models import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def main() -> None:
    with Pipeline(name="products") as pipeline:
        load = LoadDataFromDicts(data=[{"instruction": row["question"], "answer": row["answer"]} for row in ROWS])
        load >> TextGeneration(llm=OpenAILLM(model="gpt-5-mini"))
    made = list(pipeline.run(use_cache=False)["default"]["train"])
    answered = sum(bool(row["generation"]) for row in made)
    right = sum(row["generation"] == row["answer"] for row in made)
    print(f"{answered} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
