"""CrewAI: a crew of one agent over 40 inputs with `kickoff_for_each_async`.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from crewai import Agent, Crew, Task

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


async def main() -> None:
    agent = Agent(role="clerk", goal="multiply", backstory="You answer with numbers.", llm="openai/gpt-5-mini")
    task = Task(description="{question}", expected_output="The number alone.", agent=agent)
    crew = Crew(agents=[agent], tasks=[task])
    outputs = await crew.kickoff_for_each_async(inputs=[{"question": row["question"]} for row in ROWS])
    answers = [output.raw for output in outputs]
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
