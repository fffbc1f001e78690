"""Several processes on one key of one provider: real SDKs over loopback, apart from each other and sharing the limit.

    python -m bench.processes [--only NAME[,NAME…]] [--processes 4,8] [--seeds 5] [--share off,auto,redis,postgresql]

Each value of the setting `share` takes its turn at each seed; for `redis` and `postgresql` a server is started. A
provider's minute is scaled to 6 s. A worker that is killed makes no further calls; the ideal is that of the calls that
the provider admitted. In the works named `server-away` that server is killed in mid-run and started later.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.common import Check, conclude, table
from bench.scenarios import AMPLE_TOKENS, LATENCY, MINUTE
from tests.postgres import served
from tests.shared_log.redis_server import RedisServer
from tidegate.testing import Call, Limit, Scenario, SimulatorProcess, Truth, ideal_schedule

MOST_LONGER, MOST_LONGER_KILLED = 1.03, 1.05
"""Makespan over the ideal."""

MOST_REFUSED, MOST_REFUSED_KILLED = 0.002, 0.005
"""Refusals for each call."""

MOST_LONGER_SERVER, MOST_REFUSED_SERVER, MOST_CPU = 1.05, 0.005, 0.001
"""The same where processes share through a server, and its CPU seconds for each call beside that of unshared ones."""

MOST_REFUSED_AWAY, MOST_LATE = 0.05, 2.0
"""Refusals for each call while the server is away, and seconds from its return until all processes share again."""

MOST_SPREAD = 0.25
"""Difference between the first and the last worker's end over the makespan, where all have as many calls."""

PATIENCE = 120.0
"""Seconds until a worker that does not end is given up."""

HEADER = ("", "processes", "share", "ratio", "429s/call", "lost", "spread", "CPU us/call", "429s away", "late s")

APART = ("off", "auto")
"""Values of the setting that need no server."""


@dataclass(frozen=True, slots=True)
class Work:
    """Calls that some processes make at once.

    `limit` is in requests for each `minute` (seconds), `callers` in all processes together. `burst` is the bucket's
    capacity, if not `limit`. An `uneven` work gives the first process seven of ten calls. The processes numbered
    `killed` die after a sixth of the ideal time, one after the other. The server is killed after `away[0]` seconds, for
    `away[1]` seconds.
    """

    name: str
    limit: float
    count: int
    callers: int
    uneven: bool = False
    killed: tuple[int, ...] = ()
    burst: float | None = None
    minute: float = MINUTE
    away: tuple[float, float] | None = None

    def scenario(self, seed: int) -> Scenario:
        """Return the provider, its latencies drawn by `seed`."""
        limiters = (Limit(limit=self.limit, window=self.minute, burst=self.burst), AMPLE_TOKENS)
        return Scenario(dialect="openai", limiters=limiters, latency=LATENCY, seed=seed)

    def shares(self, processes: int) -> list[int]:
        """Return the number of calls of each process."""
        first = self.count * 7 // 10 if self.uneven else self.count // processes
        others = (self.count - first) // (processes - 1)
        return [self.count - others * (processes - 1)] + [others] * (processes - 1)


WORKS = (
    Work("120-a-minute", 120, 360, 64),
    Work("120-uneven", 120, 360, 64, uneven=True),
    Work("120-two-killed", 120, 360, 64, killed=(1, 2)),
    Work("120-burst-10", 120, 60, 8, burst=10, minute=60.0),
    Work("600-a-minute", 600, 1500, 256),
    Work("600-two-killed", 600, 1500, 256, killed=(1, 2)),
    Work("600-server-away", 600, 3000, 256, away=(6.0, 10.0)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `spread` is nan where a worker was killed; `cpu` is in seconds for each call.

    `away` is the refusals for each call while the server was away, `late` the seconds until all shared again.
    """

    ratio: float
    refused: float
    lost: int
    spread: float
    cpu: float
    away: float = 0.0
    late: float = 0.0


async def _ask_all(url: str, calls: int, callers: int) -> dict[str, Any]:
    """Make the calls of one worker, and return its losses, its end in monotonic seconds and its CPU seconds."""
    import openai

    import tidegate

    tidegate.install()
    lost = 0
    # Whether the key was shared, with the instant of each change in monotonic seconds.
    shared: list[tuple[float, bool]] = []

    async def watch() -> None:
        while True:
            for key in tidegate.registry().snapshot().keys.values():
                if not shared or shared[-1][1] is bool(key.share_lost):
                    shared.append((time.monotonic(), not key.share_lost))
            await asyncio.sleep(0.1)

    async with openai.AsyncOpenAI(base_url=url, api_key="k") as client:
        # The first request of a process loads modules that the others find loaded.
        await client.models.list()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        spent = time.process_time()
        left = iter(range(calls))

        async def caller() -> None:
            nonlocal lost
            for _ in left:
                try:
                    await client.chat.completions.create(
                        model="gpt-5-mini", messages=[{"role": "user", "content": "x" * 160}]
                    )
                except openai.OpenAIError:
                    lost += 1

        watching = asyncio.create_task(watch())
        await asyncio.gather(*(caller() for _ in range(callers)))
        watching.cancel()
        return {"lost": lost, "ended": time.monotonic(), "cpu": time.process_time() - spent, "shared": shared}


@contextmanager
def _worker(url: str, calls: int, callers: int, share: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "TIDEGATE_SHARE": share}
    command = [sys.executable, "-m", "bench.processes", "--work", url, str(calls), str(callers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class LogServer(Protocol):
    """A server that the bench starts, kills and starts again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


@contextmanager
def _served(share: str) -> Iterator[tuple[str, LogServer | None]]:
    """Start the server that `share` names; give the value of the setting."""
    if share == "redis":
        with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
            redis = RedisServer(Path(folder))
            redis.start()
            try:
                yield redis.url, redis
            finally:
                redis.stop()
    elif share == "postgresql":
        with served() as postgresql:
            yield postgresql.url("postgres"), postgresql
    else:
        yield share, None


def run(work: Work, processes: int, share: str, seed: int) -> Outcome:
    """Return the outcome of one run with that number of processes."""
    scenario, shares = work.scenario(seed), work.shares(processes)
    with SimulatorProcess(scenario) as simulator, ExitStack() as stack:
        share, server = stack.enter_context(_served(share))
        workers = [
            stack.enter_context(_worker(simulator.openai_url, calls, max(1, work.callers * calls // work.count), share))
            for calls in shares
        ]
        for worker in workers:
            if _line(worker) != "ready":
                raise RuntimeError("a worker did not start")
        simulator.reset()
        began = time.monotonic()
        for worker in workers:
            _write(worker, "go\n")
        for number in work.killed:
            time.sleep(work.count / work.limit * work.minute / 6)
            os.kill(workers[number].pid, signal.SIGKILL)
        marks: list[tuple[float, Truth]] = []
        if work.away is not None and server is not None:
            for wait, act in zip(work.away, (server.kill, server.start), strict=True):
                time.sleep(wait)
                act()
                marks.append((time.monotonic(), simulator.truth()))
        living = [worker for number, worker in enumerate(workers) if number not in work.killed]
        reports = [json.loads(worker.communicate(timeout=PATIENCE)[0]) for worker in living]
        return _outcome(work, seed, simulator.truth(), began, reports, marks)


def _outcome(
    work: Work,
    seed: int,
    truth: Truth,
    began: float,
    reports: Sequence[dict[str, Any]],
    marks: Sequence[tuple[float, Truth]],
) -> Outcome:
    start, admitted = truth.admitted_at[0], len(truth.admitted_at)
    calls = [Call(40) for _ in range(admitted)]
    ideal = ideal_schedule(work.scenario(seed), calls, concurrency=work.callers, drawn=True, start=start)
    ends = [report["ended"] - began for report in reports]
    made = sum(work.shares(len(reports))) if not work.killed else admitted
    return Outcome(
        ratio=(max(ends) - start) / (ideal.makespan - start),
        refused=truth.total.refusals / made,
        lost=sum(report["lost"] for report in reports),
        spread=(max(ends) - min(ends)) / max(ends),
        cpu=sum(report["cpu"] for report in reports) / made,
        away=_refused_between(*(truth for _, truth in marks)) if marks else 0.0,
        late=max(_shared_at(report["shared"], marks[1][0]) for report in reports) - marks[1][0] if marks else 0.0,
    )


def _refused_between(first: Truth, second: Truth) -> float:
    """Return the refusals for each admitted call between two instants."""
    refused = second.total.refusals - first.total.refusals
    return refused / max(1, second.total.admitted - first.total.admitted)


def _shared_at(changes: Sequence[tuple[float, bool]], returned: float) -> float:
    """Return when a worker shared again; the instant of the return where it never knew that the server was away."""
    if all(is_shared for _, is_shared in changes):
        return returned
    at, is_shared = changes[-1]
    return at if is_shared else math.inf


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None, "opened as a pipe"
    return worker.stdout.readline().strip()


def _write(worker: subprocess.Popen[str], text: str) -> None:
    assert worker.stdin is not None, "opened as a pipe"
    worker.stdin.write(text)
    worker.stdin.flush()


def checks(work: Work, processes: int, share: str, found: Sequence[Outcome], apart: float) -> list[Check]:
    """Return the bounds of a work whose processes share the limit; `apart` is the CPU of unshared ones (0: unknown)."""
    longer, refused = (MOST_LONGER_KILLED, MOST_REFUSED_KILLED) if work.killed else (MOST_LONGER, MOST_REFUSED)
    name = f"{work.name}, {processes} processes, {share}"
    if share not in APART:
        longer, refused = MOST_LONGER_SERVER, MOST_REFUSED_SERVER
    asked = [
        Check(f"{name}: times the ideal", statistics.median(one.ratio for one in found), longer),
        Check(f"{name}: 429s for each call", statistics.median(one.refused for one in found), refused),
        Check(f"{name}: calls lost", max(one.lost for one in found), 0),
    ]
    if not (work.uneven or work.killed):
        spread = statistics.median(one.spread for one in found)
        asked.append(Check(f"{name}: spread of the ends", spread, MOST_SPREAD))
    if work.away is not None:
        asked[1:2] = [
            Check(f"{name}: 429s while away", statistics.median(one.away for one in found), MOST_REFUSED_AWAY),
            Check(f"{name}: seconds until shared", statistics.median(one.late for one in found), MOST_LATE),
        ]
    elif share not in APART and apart:
        cpu = statistics.median(one.cpu for one in found) - apart
        asked.append(Check(f"{name}: CPU seconds a call more", cpu, MOST_CPU))
    return asked


def measure(works: Sequence[Work], counts: Sequence[int], shares: Sequence[str], seeds: int) -> int:
    """Print the table; return 1 where a bound is missed by processes that share."""
    lines, asked, figures = [], list[Check](), dict[str, Any]()
    for work in works:
        for processes in counts:
            # Only a server can be away.
            asking = [share for share in shares if work.away is None or share not in APART]
            found: dict[str, list[Outcome]] = {share: [] for share in asking}
            for seed in range(seeds):
                for share in asking:
                    found[share].append(run(work, processes, share, seed))
            apart = statistics.median(one.cpu for one in found["off"]) if "off" in found else 0.0
            for share, outcomes in found.items():
                lines.append(_row(work, processes, share, outcomes))
                figures[f"{work.name}, {processes}, {share}"] = [asdict(one) for one in outcomes]
                if share != "off":
                    asked += checks(work, processes, share, outcomes, apart)
    table(f"Processes on one key (medians of {seeds})", HEADER, lines)
    return conclude("processes", figures, asked)


def _row(work: Work, processes: int, share: str, found: Sequence[Outcome]) -> list[str]:
    return [
        work.name,
        str(processes),
        share,
        f"{statistics.median(one.ratio for one in found):.3f}",
        f"{statistics.median(one.refused for one in found):.4f}",
        str(sum(one.lost for one in found)),
        f"{statistics.median(one.spread for one in found):.2f}",
        f"{1e6 * statistics.median(one.cpu for one in found):.0f}",
        f"{statistics.median(one.away for one in found):.4f}" if work.away else "",
        f"{statistics.median(one.late for one in found):.2f}" if work.away else "",
    ]


def main() -> int:
    """Measure, or be one worker."""
    parser = argparse.ArgumentParser(description="Processes on one key, apart and sharing the limit")
    parser.add_argument("--only", default="", help="works by name, with commas between (default all)")
    parser.add_argument("--processes", default="4,8", help="numbers of processes (default %(default)s)")
    parser.add_argument("--share", default="off,auto", help="values of the setting (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--work", nargs=3, metavar=("URL", "CALLS", "CALLERS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        url, calls, callers = given.work
        print(json.dumps(asyncio.run(_ask_all(url, int(calls), int(callers)))))
        return 0
    names = [name for name in given.only.split(",") if name]
    if unknown := set(names) - {work.name for work in WORKS}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    works = [work for work in WORKS if not names or work.name in names]
    return measure(works, [int(each) for each in given.processes.split(",")], given.share.split(","), given.seeds)


if __name__ == "__main__":
    raise SystemExit(main())
