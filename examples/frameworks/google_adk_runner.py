"""Google's Agent Development Kit with LiteLLM: 40 sessions of one agent at once.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio
import json
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

ROWS = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").open()]
AGENT = LlmAgent(name="multiplier", model=LiteLlm(model="openai/gpt-5-mini"), instruction="Answer with the number.")
RUNNER = InMemoryRunner(agent=AGENT, app_name="products")


async def ask(question: str) -> str:
    session = await RUNNER.session_service.create_session(app_name="products", user_id="user")
    message = types.Content(role="user", parts=[types.Part(text=question)])
    answer = ""
    async for event in RUNNER.run_async(user_id="user", session_id=session.id, new_message=message):
        if event.error_code:
            raise RuntimeError(event.error_message)
        answer += "".join(part.text or "" for part in (event.content.parts if event.content else []))
    return answer


async def main() -> None:
    answers = await asyncio.gather(*(ask(row["question"]) for row in ROWS))
    right = sum(answer.strip() == row["answer"] for answer, row in zip(answers, ROWS, strict=True))
    print(f"{len(answers)} of {len(ROWS)} rows answered, {right} right")


if __name__ == "__main__":
    asyncio.run(main())
