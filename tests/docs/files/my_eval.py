"""The reader's own program, which pages name: 8 calls of a client that knows nothing of tidegate."""

import asyncio

import openai

from tidegate.experiments import Experiment

client = openai.AsyncOpenAI()


async def answer(row):
    completion = await client.chat.completions.create(
        model="gpt-5-mini", messages=[{"role": "user", "content": row["question"]}]
    )
    return completion.choices[0].message.content


async def main():
    return await asyncio.gather(*(answer({"question": f"What is {n} squared?"}) for n in range(8)))


experiment = Experiment(name="capitals", dataset="questions.jsonl", task=answer, evaluators=[])

if __name__ == "__main__":
    print(len(asyncio.run(main())), "answers")
