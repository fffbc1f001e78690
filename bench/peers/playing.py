"""One run: a row of the laboratory's table, a peer's driver, and a provider of their own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bench.environments import ROOT
from bench.measures import displacement
from bench.peers.catalogue import Peer
from bench.peers.runs import Run
from bench.scenarios import Row
from tidegate.testing import Limit, SimulatorProcess, Truth

DEADLINE = 90.0
"""Seconds after which a run is given up: five times the longest ideal, and longer than the longest stall of a peer."""

START_SECONDS = 90.0
GRACE = 10.0
"""What a driver may take to begin, and to tell its outcome after the deadline."""

MODEL = "gpt-4o-mini"
KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")


def play(row: Row, peer: Peer, seed: int, *, python: Path | None = None, deadline: float = DEADLINE) -> Run:
    """One run of a peer's driver against a fresh provider; another interpreter than the peer's own may be named."""
    calls = row.calls(seed)
    facts: dict[str, Any] = {
        "row": row.name,
        "peer": peer.name,
        "seed": seed,
        "calls": len(calls),
        "ideal": row.ideal(seed).makespan,
    }
    with SimulatorProcess(row.seeded(seed)) as provider:
        work = {
            "base_url": provider.openai_url,
            "api_key": "k",
            "model": MODEL,
            "sizes": [call.input_tokens for call in calls],
            "callers": row.callers,
            "deadline": deadline,
            "options": dict(peer.options),
            "limits": [told(limit) for limit in row.scenario.limiters] if peer.limits else [],
        }
        try:
            outcome = _drive(peer, python or peer.python, work, provider)
        except (OSError, EOFError, ValueError) as error:
            return Run(**facts, failure=str(error) or type(error).__name__)
        truth = provider.truth()
    return _run(facts, outcome, truth)


def _run(facts: dict[str, Any], outcome: dict[str, Any], truth: Truth) -> Run:
    total = truth.total
    claimed = outcome["ok"]
    failure = f"claims {claimed} answers, {total.answered} were given" if claimed > total.answered else ""
    return Run(
        **facts,
        makespan=outcome["wall_s"],
        cpu=outcome["cpu_s"],
        answered=claimed,
        losses=outcome["lost"],
        requests=total.received,
        refused=total.refusals - total.refused.get("outage", 0),
        displaced=displacement(map(int, truth.order)),
        failure=failure,
    )


def told(limit: Limit) -> dict[str, Any]:
    """A limit as a peer is told of it that is told at all; of a bucket, what it holds and how long it takes to fill."""
    holds = limit.limit if limit.burst is None else limit.burst
    fills = limit.window * holds / limit.limit
    return {"unit": "slots" if limit.kind == "slots" else limit.unit, "limit": holds, "window": fills}


def _drive(peer: Peer, python: Path, work: dict[str, Any], provider: SimulatorProcess) -> dict[str, Any]:
    """The dialogue with a driver (`drivers/work.py`); raises EOFError with its complaint, or TimeoutError."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile() as complaints:
        with _process(peer, python, home, complaints) as process:
            lines = Lines(process)
            try:
                lines.tell(json.dumps(work))
                lines.hear(START_SECONDS)
                provider.reset()
                lines.tell("go")
                outcome: dict[str, Any] = json.loads(lines.hear(work["deadline"] + GRACE))
            except (EOFError, BrokenPipeError):
                complaints.seek(0)
                said = complaints.read().decode(errors="replace").strip()
                raise EOFError(f"the driver ended: {said[-2000:]}") from None
        return outcome


@contextlib.contextmanager
def _process(peer: Peer, python: Path, home: str, complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The driver, in a session of its own, which is ended with all that it has left running."""
    surroundings = {name: os.environ[name] for name in KEPT if name in os.environ}
    surroundings |= {"HOME": home, "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "any"}
    process = subprocess.Popen(
        [str(python), "-m", f"bench.peers.drivers.{peer.driver}"],
        cwd=home,
        env={**surroundings, **peer.surroundings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        bufsize=0,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Lines:
    """The runner's end of the dialogue: lines to a process and from it, none waited for without end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise OSError("no pipes to the driver")
        self._in, self._out = process.stdin, process.stdout
        self._buffer = b""

    def tell(self, line: str) -> None:
        """Writes one line; raises BrokenPipeError where nobody reads."""
        self._in.write(line.encode() + b"\n")

    def hear(self, seconds: float) -> str:
        """The next line; raises TimeoutError after so many seconds, EOFError where none will come."""
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
            if not readable:
                raise TimeoutError(f"no word from the driver for {seconds:.0f} s")
            some = os.read(self._out.fileno(), 65536)
            if not some:
                raise EOFError
            self._buffer += some
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()
