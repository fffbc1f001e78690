"""200 calls at once, at your provider's true limit, and no call lost.

    OPENAI_API_KEY=… python examples/quickstart.py

Or without a key: run `tidegate simulate --dialect openai --rpm 600` and set the two variables that it prints.
"""

import asyncio

import openai

import tidegate


async def ask(client: openai.AsyncOpenAI, number: int) -> str:
    completion = await client.chat.completions.create(
        model="gpt-5-mini", messages=[{"role": "user", "content": f"What is {number} + {number}?"}]
    )
    return completion.choices[0].message.content or ""


async def main() -> None:
    # `wrap` is all there is to it: the same client comes back, and from now on its requests stand in a queue that moves
    # as fast as the provider bears. Without it, most of these calls end in a RateLimitError.
    async with tidegate.wrap(openai.AsyncOpenAI()) as client:
        answers = await asyncio.gather(*(ask(client, number) for number in range(200)))
    print(answers[0])
    print(f"{len(answers)} calls answered")


if __name__ == "__main__":
    asyncio.run(main())
