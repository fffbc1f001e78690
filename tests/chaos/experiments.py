"""The experiments that replicas run in these tests, `e0` to `e5`: real clients, and a ledger of every call.

The environment says where everything is: `PUPIL` and `TEACHER` are two providers, `ROWS` the dataset, `LEDGER` the file
that gets a line where a function begins and where it ends. Where `GATE` names a file, rows from `GATED` on end only
when it is there: what is under way then is known to be under way. `SPREAD` lets several replicas run one experiment.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import openai

from tidegate.experiments import Experiment

ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
gate = Path(os.environ["GATE"]) if "GATE" in os.environ else None
gated = int(os.environ.get("GATED", "0"))
clients = {name: openai.AsyncOpenAI(base_url=os.environ[name], api_key="any") for name in ("PUPIL", "TEACHER")}


def note(what: str, experiment: str, stage: str, row: Any) -> None:
    """One line, in one write: it is there whatever ends the process next."""
    os.write(ledger, f"{os.getpid()} {what} {experiment} {stage} {row['n']}\n".encode())


async def opened() -> None:
    """Wait for the file that the test will make; once it is there, return although the function is cancelled.

    A replica that wakes may learn in one look that the file is there and that its claim is lost.
    """
    try:
        while gate is not None and not gate.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        if gate is None or not gate.exists():
            raise


def asking(experiment: str, stage: str, provider: str) -> Any:
    async def ask(row: Any, output: Any = None) -> float:
        note("begin", experiment, stage, row)
        await clients[provider].chat.completions.create(
            model="gpt-test", messages=[{"role": "user", "content": f"{stage} {row['n']}"}]
        )
        if gate is not None and row["n"] >= gated:
            note("held", experiment, stage, row)
            await opened()
        note("end", experiment, stage, row)
        return 1.0

    ask.__name__ = stage
    return ask


def made(name: str) -> Experiment:
    """One of them: a task and two judges, each row twice."""
    judges = [asking(name, "correct", "TEACHER"), asking(name, "short", "TEACHER")]
    spread = "SPREAD" in os.environ
    return Experiment(name, os.environ["ROWS"], asking(name, "task", "PUPIL"), judges, repetitions=2, spread=spread)


e0, e1, e2, e3, e4, e5 = (made(f"e{number}") for number in range(6))
