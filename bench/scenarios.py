"""The laboratory's one table: every scenario; what is accepted of its kind is in `families`.

A row is data and runs twice, in virtual time and over HTTP. A provider's minute is scaled to 6 s; latencies are not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.families import (
    CHANGING,
    HEADERS,
    KNEE,
    OUTAGE,
    RARE,
    SHIFTING,
    SILENT,
    SLOPE,
    SLOW,
    STRAY,
    TENTH,
    UNLIMITED,
    WINDOWS,
    Family,
)
from bench.repeats import repeated
from tidegate.testing import Call, Distribution, Fault, Limit, OutageSpan, Scenario, Schedule, ideal_schedule

MINUTE = 6.0
"""Seconds that stand for a provider's minute."""

DAY = 1440 * MINUTE
SECOND = MINUTE / 60

Sdk = Literal["openai", "anthropic", "bedrock"]

MODELS: dict[Sdk, str] = {
    "openai": "gpt-5-mini",
    "anthropic": "claude-sonnet-5",
    "bedrock": "anthropic.claude-sonnet-5-v1:0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scenario: who answers, what is asked of him, and by how many at once.

    sizes       the prompts' tokens: the lowest and the highest, log-uniform between them
    max_tokens  each call's own bound on its output
    bounds      if not empty, the bounds of which each call has one, drawn by the seed
    callers     how many take the calls, in order, as soon as they are free
    sdk         whose client asks over HTTP; it also decides endpoint and provider table in virtual time
    stream      whether the answers stream
    models      how many models are asked, each call's one drawn by the seed; more than one share the `shared` limits
    scopes      the setting of that name
    dear        the share of calls whose prompt is longer than drawn, and how many times as long
    arrivals    when each call comes, in order; if empty, callers take the calls. The figure is then the summed delay.
    meets_faults  whether the oracle meets the scenario's faults, too, and sends a broken call again
    against_plain  whether the makespan is compared with that of the plain SDK, instead of the oracle's
    client_work  seconds of the client's event loop for each message, of which it handles one after another
    """

    name: str
    family: Family
    scenario: Scenario
    count: int
    sizes: tuple[int, int] = (40, 40)
    max_tokens: int | None = None
    bounds: tuple[int, ...] = ()
    callers: int = 128
    sdk: Sdk = "openai"
    stream: bool = False
    models: int = 1
    scopes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dear: tuple[float, int] = (0.0, 1)
    arrivals: tuple[float, ...] = ()
    meets_faults: bool = False
    against_plain: bool = False
    client_work: float = 0.0

    def seeded(self, seed: int) -> Scenario:
        """The provider, its latencies drawn by `seed`."""
        return self.scenario.replace(seed=seed)

    def calls(self, seed: int) -> tuple[Call, ...]:
        """The calls in order, their sizes drawn by `seed`."""
        generator = random.Random(seed)
        low, high = self.sizes
        share, times = self.dear
        return tuple(
            Call(
                round(low * math.exp(generator.random() * math.log(high / low)))
                * (times if share and generator.random() < share else 1),
                max_tokens=generator.choice(self.bounds) if self.bounds else self.max_tokens,
            )
            for _ in range(self.count)
        )

    def asked(self, seed: int) -> tuple[str, ...]:
        """The model of each call, drawn by `seed` where there are several."""
        name = MODELS[self.sdk]
        if self.models == 1:
            return (name,) * self.count
        generator = random.Random(f"models {seed}")
        return tuple(f"{name}-{generator.randrange(self.models)}" for _ in range(self.count))

    def chars(self, call: Call) -> int:
        """The length of the call's prompt."""
        return round(call.input_tokens * self.scenario.chars_per_token)

    def ideal(self, seed: int, start: float = 0.0) -> Schedule:
        """What an oracle makes of it, from `start` on, that knows every limit and meets the very latencies."""
        scenario, calls = self.seeded(seed), self.calls(seed)
        if self.meets_faults:
            return repeated(scenario, calls, self.callers, start)
        callers = None if self.arrivals else self.callers
        return ideal_schedule(scenario, calls, concurrency=callers, drawn=True, start=start, arrivals=self.arrivals)


LATENCY = Distribution.lognormal(0.5, 0.2)
STRAYS = tuple(nth for nth in range(20, 200) if random.Random(nth).random() < 0.3)
"""Ordinals of the calls that get a 429 without a hint although nothing is limited: 30 % of 180, then none."""

AMPLE_TOKENS = Limit(limit=1e7, window=MINUTE, unit="tokens")


def _requests(limit: float, **facts: Any) -> Limit:
    return Limit(limit=limit, window=MINUTE, **facts)


def _tokens(limit: float, **facts: Any) -> Limit:
    return Limit(limit=limit, window=MINUTE, unit="tokens", **facts)


def _provider(*limiters: Limit, dialect: str = "openai", **facts: Any) -> Scenario:
    return Scenario(**{"dialect": dialect, "limiters": limiters, "latency": LATENCY, **facts})


def _random(name: str, share: float, status: int, sdk: Sdk, **facts: Any) -> Row:
    """Return a row that refuses a `share` of its calls at random, whatever is in flight and however fast they come."""
    faults = (Fault(kind="status", probability=share, status=status),)
    scenario = _provider(_requests(100_000), AMPLE_TOKENS, faults=faults, **{"dialect": sdk, **facts})
    return Row(name=name, family=RARE if share < 0.05 else TENTH, scenario=scenario, count=1800, callers=32, sdk=sdk)


ROWS = (
    Row(
        name="request-bound",
        family=HEADERS,
        scenario=_provider(_requests(300), AMPLE_TOKENS),
        count=900,
    ),
    Row(
        name="token-bound",
        family=HEADERS,
        scenario=_provider(_requests(10_000), _tokens(140_000)),
        count=600,
        sizes=(40, 4000),
    ),
    Row(
        name="other-tokens",
        family=HEADERS,
        scenario=_provider(_requests(10_000), _tokens(140_000), chars_per_token=2.5),
        count=600,
        sizes=(40, 4000),
    ),
    Row(
        name="three-buckets",
        family=HEADERS,
        # A minute is one here: Anthropic's table says so. The key was used before, so that the refill binds.
        scenario=_provider(
            Limit(limit=4000),
            Limit(limit=1_600_000, unit="input_tokens", initial=140_000),
            Limit(limit=400_000, unit="output_tokens", initial=30_000),
            dialect="anthropic",
            charge="produced",
            output_tokens=Distribution.lognormal(200, 0.5),
        ),
        count=650,
        sizes=(40, 4000),
        max_tokens=1024,
        sdk="anthropic",
    ),
    Row(
        name="day-beside-minute",
        family=HEADERS,
        scenario=_provider(Limit(limit=14_400, window=DAY), _tokens(140_000)),
        count=600,
        sizes=(40, 4000),
    ),
    Row(
        name="long-answers",
        family=SLOW,
        scenario=_provider(_requests(5), _tokens(100_000), latency=Distribution.lognormal(30 * SECOND, 0.2)),
        count=20,
        sizes=(40, 4000),
    ),
    Row(
        name="two-thousand-callers",
        family=HEADERS,
        # Not full: an SDK takes seconds to make two thousand requests, and a full bucket would run over meanwhile.
        scenario=_provider(_requests(500, initial=100), AMPLE_TOKENS),
        count=2000,
        callers=2000,
    ),
    Row(
        name="streams",
        family=HEADERS,
        scenario=_provider(
            _requests(300),
            AMPLE_TOKENS,
            latency=Distribution.lognormal(0.2, 0.2),
            token_pace=0.005,
            output_tokens=Distribution.lognormal(60, 0.4),
        ),
        count=900,
        stream=True,
    ),
    Row(
        name="fixed-windows",
        family=WINDOWS,
        scenario=_provider(_requests(300, kind="fixed", offset=2.5), dialect="azure"),
        count=900,
    ),
    Row(
        name="fixed-short-windows",
        family=WINDOWS,
        scenario=_provider(Limit(kind="fixed", limit=50, window=1.0, offset=0.4), dialect="azure"),
        count=600,
    ),
    Row(
        name="fast-refill",
        family=WINDOWS,
        # A gateway that announces its burst as the limit.
        scenario=_provider(Limit(limit=8, window=0.2)),
        count=600,
    ),
    Row(
        name="small-burst",
        family=SHIFTING,
        # A minute is one here, as in `three-buckets`.
        scenario=_provider(Limit(limit=60, burst=10), dialect="anthropic"),
        count=34,
        callers=20,
        sdk="anthropic",
    ),
    Row(
        name="rolling-window",
        family=WINDOWS,
        scenario=_provider(_requests(300, kind="rolling")),
        count=900,
    ),
    Row(
        name="sub-windows",
        family=WINDOWS,
        scenario=_provider(
            _requests(300), Limit(kind="fixed", limit=50, window=10 * SECOND, announced=False, name="sub")
        ),
        count=700,
    ),
    Row(
        name="shared-quota",
        family=SHIFTING,
        scenario=_provider(_requests(300, shares=((3.0, 0.3),), period=6.0), AMPLE_TOKENS),
        count=720,
    ),
    Row(
        name="shrinking-limit",
        family=SHIFTING,
        scenario=_provider(_requests(300, sizes=((6.0, 0.5),), period=12.0), AMPLE_TOKENS),
        count=800,
    ),
    Row(
        name="limit-that-does-not-bind",
        family=SHIFTING,
        scenario=_provider(_requests(10_000), Limit(limit=40, window=1.0, announced=False, name="true")),
        count=600,
    ),
    Row(
        name="slope",
        family=SLOPE,
        scenario=_provider(_requests(6000), Limit(kind="slope", limit=10, window=1.0, growth=1.5), retry_after="none"),
        count=600,
    ),
    Row(
        name="silent-steady",
        family=SILENT,
        scenario=_provider(Limit(limit=30, window=1.0), dialect="none"),
        count=450,
    ),
    Row(
        name="silent-slots",
        family=SILENT,
        scenario=_provider(Limit(kind="slots", limit=32, status=503), dialect="none"),
        count=640,
    ),
    Row(
        name="silent-changing",
        family=CHANGING,
        scenario=_provider(Limit(limit=20, window=1.0, shares=((5.0, 0.25),), period=10.0), dialect="none"),
        count=250,
    ),
    Row(
        name="silent-tokens",
        family=SILENT,
        scenario=_provider(
            _tokens(240_000),
            dialect="bedrock",
            charge="input+max_tokens",
            gives_back=True,
            burndown=5.0,
            output_tokens=Distribution.lognormal(150, 0.4),
        ),
        count=450,
        sizes=(200, 2000),
        max_tokens=512,
        sdk="bedrock",
    ),
    Row(
        name="outage",
        family=OUTAGE,
        scenario=_provider(_requests(300), AMPLE_TOKENS, outages=(OutageSpan(start=3.0, end=8.0, status=503),)),
        count=750,
    ),
    Row(
        name="outage-500",
        family=OUTAGE,
        scenario=_provider(_requests(300), AMPLE_TOKENS, outages=(OutageSpan(start=3.0, end=8.0, status=500),)),
        count=750,
    ),
    Row(
        name="latency-knee",
        family=KNEE,
        scenario=_provider(dialect="none", knee=24),
        count=500,
    ),
    Row(
        name="stray-refusals",
        family=STRAY,
        scenario=_provider(dialect="none", faults=(Fault(kind="status", nth=STRAYS, status=429),)),
        count=440,
        callers=8,
    ),
    Row(
        name="stray-refusals-alone",
        family=STRAY,
        scenario=_provider(
            dialect="none",
            faults=(Fault(kind="status", nth=STRAYS, status=429),),
            latency=Distribution.lognormal(0.08, 0.2),
        ),
        count=300,
        callers=1,
    ),
    _random("random-503", 0.03, 503, "openai"),
    _random("random-503-tenth", 0.1, 503, "openai"),
    _random("random-529", 0.03, 529, "anthropic"),
    _random("random-529-tenth", 0.1, 529, "anthropic"),
    _random("random-429", 0.03, 429, "openai"),
    _random("random-502-tenth", 0.1, 502, "openai"),
    _random("random-503-silent", 0.03, 503, "openai", dialect="none"),
    _random("random-529-silent", 0.03, 529, "anthropic", dialect="none"),
    Row(
        name="unlimited",
        family=UNLIMITED,
        scenario=_provider(dialect="none"),
        count=1000,
        callers=64,
        against_plain=True,
    ),
)

NAMES = tuple(row.name for row in ROWS)


def row_named(name: str) -> Row:
    """The row called `name`; raises KeyError."""
    return {row.name: row for row in ROWS}[name]
