"""Langfuse: `run_experiment` over 40 items with an evaluator, without an account.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from pathlib import Path

from langfuse import Evaluation, Langfuse
from langfuse.openai import AsyncOpenAI

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def task(*, item: dict, **others: object) -> str:
    messages = [{"role": "user", "content": item["input"]}]
    answer = await AsyncOpenAI().chat.completions.create(model="gpt-5-mini", messages=messages)
    return answer.choices[0].message.content


def evaluator(*, output: str, expected_output: str, **others: object) -> Evaluation:
    return Evaluation(name="right", value=float(output == expected_output))


def main() -> None:
    client = Langfuse(public_key="any", secret_key="any", host="http://127.0.0.1:9", tracing_enabled=False)
    data = [{"input": row["question"], "expected_output": row["answer"]} for row in ROWS]
    results = client.run_experiment(name="products", data=data, task=task, evaluators=[evaluator]).item_results
    right = sum(each.value == 1.0 for result in results for each in result.evaluations)
    print(f"{len(results)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
