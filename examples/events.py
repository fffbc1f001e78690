"""What goes on inside: a line of status at each limit learnt and each refusal, and every second meanwhile.

OPENAI_API_KEY=… python examples/events.py
"""

import asyncio

import openai

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import Event, RateLimitHit, RateLimitLearned

registry = RateLimitRegistry()


def on_event(event: Event) -> None:
    # Called in whatever thread it happened in, so be quick: count, log, or put it into a queue.
    if isinstance(event, RateLimitLearned):
        print(f"learnt: {event.limit:g} {event.unit} for each {event.window:.3g} s")
    elif isinstance(event, RateLimitHit):
        print(f"refused: {event.kind}, retry after {event.retry_after}")


def status() -> str:
    """One line for each key: how many calls it has answered, how many are in flight, and how many wait for what."""
    return "; ".join(
        f"{key.scope or key.provider}: {now.answered} answered, {now.in_flight} in flight, {now.waiting} waiting"
        + (f" for {now.gate}" if now.gate else "")
        for key, now in registry.snapshot().keys.items()
    )


async def report() -> None:
    while True:
        await asyncio.sleep(1)
        print(status())


async def main() -> None:
    unsubscribe = registry.subscribe(on_event)
    async with registry.wrap(openai.AsyncOpenAI()) as client:
        reporting = asyncio.create_task(report())
        answers = await asyncio.gather(
            *(client.responses.create(model="gpt-5-mini", input=f"Name {number} animals.") for number in range(100))
        )
        reporting.cancel()
    unsubscribe()
    print(status())
    print(f"{len(answers)} calls answered")


if __name__ == "__main__":
    asyncio.run(main())
