"""Cost of a steady governed call in bytecodes: `PYTHONPATH=src python -m tools.call_cost [CASE ...] [--functions]`.

Each case prints the bytecodes of tidegate's own code in one call, the functions that every call enters, and the Python
calls. The counts are exact, and the load of the machine does not change them. They differ between versions of Python.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import openai

import tidegate
from bench.in_memory import AsyncNetwork, Block, Network, answer, streamed

SRC = str(Path(tidegate.__file__).parent) + "/"
URL = "https://api.openai.com/v1"
MODEL = "gpt-5-mini"
PROMPT = "Say in one sentence what a tide gate is for, and name one that stands in the Netherlands."
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]

WARM, COUNTED = 128, 128
"""Calls before the count, and counted ones: whole periods of what a call does now and then."""


def chat(pieces: list[bytes], callers: int = 1, stream: bool = False) -> Block:
    """Return a block of calls by `AsyncOpenAI`."""
    network = AsyncNetwork(pieces)
    sdk = openai.AsyncOpenAI(api_key="k" * 40, http_client=network.async_client(), base_url=URL)
    governed = network.registry.wrap(sdk)

    async def call() -> None:
        given = await governed.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
        if stream:
            async for _ in given:
                pass

    return network.at_once(call, callers)


def bare() -> Block:
    """Return a block of calls by httpx2 alone."""
    network = AsyncNetwork(answer())
    http, body = network.registry.wrap(network.async_client()), {"model": MODEL, "messages": MESSAGES}
    named = {"authorization": "Bearer " + "k" * 40}
    return network.at_once(lambda: http.post(f"{URL}/chat/completions", json=body, headers=named), 1)


def blocking() -> Block:
    """Return a block of calls by `OpenAI`."""
    network = Network(answer())
    sdk = network.registry.wrap(openai.OpenAI(api_key="k" * 40, http_client=network.client(), base_url=URL))

    def block(count: int) -> None:
        for _ in range(count):
            sdk.chat.completions.create(model=MODEL, messages=MESSAGES)

    return block


CASES: dict[str, Callable[[], Block]] = {
    "sequential": lambda: chat(answer()),
    "32 in flight": lambda: chat(answer(), callers=32),
    "stream": lambda: chat(streamed(), stream=True),
    "bare httpx2": bare,
    "no headers": lambda: chat(answer(b"")),
    "sync": blocking,
}


class CallCost(NamedTuple):
    """Cost of one call, in the mean: bytecodes and Python calls by function of tidegate."""

    bytecodes: dict[str, float]
    entries: dict[str, float]

    def __str__(self) -> str:
        total, calls = sum(self.bytecodes.values()), sum(self.entries.values())
        return f"{total:.0f} bytecodes, {self.functions} functions, {calls:.1f} Python calls"

    @property
    def functions(self) -> int:
        """Return the number of functions that each call enters."""
        return sum(entries > 0.9 for entries in self.entries.values())


def measure(case: str) -> CallCost:
    """Return the cost of a call of a case."""
    block = CASES[case]()
    block(WARM)
    bytecodes: Counter[str] = Counter()
    entries: Counter[str] = Counter()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code, caller = frame.f_code, frame.f_back
        name = code.co_filename.removeprefix(SRC) + ":" + code.co_qualname
        if code.co_filename == "<string>" and caller is not None and caller.f_code.co_filename.startswith(SRC):
            name = frame.f_globals["__name__"]  # the constructor of a named tuple has no file
        elif not code.co_filename.startswith(SRC):
            return None
        entries[name] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def look(frame: FrameType, event: str, argument: Any) -> Any:
            bytecodes[name] += event == "opcode"
            return look

        return look

    # What others have left to the collector is no part of a call.
    gc.collect()
    gc.disable()
    sys.settrace(enter)
    try:
        block(COUNTED)
    finally:
        sys.settrace(None)
        gc.enable()
    return CallCost(*({name: count / COUNTED for name, count in each.items()} for each in (bytecodes, entries)))


def main(arguments: list[str]) -> int:
    """Print the costs of the cases, with `--functions` those of each function; return 0."""
    for case in [each for each in arguments if each in CASES] or CASES:
        cost = measure(case)
        print(f"{case}: {cost}", flush=True)
        for name, count in (
            sorted(cost.bytecodes.items(), key=lambda item: -item[1]) if "--functions" in arguments else ()
        ):
            print(f"{count:9.1f} {cost.entries[name]:6.2f}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
