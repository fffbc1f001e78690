"""smolagents: a model asked on 40 threads.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from smolagents import ChatMessage, OpenAIServerModel

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = OpenAIServerModel("gpt-5-mini", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def ask(question: str) -> str:
    return str(MODEL.generate([ChatMessage(role="user", content=question)]).content)


def main() -> None:
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(ask, (row["question"] for row in ROWS)))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    main()
