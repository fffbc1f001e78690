"""LangChain: a chain over 40 questions with `abatch`, which asks all of them at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def main() -> None:
    prompt = ChatPromptTemplate([("system", "Answer with the number alone."), ("user", "{question}")])
    chain = prompt | ChatOpenAI(model="gpt-5-mini") | StrOutputParser()
    answers = await chain.abatch([{"question": row["question"]} for row in ROWS])
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
