"""Deep Agents: 40 runs of one agent at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
AGENT = create_deep_agent(model=ChatOpenAI(model="gpt-5-mini"), system_prompt="Answer with the number alone.")


async def ask(question: str) -> str:
    state = await AGENT.ainvoke({"messages": [("user", question)]})
    return str(state["messages"][-1].content)


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
