"""The experiment whose rows a Batch API answers in these tests; `SDK` says which one, at `PROVIDER`."""

from __future__ import annotations

import os
from typing import Any

from tidegate.experiments import BatchTask, Experiment

URL = os.environ["PROVIDER"]
client: Any
# Only the one that is used, as each of fifty processes imports it.
if os.environ["SDK"] == "openai":
    import openai

    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="any")
else:
    import anthropic

    client = anthropic.AsyncAnthropic(base_url=URL, api_key="any")


def build(row: Any) -> dict[str, Any]:
    return {"model": "gpt-test", "max_tokens": 9, "messages": [{"role": "user", "content": f"q{row['n']}"}]}


def parse(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"] if "choices" in answer else answer["content"][0]["text"])


def right(row: Any, output: Any) -> bool:
    return bool(output == f"You said: q{row['n']}")


task = BatchTask(build, parse, client=client, max_requests=int(os.environ["MOST"]))
e0 = Experiment("e0", os.environ["ROWS"], task, [right], batch=True)
