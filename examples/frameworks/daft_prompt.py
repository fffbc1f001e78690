"""Daft: a column of answers, made by `prompt`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
from pathlib import Path

import daft
from daft.functions import prompt

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


def main() -> None:
    frame = daft.from_pydict({"question": [row["question"] for row in ROWS]})
    asked = prompt(daft.col("question"), model="gpt-5-mini", provider="openai", use_chat_completions=True)
    answers = frame.with_column("answer", asked).to_pydict()["answer"]
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
