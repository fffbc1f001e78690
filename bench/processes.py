"""Several processes on one key of one provider: real SDKs over loopback, apart from each other and sharing the limit.

    python -m bench.processes [--only NAME[,NAME…]] [--processes 4,8] [--seeds 5] [--share off,auto]

Each value of the setting `share` takes its turn at each seed. A provider's minute is scaled to 6 s. A worker that is
killed makes no further calls; the ideal is that of the calls that the provider admitted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from bench.common import Check, conclude, table
from bench.scenarios import AMPLE_TOKENS, LATENCY, MINUTE
from tidegate.testing import Call, Limit, Scenario, SimulatorProcess, Truth, ideal_schedule

MOST_LONGER, MOST_LONGER_KILLED = 1.03, 1.05
"""Makespan over the ideal."""

MOST_REFUSED, MOST_REFUSED_KILLED = 0.002, 0.005
"""Refusals for each call."""

MOST_SPREAD = 0.25
"""Difference between the first and the last worker's end over the makespan, where all have as many calls."""

PATIENCE = 120.0
"""Seconds until a worker that does not end is given up."""

HEADER = ("", "processes", "share", "ratio", "429s/call", "lost", "spread", "CPU us/call")


@dataclass(frozen=True, slots=True)
class Work:
    """Calls that some processes make at once.

    `limit` is in requests for each `minute` (seconds), `callers` in all processes together. `burst` is the bucket's
    capacity, if not `limit`. An `uneven` work gives the first process seven of ten calls. The processes numbered
    `killed` die after a sixth of the ideal time, one after the other.
    """

    name: str
    limit: float
    count: int
    callers: int
    uneven: bool = False
    killed: tuple[int, ...] = ()
    burst: float | None = None
    minute: float = MINUTE

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
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `spread` is nan where a worker was killed; `cpu` is in seconds for each call."""

    ratio: float
    refused: float
    lost: int
    spread: float
    cpu: float


async def _ask_all(url: str, calls: int, callers: int) -> dict[str, Any]:
    """Make the calls of one worker, and return its losses, its end in monotonic seconds and its CPU seconds."""
    import openai

    import tidegate

    tidegate.install()
    lost = 0
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

        await asyncio.gather(*(caller() for _ in range(callers)))
        return {"lost": lost, "ended": time.monotonic(), "cpu": time.process_time() - spent}


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


def run(work: Work, processes: int, share: str, seed: int) -> Outcome:
    """Return the outcome of one run with so many processes."""
    scenario, shares = work.scenario(seed), work.shares(processes)
    with SimulatorProcess(scenario) as simulator, ExitStack() as stack:
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
        living = [worker for number, worker in enumerate(workers) if number not in work.killed]
        reports = [json.loads(worker.communicate(timeout=PATIENCE)[0]) for worker in living]
        return _outcome(work, seed, simulator.truth(), began, reports)


def _outcome(work: Work, seed: int, truth: Truth, began: float, reports: Sequence[dict[str, Any]]) -> Outcome:
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
    )


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None, "opened as a pipe"
    return worker.stdout.readline().strip()


def _write(worker: subprocess.Popen[str], text: str) -> None:
    assert worker.stdin is not None, "opened as a pipe"
    worker.stdin.write(text)
    worker.stdin.flush()


def checks(work: Work, processes: int, found: Sequence[Outcome]) -> list[Check]:
    """Return the bounds of a work whose processes share the limit."""
    longer, refused = (MOST_LONGER_KILLED, MOST_REFUSED_KILLED) if work.killed else (MOST_LONGER, MOST_REFUSED)
    name = f"{work.name}, {processes} processes"
    asked = [
        Check(f"{name}: times the ideal", statistics.median(one.ratio for one in found), longer),
        Check(f"{name}: 429s for each call", statistics.median(one.refused for one in found), refused),
        Check(f"{name}: calls lost", max(one.lost for one in found), 0),
    ]
    if not (work.uneven or work.killed):
        spread = statistics.median(one.spread for one in found)
        asked.append(Check(f"{name}: spread of the ends", spread, MOST_SPREAD))
    return asked


def measure(works: Sequence[Work], counts: Sequence[int], shares: Sequence[str], seeds: int) -> int:
    """Print the table; return 1 where a bound is missed by processes that share."""
    lines, asked, figures = [], list[Check](), dict[str, Any]()
    for work in works:
        for processes in counts:
            found: dict[str, list[Outcome]] = {share: [] for share in shares}
            for seed in range(seeds):
                for share in shares:
                    found[share].append(run(work, processes, share, seed))
            for share, outcomes in found.items():
                lines.append(_row(work, processes, share, outcomes))
                figures[f"{work.name}, {processes}, {share}"] = [asdict(one) for one in outcomes]
                if share != "off":
                    asked += checks(work, processes, outcomes)
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
