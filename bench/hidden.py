"""Drawn families whose provider announces nothing: buckets, windows, slots and a knee, with hints or without."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from bench.drawn import Draw, Drawn, supplied
from bench.families import CHANGING, KNEE, SILENT, Family
from bench.scenarios import Row
from tidegate.testing import Distribution, Limit, Scenario

RATES = ((4.0, 16.0), (12.0, 30.0))
BURSTS = (range(1, 6), range(3, 9))
FLIPS = (2.5, 5.0)
"""Calls a second and contents of tiny buckets and of those that flip, and seconds of a phase of the latter."""


def _silent(draw: Draw, limit: Limit, count: int, family: Family = SILENT, **facts: Any) -> Row:
    facts = {"dialect": "none", "latency": draw.latency(0.1, 0.6), **facts}
    return Row(name="", family=family, scenario=Scenario(limiters=(limit,), **facts), count=count)


def flips(draw: Draw, mixed: bool) -> Row:
    """Return a row whose bucket of a few calls changes its rate fourfold, at least four times a run."""
    phase = round(draw.even(*FLIPS), 2)
    shares = draw.one(((phase, 0.25),), ((0.0, 0.25), (phase, 1.0)))
    limit = Limit(
        limit=draw.scale(*RATES[1]),
        window=1.0,
        burst=draw.whole(BURSTS[1][0], BURSTS[1][-1]),
        shares=shares,
        period=2 * phase,
        statuses=draw.statuses(429, 503, 529) if mixed else (),
    )
    return _silent(draw, limit, supplied(limit, phase * draw.even(5.2, 7.5)), CHANGING)


def tiny(draw: Draw) -> Row:
    """Return a row whose bucket holds 1 to 5 calls."""
    limit = Limit(limit=draw.scale(*RATES[0]), window=1.0, burst=draw.one(*BURSTS[0]))
    return _silent(draw, limit, supplied(limit, draw.even(10, 18)))


def slots(draw: Draw) -> Row:
    """Return a row that takes 2 to 64 calls at once and refuses the others."""
    limit = Limit(kind="slots", limit=draw.whole(2, 64), status=draw.one(429, 503, 529))
    latency = draw.latency(0.15, 0.8)
    count = min(1500, round(limit.limit * draw.even(8, 14) / latency.median))
    return _silent(draw, limit, count, latency=latency)


def window(draw: Draw, kind: Literal["fixed", "rolling"]) -> Row:
    """Return a row of n calls per window of 1 to 60 s, for at least eight windows."""
    seconds, calls = draw.scale(1.0, 60.0), draw.whole(8, 64)
    offset = round(draw.even(0.0, seconds), 3) if kind == "fixed" else 0.0
    limit = Limit(kind=kind, limit=calls, window=seconds, offset=offset)
    return _silent(draw, limit, round(calls * draw.even(8.2, 9.8)))


def constant_hint(draw: Draw) -> Row:
    """Return a row whose every refusal says `retry-after: 1`."""
    rate = draw.scale(8, 40)
    limit = Limit(limit=rate, window=1.0, burst=max(2, round(rate * draw.even(0.2, 1.5))))
    return _silent(draw, limit, supplied(limit, draw.even(10, 16)), dialect="hint", retry_after="one")


def wrong_hint(draw: Draw, retry_after: Literal["late", "absurd"]) -> Row:
    """Return a row whose hints are three times too late, or a year; a slow bucket or a window."""
    if draw.chance(0.5):
        limit = Limit(limit=draw.scale(0.5, 2.0), window=1.0, burst=draw.whole(3, 12))
        count = supplied(limit, draw.even(30, 50))
    else:
        calls = draw.whole(20, 64)
        limit = Limit(kind="fixed", limit=calls, window=draw.scale(3.0, 10.0), offset=round(draw.even(0, 3), 3))
        count = round(calls * draw.even(4.2, 5.8))
    return _silent(draw, limit, count, dialect="hint", retry_after=retry_after)


def knee(draw: Draw) -> Row:
    """Return a row without limits, whose latency grows beyond some calls in flight."""
    bend, latency = draw.whole(8, 48), draw.latency(0.2, 0.8)
    row = _silent(draw, Limit(limit=1), min(1500, round(bend * draw.even(8, 14) / latency.median)), KNEE)
    return replace(row, scenario=Scenario(dialect="none", knee=bend, latency=Distribution.lognormal(latency.a, 0.2)))


def idle_bursts(draw: Draw) -> Row:
    """Return a row of bursts of 20 to 120 calls at a bucket, each 1 to 5 minutes after the one before is served."""
    burst = draw.whole(30, 60)
    limit = Limit(limit=burst, window=draw.scale(20, 60))
    arrivals: list[float] = []
    at = 0.0
    for _ in range(draw.whole(5, 8)):
        size = draw.whole(20, 120)
        arrivals += [at] * size
        served = max(0, size - burst) * limit.window / limit.limit
        at = round(at + served + draw.even(60, 300), 1)
    return replace(_silent(draw, limit, len(arrivals)), arrivals=tuple(arrivals))


HIDDEN = (
    Drawn("flips", partial(flips, mixed=False)),
    Drawn("flips-mixed", partial(flips, mixed=True)),
    Drawn("tiny-bucket", tiny),
    Drawn("idle-bursts", idle_bursts),
    Drawn("hidden-slots", slots),
    Drawn("hidden-fixed", partial(window, kind="fixed")),
    Drawn("hidden-rolling", partial(window, kind="rolling")),
    Drawn("hint-constant", constant_hint),
    Drawn("hint-late", partial(wrong_hint, retry_after="late")),
    Drawn("hint-absurd", partial(wrong_hint, retry_after="absurd")),
    Drawn("drawn-knee", knee),
)
