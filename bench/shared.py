"""Several processes of one key in virtual time: N registries that share a log, before one provider.

python -m bench.shared [--only NAME,…] [--members 4,8] [--shapes even,uneven,joins,kills] [--lags 0,0.003] [--seeds 3]
    [--even | --odd] [--apart] [--hears 0.01]

The rows are the laboratory's and two of one process's usual quotas; the bounds are those of one process. `--apart`
shares nothing, for comparison. With `--hears`, members hear each other that many seconds late, as through a server.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from bench.answers import ASKING, Answers
from bench.common import Check, conclude, table
from bench.families import HEADERS, Family
from bench.lab import seeds_of
from bench.network import Network
from bench.scenarios import AMPLE_TOKENS, LATENCY, MODELS, Row, row_named
from bench.virtual import EPOCH, HOST, SDK_RETRIES, LabCall, Visit
from bench.world import VirtualCall, World
from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate import providers
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome
from tidegate.settings import Settings
from tidegate.shared_log.host_log import PROBE_SECONDS
from tidegate.testing import Call, Distribution, Limit, Scenario
from tidegate.testing.accounts import Accounts

MOST_STEPS = 20_000_000

REAPED = PROBE_SECONDS
"""Seconds after which the log notices that a member was killed, at most: as the host's carrier does."""

REFUSED_AWAY = 0.05
"""Refusals for each call at most while the log is out of reach, of a provider that states its limits."""

SPREAD = 0.25
"""Difference of the members' finish times over the makespan at equal demand, at most."""

MINUTE = 60.0


def _minute(limit: float, count: int, callers: int, name: str, **facts: Any) -> Row:
    """A row of an openai key with a limit of requests a minute, unscaled."""
    limiters = (Limit(limit=limit, window=MINUTE), AMPLE_TOKENS.replace(window=MINUTE))
    scenario = Scenario(**{"dialect": "openai", "limiters": limiters, "latency": LATENCY, **facts})
    return Row(name=name, family=_bounds(name), scenario=scenario, count=count, callers=callers)


def _bounds(name: str) -> Family:
    """Return the bounds of a row of requests a minute; slow answers leave more of them unread at the first round."""
    return replace(HEADERS, refused=0.01) if name.endswith("slow") else HEADERS


ROWS = (
    _minute(120, 360, 64, "120-a-minute"),
    _minute(120, 360, 128, "120-a-minute-slow", latency=Distribution.lognormal(8.0, 0.3)),
    _minute(6000, 9000, 256, "6000-a-minute"),
    *(
        row_named(name)
        for name in (
            "request-bound",
            "token-bound",
            "three-buckets",
            "fixed-windows",
            "rolling-window",
            "sub-windows",
            "shared-quota",
            "silent-steady",
            "silent-slots",
            "silent-changing",
            "silent-tokens",
            "outage",
            "latency-knee",
            "slope",
        )
    ),
)

NAMES = tuple(row.name for row in ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A way in which processes divide the calls, and the callers with them.

    The second half of the members begins at `joins`. The second and later members are killed at `kills`, and the
    others take over their calls and callers. The log is out of reach between the instants `away`. Instants are shares
    of the makespan of the oracle.
    """

    name: str
    shares: Callable[[int], Sequence[int]]
    joins: tuple[float, ...] = ()
    kills: tuple[float, ...] = ()
    away: tuple[float, float] | None = None


UNEVEN = {4: (70, 10, 10, 10), 8: (50, 20, 10, 8, 5, 4, 2, 1)}

SHAPES = (
    Shape(name="even", shares=lambda count: (1,) * count),
    Shape(name="uneven", shares=lambda count: UNEVEN[count]),
    Shape(name="joins", shares=lambda count: (1,) * count, joins=(0.1, 0.15, 0.2, 0.25)),
    Shape(name="kills", shares=lambda count: (1,) * count, kills=(0.1, 0.25)),
    Shape(name="away", shares=lambda count: (1,) * count, away=(0.3, 0.6)),
)


class Member:
    """One process: its registry, its network, its part of the calls."""

    def __init__(self, fleet: Fleet, number: int, registry: RateLimitRegistry, calls: Iterator[Call], callers: int):
        self.fleet, self.number, self.registry = fleet, number, registry
        self.provider, self.row = fleet.provider, fleet.row
        self.network = Network(fleet.timeline)
        self.calls = calls
        self.callers = callers
        self.alive = True
        self.live: dict[int, Call] = {}
        self.finished_at = 0.0
        self.accounts, self.answers = fleet.accounts, fleet.answers
        self.refused_at, self.met_outage_at = fleet.refused_at, fleet.met_outage_at
        self.after, self.wall = fleet.after, fleet.wall

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.fleet.now

    def key_of(self, model: str) -> Key:
        """The key of a model."""
        return Key(self.provider.name, f"https://{HOST}", "0123456789abcdef", model)

    def start(self) -> None:
        """The callers begin."""
        for _ in range(self.callers):
            self.go_on()

    def go_on(self) -> None:
        """A caller that is free takes the next call, if one is left."""
        if not self.alive:
            return
        for call in self.calls:
            number = next(self.fleet.numbers)
            self.live[number] = call
            self.fleet.member_of[number] = self
            self.fleet.join(
                VirtualCall(self.fleet, number, LabCall(cast("Any", self), call, MODELS[self.row.sdk])), self.now
            )
            return

    def over(self, outcome: Outcome | None) -> None:
        """No row streams its answers."""
        raise NotImplementedError


class Fleet(World):
    """One row at one seed before several processes; `shape` divides the calls among `count` of them."""

    def __init__(
        self, row: Row, seed: int, count: int, shape: Shape, lag: float, *, apart: bool = False, hears: float = 0.0
    ) -> None:
        super().__init__(
            Settings(telemetry=False, status=False), seed, repeats=SDK_RETRIES, most_steps=MOST_STEPS, lag=lag
        )
        self.row = row
        self.scenario = row.seeded(seed)
        asking = ASKING[row.sdk]
        provider = providers.adopt(HOST, asking.path, asking.family)
        assert provider is not None, f"{asking.path} generates nothing"
        self.provider = provider
        self.accounts = Accounts(self.scenario, lambda: self.timeline.now)
        self._began_at = EPOCH + random.Random(seed).random()
        self.answers = Answers(row, self.scenario, self.wall)
        self.losses: dict[str, int] = {}
        self.refused_at: list[float] = []
        self.met_outage_at: list[float] = []
        self.numbers = itertools.count()
        self.member_of: dict[int, Member] = {}
        self.done = 0
        # Calls that the provider charged twice: their process was killed before it had the answer.
        self.repeated = 0
        self.store = MemoryStore(hears)
        self.carriers: list[MemoryCarrier] = []
        self.members: list[Member] = []
        self._divide(list(row.calls(seed)), shape.shares(count), apart=apart)
        lasts = row.ideal(seed).makespan
        late = self.members[count // 2 :]
        begins = {member.number: at * lasts for member, at in zip(late, shape.joins, strict=False)}
        for member in self.members:
            self.after(begins.get(member.number, 0.001 * member.number), member.start)
        for member, at in zip(self.members[1:], shape.kills, strict=False):
            self.after(at * lasts, partial(self._kill, member))
        self.counted: list[tuple[int, int]] = []
        if shape.away is not None:
            for at, away in zip(shape.away, (True, False), strict=True):
                self.after(at * lasts, partial(self._set_away, away))

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._began_at + self.now

    def finish_fast(self, call: VirtualCall) -> None:
        """A caller has its answer and takes another call."""
        member = self.member_of[call.row]
        if not member.alive:
            return
        member.live.pop(call.row, None)
        sent = self.ended[call.row].attempt
        if sent is None or sent.outcome.kind is not Kind.OK:
            name = "expired" if sent is None else f"{sent.outcome.kind} {sent.outcome.status}"
            self.losses[name] = self.losses.get(name, 0) + 1
        self.done += 1
        member.finished_at = self.makespan = self.now
        member.go_on()

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        """The request travels on the network of its process."""
        member = self.member_of[call.row]
        visit = Visit(cast("Any", member), call, permit, reply)
        member.network.carry(visit.arrive)

    def _divide(self, calls: list[Call], shares: Sequence[int], *, apart: bool) -> None:
        total, begin = sum(shares), 0
        for number, share in enumerate(shares):
            size = len(calls) - begin if number == len(shares) - 1 else round(len(calls) * share / total)
            carrier = None if apart else MemoryCarrier(self.store)
            if carrier is not None:
                self.carriers.append(carrier)
            registry = RateLimitRegistry(
                self.registry.settings,
                clock=lambda: self.timeline.now,
                draw=self.random.random,
                carrier=carrier,
            )
            part = iter(calls[begin : begin + size])
            self.members.append(Member(self, number, registry, part, max(1, round(self.row.callers * share / total))))
            begin += size

    def _set_away(self, away: bool) -> None:
        """The log is out of reach from now on, or in reach again."""
        self.store.set_away(away)
        total = self.accounts.truth().total
        self.counted.append((total.refusals - total.refused.get("outage", 0), total.admitted))

    def _kill(self, member: Member) -> None:
        """A process is killed: its calls are lost with it, and the others make them again."""
        member.alive = False
        left = [*member.live.values(), *member.calls]
        self.repeated += sum(not self.calls[number].standing for number in member.live)
        for number in member.live:
            self.calls[number].finished = True
        heirs = [each for each in self.members if each.alive]
        for place, heir in enumerate(heirs):
            heir.calls = itertools.chain(heir.calls, iter(left[place :: len(heirs)]))
            for _ in range(place, member.callers, len(heirs)):
                heir.callers += 1
                heir.go_on()
        if self.carriers:
            self.after(REAPED, self.carriers[member.number].close)


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run. `spread` is the difference of the finish times of the members over the makespan."""

    ratio: float
    refused_share: float
    lost: int
    spread: float
    refused_away: float = 0.0


def run(
    row: Row, seed: int, count: int, shape: Shape, lag: float = 0.0, *, apart: bool = False, hears: float = 0.0
) -> FleetRun:
    """One row at one seed, to its end."""
    fleet = Fleet(row, seed, count, shape, lag, apart=apart, hears=hears)
    fleet.run()
    truth = fleet.accounts.truth()
    start = truth.admitted_at[0]
    ideal = replace(row, count=row.count + fleet.repeated).ideal(seed, start).makespan - start
    refused = truth.total.refusals - truth.total.refused.get("outage", 0)
    ends = [member.finished_at for member in fleet.members if member.alive]
    makespan = fleet.makespan - start
    return FleetRun(
        makespan / ideal,
        refused / row.count,
        sum(fleet.losses.values()) + max(0, row.count - fleet.done),
        (max(ends) - min(ends)) / makespan,
        _share(*fleet.counted) if shape.away is not None else 0.0,
    )


def _share(begin: tuple[int, int], end: tuple[int, int]) -> float:
    """Refusals for each call that the provider admitted between two counts."""
    return (end[0] - begin[0]) / max(1, end[1] - begin[1])


def checks(name: str, row: Row, shape: Shape, runs: Sequence[FleetRun]) -> list[Check]:
    """The bounds of one process, by the medians of the runs; no call is lost in any.

    Where the log is out of reach for a time, these are bounds for a provider that states its limits.
    """
    family = row.family
    if shape.away is not None:
        made = [Check(f"{name}: lost", max(each.lost for each in runs), 0)]
        if family.name == "headers":
            away = statistics.median(each.refused_away for each in runs)
            made.append(Check(f"{name}: ratio", statistics.median(each.ratio for each in runs), family.ratio))
            made.append(Check(f"{name}: 429s away", away, REFUSED_AWAY))
        return made
    made = [
        Check(f"{name}: ratio", statistics.median(each.ratio for each in runs), family.ratio),
        Check(f"{name}: refused", statistics.median(each.refused_share for each in runs), family.refused),
        Check(f"{name}: lost", max(each.lost for each in runs), 0),
    ]
    if shape.name == "even":
        made.append(Check(f"{name}: spread", statistics.median(each.spread for each in runs), SPREAD))
    return made


def main() -> int:
    """Prints the table; returns 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Several processes that share the log of a key")
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--members", default="4,8")
    parser.add_argument("--shapes", default=",".join(shape.name for shape in SHAPES))
    parser.add_argument("--lags", default="0,0.003")
    parser.add_argument("--seeds", default="3")
    parity = parser.add_mutually_exclusive_group()
    parity.add_argument("--odd", action="store_true")
    parity.add_argument("--even", action="store_true")
    parser.add_argument("--hears", type=float, default=0.0, help="seconds until members hear each other (default 0)")
    parser.add_argument("--apart", action="store_true", help="without a log")
    given = parser.parse_args()
    seeds = seeds_of(given.seeds, odd=given.odd, even=given.even)
    rows = [row for row in ROWS if row.name in given.only.split(",")]
    shapes = [shape for shape in SHAPES if shape.name in given.shapes.split(",")]
    lines, asked, figures = [], [], {}
    for row, count, shape, lag in itertools.product(
        rows, map(int, given.members.split(",")), shapes, map(float, given.lags.split(","))
    ):
        if row.family.name == "windows" and (shape.joins or shape.kills):
            # These rows have as many calls as their windows hold: one call more costs a whole window.
            continue
        runs = [run(row, seed, count, shape, lag, apart=given.apart, hears=given.hears) for seed in seeds]
        name = f"{row.name} x{count} {shape.name} {lag * 1000:g} ms"
        found = checks(name, row, shape, runs)
        asked += found
        missed = ", ".join(check.name.rpartition(": ")[2] for check in found if not check.holds)
        ratios = [each.ratio for each in runs]
        line = [
            name,
            f"{statistics.median(ratios):.3f}",
            f"{max(ratios):.3f}",
            f"{statistics.median(each.refused_share for each in runs):.3f}",
            f"{max(each.lost for each in runs)}",
            f"{statistics.median(each.spread for each in runs):.2f}",
            f"{statistics.median(each.refused_away for each in runs):.3f}" if shape.away else "",
            missed or "ok",
        ]
        lines.append(line)
        figures[name] = {"ratio": statistics.median(ratios)}
        print(*line, sep=" | ", flush=True, file=sys.stderr)
    table("Several processes", ("", "ratio", "most", "429s", "lost", "spread", "429s away", ""), lines)
    return conclude("shared", figures, asked, brief=True)


if __name__ == "__main__":
    raise SystemExit(main())
