"""The reader's own program, which pages name: 8 calls of a client that knows nothing of tidegate."""

import asyncio
import os

import httpx2

from tidegate.experiments import Experiment

client = httpx2.AsyncClient(
    base_url=os.environ["OPENAI_BASE_URL"], headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
)


async def answer(row):
    body = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": row["question"]}]}
    answered = (await client.post("/chat/completions", json=body, timeout=600)).raise_for_status()
    return answered.json()["choices"][0]["message"]["content"]


async def main():
    return await asyncio.gather(*(answer({"question": f"What is {n} squared?"}) for n in range(8)))


experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[])

if __name__ == "__main__":
    print(len(asyncio.run(main())), "answers")
