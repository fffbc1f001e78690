"""DeepEval: 40 test cases that a G-Eval judge scores.

OPENAI_BASE_URL and OPENAI_API_KEY say who judges.
"""

import json
from pathlib import Path

from deepeval import evaluate
from deepeval.metrics import GEval
from deepeval.models import OpenAIModel
from deepeval.test_case import LLMTestCase, SingleTurnParams

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def main() -> None:
    correctness = GEval(
        name="Correctness",
        evaluation_steps=["Multiply the two numbers of the input.", "Compare the product with the actual output."],
        evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
        model=OpenAIModel(model="gpt-5-mini"),
    )
    cases = [LLMTestCase(input=row["question"], actual_output=row["answer"]) for row in ROWS]
    results = evaluate(test_cases=cases, metrics=[correctness]).test_results
    scored = [each for each in results if all(metric.error is None for metric in each.metrics_data or [])]
    right = sum(each.success for each in scored)
    print(f"{len(scored)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
