"""Ray: four actors at one key, which share its limits. `runtime_env` reaches each worker.

OPENAI_BASE_URL and OPENAI_API_KEY say who is asked.
"""

import asyncio

import openai
import ray

ROWS = 120


@ray.remote(num_cpus=0)
class Asker:
    async def ask(self, rows: list[int]) -> list[str | None]:
        async with openai.AsyncOpenAI() as client:
            return await asyncio.gather(*(self.answer(client, row) for row in rows))

    async def answer(self, client: openai.AsyncOpenAI, row: int) -> str | None:
        messages = [{"role": "user", "content": f"Say {row}."}]
        found = await client.chat.completions.create(model="gpt-5-mini", messages=messages)
        return found.choices[0].message.content


def main() -> None:
    everywhere = {"worker_process_setup_hook": "tidegate.install"}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=100_000_000,
        runtime_env=everywhere,
    )
    askers = [Asker.remote() for _ in range(4)]
    parts = [list(range(first, ROWS, 4)) for first in range(4)]
    answers = ray.get([asker.ask.remote(part) for asker, part in zip(askers, parts, strict=True)])
    print(f"{sum(map(len, answers))} of {ROWS} rows answered")
    ray.shutdown()


if __name__ == "__main__":
    main()
