"""How near the provider's limit a run comes: wrapped AsyncOpenAI beside the plain SDK on the same work.

    python -m bench.makespan [--seeds 3] [--only request|token] [--client wrapped|plain]

A minute is scaled to 6 s. The oracle (`ideal_makespan`) knows the limits and sends in order with as many callers.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import openai

from bench.common import Check, conclude, table
from tidegate.core.events import Event, RateLimitHit
from tidegate.registries import RateLimitRegistry
from tidegate.testing import Call, Distribution, Limit, Scenario, SimulatorProcess, Truth, ideal_makespan

MOST_RATIO = 1.03
MOST_REFUSED_SHARE = 0.005
CALLERS = 128
WINDOW = 6.0
LATENCY = Distribution.lognormal(0.5, 0.2)
DEADLINE = 90.0
"""Seconds after which a run is given up: four times the longest ideal."""

MESSAGE_CHARS = 4
"""Characters that the simulator counts as one token."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is sent, and to whom: the prompts' sizes in tokens, in order."""

    name: str
    scenario: Scenario
    sizes: tuple[int, ...]

    @property
    def ideal(self) -> float:
        """The oracle's makespan in seconds."""
        return ideal_makespan(self.scenario, [Call(size) for size in self.sizes], concurrency=CALLERS)


@dataclass(slots=True)
class Run:
    """What one run came to. `refused_at` are seconds from its start, known for the wrapped client only."""

    work: str
    client: str
    seed: int
    calls: int
    ideal: float
    makespan: float
    last_admission: float
    lost: int
    refused: int
    requests: int
    displacement: float
    longest_gap: float
    refused_at: list[float] = field(default_factory=list)
    losses: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Makespan over the oracle's; below 1 where calls were lost."""
        return self.makespan / self.ideal

    @property
    def refused_share(self) -> float:
        """429s per call."""
        return self.refused / self.calls

    @property
    def requests_per_answer(self) -> float:
        """Requests for each call that was answered."""
        return self.requests / max(1, self.calls - self.lost)


def request_bound(seed: int) -> Work:
    """900 short calls against 300 requests a (scaled) minute: the oracle needs 12.5 s."""
    limits = (Limit(limit=300, window=WINDOW), Limit(limit=1e7, window=WINDOW, unit="tokens"))
    scenario = Scenario(dialect="openai", limiters=limits, latency=LATENCY, seed=seed)
    return Work("request-bound", scenario, (40,) * 900)


def token_bound(seed: int) -> Work:
    """600 calls of 40 to 4000 tokens, log-uniform, against 140,000 tokens a (scaled) minute."""
    generator = random.Random(seed)
    sizes = tuple(round(40 * math.exp(generator.random() * math.log(100))) for _ in range(600))
    limits = (Limit(limit=10_000, window=WINDOW), Limit(limit=140_000, window=WINDOW, unit="tokens"))
    scenario = Scenario(dialect="openai", limiters=limits, latency=LATENCY, seed=seed)
    return Work("token-bound", scenario, sizes)


WORKS = {"request": request_bound, "token": token_bound}


async def run(work: Work, client_name: str, seed: int) -> Run:
    """One run against a fresh simulator."""
    refused_at: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RateLimitHit):
            refused_at.append(event.at)

    with SimulatorProcess(work.scenario) as simulator:
        client = openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="k")
        if client_name == "wrapped":
            registry = RateLimitRegistry()
            registry.subscribe(listen)
            registry.wrap(client)
        await client.models.list()
        simulator.reset()
        began = time.monotonic()
        losses = await _send_all(client, work)
        makespan = time.monotonic() - began
        truth = simulator.truth()
        await client.close()
    return Run(
        work=work.name,
        client=client_name,
        seed=seed,
        calls=len(work.sizes),
        ideal=work.ideal,
        makespan=makespan,
        last_admission=truth.admitted_at[-1] if truth.admitted_at else math.nan,
        lost=sum(losses.values()),
        refused=truth.total.refusals,
        requests=truth.total.received,
        displacement=displacement(truth),
        longest_gap=_longest_gap(truth),
        refused_at=[round(at - began, 3) for at in refused_at],
        losses=losses,
    )


async def _send_all(client: openai.AsyncOpenAI, work: Work) -> dict[str, int]:
    """Sends everything by `CALLERS` callers, who take the calls in order; returns the lost ones by exception."""
    left: Iterator[tuple[int, int]] = iter(enumerate(work.sizes))
    losses: dict[str, int] = {}

    async def caller() -> None:
        for number, size in left:
            content = f"{number} ".ljust(size * MESSAGE_CHARS, "x")
            try:
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": content}], user=str(number)
                )
            except openai.OpenAIError as error:
                losses[type(error).__name__] = losses.get(type(error).__name__, 0) + 1

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return losses


def displacement(truth: Truth) -> float:
    """By how many places, on average, first admissions came out of the order of the calls."""
    order = [int(row) for row in truth.order]
    places = {number: place for place, number in enumerate(sorted(order))}
    return statistics.fmean(abs(place - places[number]) for place, number in enumerate(order)) if order else math.nan


def _longest_gap(truth: Truth) -> float:
    instants = truth.admitted_at
    return max((after - before for before, after in pairwise(instants)), default=0.0)


HEADER = (
    "", "ideal s", "makespan s", "ratio", "last adm. s", "gap s", "lost", "429s/call", "requests/answer", "displaced"
)  # fmt: skip


def row(each: Run) -> list[str]:
    """The run's line of the table."""
    return [
        f"{each.work}, {each.client}, seed {each.seed}",
        f"{each.ideal:.2f}",
        f"{each.makespan:.2f}",
        f"{each.ratio:.3f}",
        f"{each.last_admission:.2f}",
        f"{each.longest_gap:.2f}",
        str(each.lost),
        f"{each.refused_share:.4f}",
        f"{each.requests_per_answer:.3f}",
        f"{each.displacement:.2f}",
    ]


def medians(runs: list[Run], work: str) -> dict[str, float]:
    """Over the seeds, of the wrapped client."""
    mine = [each for each in runs if each.client == "wrapped" and each.work == work]
    return {
        "ratio": statistics.median(each.ratio for each in mine),
        "lost": statistics.median(each.lost for each in mine),
        "refused": statistics.median(each.refused_share for each in mine),
    }


def checks_of(runs: list[Run]) -> list[Check]:
    """What is asked of the wrapped client."""
    checks: list[Check] = []
    for work in dict.fromkeys(each.work for each in runs if each.client == "wrapped"):
        middle = medians(runs, work)
        checks.append(Check(f"{work}: ratio", middle["ratio"], MOST_RATIO))
        checks.append(Check(f"{work}: calls lost", middle["lost"], 0))
        checks.append(Check(f"{work}: 429s per call", middle["refused"], MOST_REFUSED_SHARE))
    return checks


def main() -> int:
    """Prints the table; returns 1 where the acceptance is missed."""
    parser = argparse.ArgumentParser(description="Makespan against the oracle")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--only", choices=sorted(WORKS), help="one kind of work")
    parser.add_argument("--client", choices=("wrapped", "plain"), help="one client")
    given = parser.parse_args()
    runs: list[Run] = []
    for name in (given.only,) if given.only else WORKS:
        for seed in range(min(20, max(1, given.seeds))):
            for client in (given.client,) if given.client else ("plain", "wrapped"):
                runs.append(asyncio.run(run(WORKS[name](seed), client, seed)))
                print(".", end="", flush=True)
    table("Makespan (a minute is 6 s, 128 callers)", HEADER, [row(each) for each in runs])
    refusals = [[f"{each.work}, seed {each.seed}", _instants(each)] for each in runs if each.client == "wrapped"]
    table("429s of the wrapped client, seconds from the start", ("", ""), refusals)
    figures: dict[str, Any] = {"runs": [{**asdict(each), "ratio": each.ratio} for each in runs]}
    return conclude("makespan", figures, checks_of(runs))


def _instants(each: Run) -> str:
    return " ".join(f"{at:.2f}" for at in each.refused_at) or "none"


if __name__ == "__main__":
    raise SystemExit(main())
