"""Demonstration: a shipped data set, sent through real SDK clients to two simulated providers, plain and wrapped."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Literal, TypeAlias

import anthropic
import openai

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.snapshot import KeySnapshot
from tidegate.errors import ConfigurationError
from tidegate.testing import Call, Counts, Distribution, Limit, Scenario, SimulatorProcess, ideal_makespan
from tidegate.testing.formats.base import tokens_in

MAX_TOKENS = 32
"""Bound on the output of each call, in tokens. Chosen: above the shipped answers, which are a few words."""

MIN_ROWS = 2
"""Fewest rows of a demonstration. Derived from its two providers: one row for each."""


@dataclass(frozen=True, slots=True)
class Row:
    """Question of the data set, with its right answer."""

    id: str
    category: str
    question: str
    answer: str


@dataclass(frozen=True)
class Track:
    """One provider's part of the demonstration: the SDK, the model, the provider's scenario, and the rows."""

    sdk: Literal["openai", "anthropic"]
    model: str
    scenario: Scenario
    rows: tuple[Row, ...]

    @cached_property
    def ideal(self) -> float:
        """Return the seconds that a client needs if it knows every limit from the start."""
        return ideal_makespan(self.scenario, [_call(row) for row in self.rows])


OPENAI = Scenario(
    dialect="openai",
    # Six seconds in place of a minute: OpenAI's reset headers state the length, so any length works.
    limiters=(Limit(limit=60, window=6.0), Limit(limit=2000, window=6.0, unit="tokens")),
    latency=Distribution.parse("lognormal:0.25,0.3"),
)

ANTHROPIC = Scenario(
    dialect="anthropic",
    # A real minute: Anthropic's headers do not state its length, and a client assumes the documented one.
    limiters=(
        Limit(limit=180),
        Limit(limit=6000, unit="input_tokens"),
        Limit(limit=1000, unit="output_tokens"),
    ),
    latency=Distribution.parse("lognormal:0.35,0.3"),
)


def load_rows() -> tuple[Row, ...]:
    packed = resources.files("tidegate.testing").joinpath("demo_questions.jsonl.gz").read_bytes()
    text = gzip.decompress(packed).decode("utf-8")
    return tuple(Row(**json.loads(line)) for line in text.splitlines())


def tracks(number: int | None = None, seed: int = 0) -> tuple[Track, ...]:
    """Return both providers with half of `number` rows each (None: all rows). The same seed gives the same rows."""
    rows = load_rows()
    number = len(rows) if number is None else number
    if not MIN_ROWS <= number <= len(rows):
        raise ConfigurationError("rows", number, f"between {MIN_ROWS} and {len(rows)}")
    chosen = random.Random(seed).sample(rows, number)
    half = number // 2
    return (
        Track("openai", "gpt-5-mini", _playing(OPENAI, chosen[:half], seed), tuple(chosen[:half])),
        Track("anthropic", "claude-sonnet-5", _playing(ANTHROPIC, chosen[half:], seed), tuple(chosen[half:])),
    )


def _playing(scenario: Scenario, rows: Sequence[Row], seed: int) -> Scenario:
    return scenario.replace(answers={row.question: row.answer for row in rows}, seed=seed)


def _call(row: Row) -> Call:
    return Call(tokens_in(len(row.question)), tokens_in(len(row.answer)), MAX_TOKENS)


Phase = Literal["plain", "wrapped"]
Client: TypeAlias = openai.AsyncOpenAI | anthropic.AsyncAnthropic

LOOK_SECONDS = 0.25
"""Seconds between two looks: samples of the progress for display. Chosen: a person sees changes as they happen."""

RECENT_LOOKS = 16
"""Looks over which the speed for an ETA is measured: 4 s of the shortest window of 6 s."""


@dataclass(slots=True)
class DemoRun:
    """State of one provider in one phase, during and after it. Durations are in seconds.

    `counts` is the simulator's ground truth at the last look. `key` is tidegate's knowledge then (None in the plain
    phase and before the first call). `lost` counts the rows without an answer by the exception that the client raised.
    """

    track: Track
    phase: Phase
    answered: int = 0
    right: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    counts: Counts = field(default_factory=Counts)
    key: KeySnapshot | None = None
    _looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_LOOKS))

    @property
    def rows(self) -> int:
        return len(self.track.rows)

    @property
    def done(self) -> int:
        return self.answered + self.lost.total()

    @property
    def is_complete(self) -> bool:
        return self.answered == self.rows

    @property
    def sent_per_answer(self) -> float | None:
        """Return the requests that reached the provider per answer; None without an answer."""
        return self.counts.received / self.answered if self.answered else None

    @property
    def ratio(self) -> float | None:
        """Return the time relative to the ideal; None unless every row was answered, as less work takes less time."""
        return self.seconds / self.track.ideal if self.is_complete else None

    @property
    def eta(self) -> float | None:
        """Return the seconds to the end at the speed of the last counts; None before two counts that differ."""
        if self.done == self.rows:
            return 0.0
        if len(self._looks) < 2:
            return None
        (before, done_before), (at, done) = self._looks[0], self._looks[-1]
        return (self.rows - done) * (at - before) / (done - done_before) if done > done_before else None

    def update(self, counts: Counts, key: KeySnapshot | None, at: float) -> None:
        self.counts, self.key = counts, key
        self._looks.append((at, self.done))


Look = Callable[[Sequence[DemoRun]], None]


def run(tracks: Sequence[Track], phases: Sequence[Phase], on_look: Look) -> tuple[DemoRun, ...]:
    """Run every track in every phase, in order. Call `on_look` four times a second and at the end of each phase."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_many_open_files())
        simulators = [stack.enter_context(SimulatorProcess(track.scenario)) for track in tracks]
        return asyncio.run(_phases(tracks, simulators, phases, on_look))


async def _phases(
    tracks: Sequence[Track], simulators: Sequence[SimulatorProcess], phases: Sequence[Phase], on_look: Look
) -> tuple[DemoRun, ...]:
    ended: list[DemoRun] = []
    for phase in phases:
        for simulator in simulators:
            simulator.reset()
        registry = RateLimitRegistry() if phase == "wrapped" else None
        runs = [DemoRun(track, phase) for track in tracks]
        watching = asyncio.create_task(_watch(runs, simulators, registry, on_look))
        try:
            await asyncio.gather(*(_ask_all(each, at, registry) for each, at in zip(runs, simulators, strict=True)))
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await _look(runs, simulators, registry)
        on_look(runs)
        ended += runs
    return tuple(ended)


async def _ask_all(run: DemoRun, simulator: SimulatorProcess, registry: RateLimitRegistry | None) -> None:
    async with _client(run.track, simulator) as client:
        if registry is not None:
            registry.wrap(client)
        started_at = time.monotonic()
        await asyncio.gather(*(_ask(run, client, row) for row in run.track.rows))
        run.seconds = time.monotonic() - started_at


@contextlib.asynccontextmanager
async def _client(track: Track, simulator: SimulatorProcess) -> AsyncIterator[Client]:
    if track.sdk == "openai":
        async with openai.AsyncOpenAI(base_url=simulator.openai_url, api_key="demo") as client:
            yield client
    else:
        async with anthropic.AsyncAnthropic(base_url=simulator.url, api_key="demo") as client:
            yield client


async def _ask(run: DemoRun, client: Client, row: Row) -> None:
    try:
        answer = await _answer(client, run.track.model, row.question)
    except Exception as error:  # a naive script loses the row, whatever the reason
        run.lost[type(error).__name__] += 1
    else:
        run.answered += 1
        run.right += answer.strip() == row.answer


async def _answer(client: Client, model: str, question: str) -> str:
    if isinstance(client, openai.AsyncOpenAI):
        completion = await client.chat.completions.create(
            model=model, max_completion_tokens=MAX_TOKENS, messages=[{"role": "user", "content": question}]
        )
        return completion.choices[0].message.content or ""
    message = await client.messages.create(
        model=model, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": question}]
    )
    return "".join(block.text for block in message.content if block.type == "text")


async def _watch(
    runs: Sequence[DemoRun],
    simulators: Sequence[SimulatorProcess],
    registry: RateLimitRegistry | None,
    on_look: Look,
) -> None:
    while True:
        await _look(runs, simulators, registry)
        on_look(runs)
        await asyncio.sleep(LOOK_SECONDS)


async def _look(
    runs: Sequence[DemoRun], simulators: Sequence[SimulatorProcess], registry: RateLimitRegistry | None
) -> None:
    truths = await asyncio.gather(*(asyncio.to_thread(simulator.truth) for simulator in simulators))
    keys = registry.snapshot().keys.values() if registry is not None else ()
    at = time.monotonic()
    for each, truth in zip(runs, truths, strict=True):
        each.update(truth.total, next((key for key in keys if key.key.scope == each.track.model), None), at)


@contextlib.contextmanager
def _many_open_files() -> Iterator[None]:
    """Raise the limit of open files (256 on some systems), so that the plain phase fails at the provider's limit."""
    try:
        import resource
    except ImportError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
