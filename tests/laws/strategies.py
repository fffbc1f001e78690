"""Random histories: who calls when, what it costs, who goes away, what the provider enforces."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.laws.world import World
from tidegate.settings import Settings
from tidegate.testing import Limit, Scenario
from tidegate.testing.specs import OutageSpan

WINDOWS = (1.0, 10.0, 60.0)


@dataclass(frozen=True)
class Caller:
    """One call: when it joins, what it weighs, how long it waits, and when its caller goes away (None: never)."""

    at: float
    tokens: int = 0
    priority: int = 0
    max_wait: float = 1e6
    gone_after: float | None = None


instants = st.integers(0, 2000).map(lambda hundredths: hundredths / 100)
patiences = st.sampled_from([0.0, 0.5, 5.0, 1e6, 1e6])


def callers(
    most: int = 40, tokens: int = 0, priorities: int = 0, patient: bool = True, stays: bool = False
) -> st.SearchStrategy[list[Caller]]:
    """Up to `most` calls; with `stays` nobody goes away."""
    caller = st.builds(
        Caller,
        at=st.one_of(st.just(0.0), instants),
        tokens=st.integers(0, tokens),
        priority=st.integers(0, priorities),
        max_wait=st.just(1e6) if patient else patiences,
        gone_after=st.none() if stays else st.one_of(st.none(), st.none(), instants),
    )
    # A list of a length drawn first: left to itself Hypothesis makes short ones, and nobody queues.
    return st.integers(1, most).flatmap(lambda count: st.lists(caller, min_size=count, max_size=count))


def buckets(unit: str = "requests", lowest: int = 1, highest: int = 60) -> st.SearchStrategy[Limit]:
    return st.builds(
        lambda limit, window: Limit(limit=limit, window=window, unit=unit),
        st.integers(lowest, highest),
        st.sampled_from(WINDOWS),
    )


def windows(lowest: int = 1, highest: int = 60) -> st.SearchStrategy[Limit]:
    return st.builds(
        lambda limit, window, offset: Limit(kind="fixed", limit=limit, window=window, offset=offset * window),
        st.integers(lowest, highest),
        st.sampled_from(WINDOWS),
        st.integers(0, 9).map(lambda tenths: tenths / 10),
    )


def slots(lowest: int = 1) -> st.SearchStrategy[Limit]:
    return st.builds(lambda limit: Limit(kind="slots", limit=limit), st.integers(lowest, 40))


outages = st.builds(lambda start, lasts: OutageSpan(start=start, end=start + lasts), instants, st.integers(1, 20))

worlds = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**16),
        "network": st.sampled_from([0.001, 0.005, 0.05]),
        "slowest": st.sampled_from([0.05, 0.5, 3.0]),
    }
)


def world(limiters: tuple[Limit, ...], made: list[Caller], given: dict[str, float], **facts: object) -> World:
    """A world with these callers in it, not yet run."""
    slowest = given["slowest"]
    settings = facts.pop("settings", None) or Settings()
    spans = facts.pop("outages", ())
    built = World(
        Scenario(limiters=limiters, outages=spans),
        settings=settings,
        seed=int(given["seed"]),
        network=given["network"],
        latency=lambda draw: draw.uniform(0.01, slowest),
        **facts,
    )
    for row, caller in enumerate(made):
        built.call(row, at=caller.at, tokens=caller.tokens, max_wait=caller.max_wait, priority=caller.priority)
        if caller.gone_after is not None:
            built.cancel(row, caller.at + caller.gone_after)
    return built
