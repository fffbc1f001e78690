"""LangGraph: a graph of one node over 40 questions with `abatch`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
MODEL = ChatOpenAI(model="gpt-5-mini")


async def call(state: MessagesState) -> dict[str, list]:
    return {"messages": [await MODEL.ainvoke(state["messages"])]}


async def main() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("model", call)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    states = await graph.compile().abatch([{"messages": [("user", row["question"])]} for row in ROWS])
    answers = [state["messages"][-1].content for state in states]
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
