"""Streams from threads: 60 answers of Anthropic's API, each read piece by piece in a thread of its own.

    ANTHROPIC_API_KEY=… python examples/anthropic_stream.py

Threads, event loops and trio stand in the same queue. A stream keeps its place until it has been read to the end or
closed, so what is in flight is always true.
"""

from concurrent.futures import ThreadPoolExecutor

import anthropic

import tidegate

client = tidegate.wrap(anthropic.Anthropic())


def tell(number: int) -> str:
    with client.messages.stream(
        model="claude-sonnet-5",
        max_tokens=100,
        messages=[{"role": "user", "content": f"Tell me one fact about the number {number}."}],
    ) as stream:
        return "".join(piece for piece in stream.text_stream)


def main() -> None:
    with client, ThreadPoolExecutor(max_workers=60) as pool:
        facts = list(pool.map(tell, range(60)))
    print(facts[0])
    print(f"{len(facts)} calls answered")


if __name__ == "__main__":
    main()
