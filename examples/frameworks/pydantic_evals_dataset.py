"""Pydantic AI and Pydantic Evals: an agent over a dataset of 40 cases, each checked against what is expected.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from pathlib import Path

from pydantic_ai import Agent
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def main() -> None:
    agent = Agent("openai-chat:gpt-5-mini", output_type=int, instructions="Multiply.")

    async def multiply(question: str) -> int:
        return (await agent.run(question)).output

    cases = [Case(inputs=row["question"], expected_output=int(row["answer"])) for row in ROWS]
    dataset = Dataset(name="products", cases=cases, evaluators=[EqualsExpected()])
    report = dataset.evaluate_sync(multiply)
    right = sum(each.value is True for case in report.cases for each in case.assertions.values())
    print(f"{len(report.cases)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
