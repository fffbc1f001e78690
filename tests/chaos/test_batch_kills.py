"""`kill -9` while batches are uploaded, created, looked at and fetched: no row is lost, and none is sent twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests import constants
from tests.chaos.processes import end, known, status
from tests.cli.running import TIDEGATE, environ
from tests.storage.places import Place
from tests.warm import WarmProcess
from tidegate.testing import Scenario, Simulator
from tidegate.testing.batches import BatchAnswer, BatchApi
from tidegate.testing.wire import Request

SOURCE = Path(__file__).with_name("batched.py")
ROOT = Path(__file__).parents[2]

STEPS = {
    "openai": {
        "upload": ("POST", "/v1/files"),
        "submit": ("POST", "/v1/batches"),
        "poll": ("GET", "/v1/batches/"),
        "fetch": ("GET", "/v1/files/"),
        "search": ("GET", "/v1/batches"),
    },
    "anthropic": {
        "submit": ("POST", "/v1/messages/batches"),
        "poll": ("GET", "/v1/messages/batches/"),
        "fetch": ("GET", "/v1/messages/batches/"),
        "search": ("GET", "/v1/messages/batches"),
    },
}
"""Requests during which a process is killed, by SDK."""


PATIENCE = 900.0
"""Seconds for which a process is waited for. Chosen: the last process answers most of the batches, in 40 s on an idle
machine, and in minutes beside other work."""


class Killer:
    """Kill of a process at a request to the provider: before the provider acts on it, or before it answers."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._after: tuple[str, str] | None = None
        self._skipped = 0
        self._late = False
        self.kills: Counter[str] = Counter()
        self.step = ""

    def arm(self, step: str, at: tuple[str, str], skipped: int, late: bool) -> None:
        """Kill at the request with this method and path behind so many others; `late` when the provider has acted."""
        self.step, self._after, self._skipped, self._late = step, at, skipped, late

    def disarm(self) -> None:
        self._after = None

    def at(self, request: Request, late: bool) -> None:
        with self._lock:
            if self._after is None or late != self._late or request.method != self._after[0]:
                return
            exact = not self._after[1].endswith("/")
            if request.path != self._after[1] if exact else not request.path.startswith(self._after[1]):
                return
            if self.step == "fetch" and not request.path.endswith(("/content", "/results")):
                return
            self._skipped -= 1
            if self._skipped < 0 and self.process is not None:
                self._after = None
                self.kills[self.step] += 1
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    """A killer that sees every request to the batch endpoints."""
    made, handle = Killer(), BatchApi.handle

    def seen(self: BatchApi, request: Request) -> BatchAnswer | None:
        made.at(request, late=False)
        answer = handle(self, request)
        made.at(request, late=True)
        return answer

    monkeypatch.setattr(BatchApi, "handle", seen)
    return made


@pytest.fixture
def provider() -> Iterator[Simulator]:
    with Simulator(Scenario(batch_seconds=0.2)) as simulator:
        yield simulator


def submitted(provider: Simulator, sdk: str) -> Counter[str]:
    """How often each question is in a batch at the provider: each is paid for."""
    if sdk == "anthropic":
        with anthropic.Anthropic(base_url=provider.url, api_key="any") as client:
            found = [client.messages.batches.results(each.id) for each in client.messages.batches.list()]
            return Counter(
                line.result.message.content[0].text.removeprefix("You said: ")  # type: ignore[union-attr]
                for lines in found
                for line in lines
            )
    with openai.OpenAI(base_url=provider.openai_url, api_key="any") as client:
        files = [client.files.content(each.input_file_id).text for each in client.batches.list()]
    lines = [json.loads(line) for text in files for line in text.splitlines()]
    return Counter(line["body"]["messages"][0]["content"] for line in lines)


def run(path: Path, place: Place, killer: Killer, env: dict[str, str]) -> int:
    """Run or resume the experiment in a process of its own, to its end or its kill; return the process's code."""
    words = ("run", "e0") if known(place, "e0") else ("run", f"{SOURCE}:e0")
    with (path / "said").open("ab") as said:
        killer.process = WarmProcess(
            [*TIDEGATE[1:], "experiment", *words, "--db", place.url], env=environ(**env), cwd=path, stdout=said,
            stderr=said, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        return killer.process.wait(PATIENCE)
    finally:
        end(killer.process)


@pytest.mark.parametrize(
    ("place", "sdk", "kills", "rows"),
    [
        ("sqlite", "openai", 4, 12),
        pytest.param("sqlite", "anthropic", 4, 12, marks=pytest.mark.chaos),
        pytest.param("postgresql", "openai", 4, 12, marks=pytest.mark.chaos),
        pytest.param("sqlite", "openai", 50, 200, marks=pytest.mark.chaos),
        pytest.param("postgresql", "openai", 50, 200, marks=pytest.mark.chaos),
        pytest.param("sqlite", "anthropic", 50, 200, marks=pytest.mark.chaos),
        pytest.param("postgresql", "anthropic", 50, 200, marks=pytest.mark.chaos),
    ],
    indirect=["place"],
)
def test_batches_of_a_run_that_is_killed_are_neither_lost_nor_sent_again(
    tmp_path: Path, place: Place, provider: Simulator, killer: Killer, sdk: str, kills: int, rows: int
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": number}) + "\n" for number in range(rows)))
    env: dict[str, Any] = {
        "PROVIDER": provider.url, "SDK": sdk, "MOST": "2", "ROWS": str(tmp_path / "rows.jsonl"),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TIDEGATE_LOG": "off",
        **constants.environ(POLL_SECONDS=0.1, SEARCH_SECONDS=0.5, SETTLE_SECONDS=0.1),
    }  # fmt: skip
    drawn = random.Random(f"{kills} kills with {sdk}")
    first, then = (
        [(step, at) for step, at in STEPS[sdk].items() if (step in ("poll", "fetch")) is ending]
        for ending in (False, True)
    )
    for number in range(kills):
        # Rows that are at the provider are not uploaded again, so these kills come first.
        step, at = first[number % len(first)] if number < kills // 2 else then[number % len(then)]
        # At most one request of a dead process is unanswered, so a process searches once.
        skipped = drawn.randrange(2) if number and step != "search" else 0
        killer.arm(step, at, skipped, late=drawn.random() < 0.5)
        code = run(tmp_path, place, killer, env)
        killer.disarm()
        assert code == -signal.SIGKILL, (step, dict(killer.kills), (tmp_path / "said").read_text()[-4000:])
    assert run(tmp_path, place, killer, env) == 0, (tmp_path / "said").read_text()[-4000:]
    assert status(place, "e0") == "COMPLETED"
    judged = place.sql("SELECT status, score, count(*) FROM tidegate_annotations GROUP BY status, score")
    assert judged == [("ok", 1.0, rows)]
    assert submitted(provider, sdk) == Counter({f"q{number}": 1 for number in range(rows)})
