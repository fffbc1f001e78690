"""Ray Data: an HTTP processor over a data set of 40 rows.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
import os
from pathlib import Path
from typing import Any

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def request(row: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": row["question"]}]
    return {"payload": {"model": "gpt-5-mini", "messages": messages}}


def answer(row: dict[str, Any]) -> dict[str, Any]:
    return {"said": row["http_response"]["choices"][0]["message"]["content"]}


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200_000_000)
    where = {
        "url": os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        "headers": {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    }
    ask = build_processor(HttpRequestProcessorConfig(**where), preprocess=request, postprocess=answer)
    answers = [row["said"] for row in ask(ray.data.from_items(ROWS)).take_all()]
    right = len({row["answer"] for row in ROWS}.intersection(answers))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
