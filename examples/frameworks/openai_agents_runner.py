"""OpenAI Agents SDK: an agent with a tool over 40 questions at once, two requests each.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from agents import Agent, ModelSettings, Runner, function_tool

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def main() -> None:
    agent = Agent(
        name="calculator",
        instructions="Use your tool. Answer with the number alone.",
        model="gpt-5-mini",
        tools=[multiply],
        model_settings=ModelSettings(tool_choice="required"),
    )
    runs = await asyncio.gather(*(Runner.run(agent, row["question"]) for row in ROWS))
    right = sum(run.final_output.strip() == row["answer"] for run, row in zip(runs, ROWS, strict=True))
    print(f"{len(runs)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
