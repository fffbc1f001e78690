"""Count of the files of tidegate that a call and a row pass through: `PYTHONPATH=src python tools/call_path.py`.

Each trip prints the files below `src/tidegate` in which a Python function is entered, and the changes from one file to
another. `--files` lists them in the order of their first entry. CPython 3.11, httpx with a transport in memory.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import tidegate
from tidegate.admission.registry import RateLimitRegistry

SRC = str(Path(tidegate.__file__).parent)
HEADERS = {
    "x-ratelimit-limit-requests": "100",
    "x-ratelimit-remaining-requests": "99",
    "x-ratelimit-reset-requests": "1s",
}
ANSWER = {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}
REFUSAL = {"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached for requests per min (RPM)"}}
SOON = {**HEADERS, "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "10ms", "retry-after-ms": "10"}
BODY = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "What is 2 x 2?"}], "max_tokens": 5}


class Trip:
    """The files that Python functions are entered in, on every thread, while the trip is recorded."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.changes = 0
        self._last = ""

    def __enter__(self) -> Trip:
        threading.setprofile(self._entered)
        sys.setprofile(self._entered)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(SRC) or frame.f_code.co_name == "<module>":
            return
        self.files[name] = self.files.get(name, 0) + 1
        self.changes += name != self._last
        self._last = name


def recorded(step: Callable[[], object]) -> Trip:
    """Return what a step passes through."""
    with Trip() as trip:
        step()
    return trip


class Provider:
    """Provider with one quota; it refuses the next `refusals` attempts with a 429."""

    def __init__(self) -> None:
        self.refusals = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.refusals:
            self.refusals -= 1
            return httpx.Response(429, headers=SOON, json=REFUSAL)
        return httpx.Response(200, headers=HEADERS, json=ANSWER)


def row() -> None:
    """Run an experiment of one row with one judge."""
    from tidegate.experiments import Evaluator, Experiment

    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            "one", [{"n": 1}], lambda row: row["n"] * 2, [Evaluator(lambda row, output: 1.0, name="j")]
        )
        assert experiment.run(str(Path(folder) / "runs.db")).complete


def main(arguments: list[str]) -> int:
    """Print the counts of the four trips; return 0."""
    provider = Provider()
    client = RateLimitRegistry(tidegate.Settings(telemetry=False)).wrap(
        httpx.Client(transport=httpx.MockTransport(provider.answer), base_url="https://api.openai.com/v1")
    )

    def call() -> None:
        assert client.post("/chat/completions", json=BODY, headers={"authorization": "Bearer sk-x"}).status_code == 200

    trips = {"first call of a key": recorded(call)}
    call()
    # Headers of an ample quota are read now and then: the second answer's were, the third one's are not.
    trips["steady call"] = recorded(call)
    provider.refusals = 1
    trips["call refused once"] = recorded(call)
    row()
    trips["one row, one judge"] = recorded(row)
    for name, trip in trips.items():
        calls = sum(trip.files.values())
        print(f"{name}: {len(trip.files)} files, {trip.changes} changes of file, {calls} Python calls")
        if "--files" in arguments:
            print(*(f"    {Path(file).relative_to(SRC)} {count}" for file, count in trip.files.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
