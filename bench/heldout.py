"""Held-out families: kinds of providers by which nothing of the controller may be chosen, neither constant nor rule.

A controller that is developed towards the drawn families fits them. These families are frozen, so that their table says
what it does with a provider for which nothing was chosen. To change a family, or to develop by one, give it up: move it
to the drawn families, or name it in docs/controller.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from bench.drawn import Draw, Drawn, families, mean_size, supplied
from bench.families import CHANGING, KNEE, RARE, SHIFTING, SILENT, SLOPE, TENTH, WINDOWS, Family
from bench.limits import VariedLimit
from bench.scenarios import MINUTE, Row, Sdk
from tidegate.testing import Distribution, Fault, Limit, Scenario

AMPLE = 1e7
"""Amount of a quota that never binds."""

SDKS: tuple[Sdk, ...] = ("openai", "anthropic")


def _row(
    draw: Draw, family: Family, limit: Limit, count: int, *others: Limit, sdk: Sdk = "openai", **facts: Any
) -> Row:
    """Return a row of one limit, which announces nothing if `facts` name no dialect."""
    facts = {"dialect": "none", "latency": draw.latency(0.2, 0.8), **facts}
    return Row(name="", family=family, scenario=Scenario(limiters=(limit, *others), **facts), count=count, sdk=sdk)


def _announcing(draw: Draw) -> dict[str, Any]:
    """Return the SDK and the dialect of a provider that announces its limits, and how it rounds resets."""
    sdk = draw.one(*SDKS)
    return {"sdk": sdk, "dialect": sdk, "resets": draw.one("own", "ms", "ms-up", "exact", "seconds-up")}


def overloads(draw: Draw, share: float) -> Row:
    """Return a row with ample quotas whose attempts are answered at random, by a share, with "overloaded"."""
    sdk, callers = draw.one(*SDKS), draw.one(8, 16, 32, 64)
    latency = Distribution.lognormal(draw.scale(0.3, 3.0), round(draw.even(0.1, 0.5), 2))
    row = _row(
        draw,
        RARE if share < 0.05 else TENTH,
        Limit(limit=AMPLE),
        min(2500, round(callers * draw.even(25, 60) / latency.median)),
        Limit(limit=AMPLE, unit="tokens"),
        sdk=sdk,
        dialect=draw.one(sdk, "none"),
        latency=latency,
        faults=(Fault(kind="status", probability=share, status=draw.one(503, 529)),),
    )
    return replace(row, callers=callers, meets_faults=True)


def fast_refill(draw: Draw) -> Row:
    """Return a row whose announced bucket is full again within 0.05 to 1 s."""
    window, rate = draw.scale(0.05, 1.0), draw.scale(10, 60)
    limit = Limit(limit=max(1, round(rate * window)), window=window)
    facts = _announcing(draw)
    return _row(draw, WINDOWS, limit, supplied(limit, draw.even(20, 40)), **facts)


def token_quota(draw: Draw) -> Row:
    """Return a row whose hidden bucket counts tokens, at calls of very different size."""
    low, rate = draw.whole(50, 400), draw.scale(4, 16)
    sizes = (low, round(low * draw.even(8, 40)))
    amount = mean_size(sizes) * rate
    limit = Limit(limit=round(max(amount * MINUTE, 1.2 * sizes[1])), window=MINUTE, unit="tokens")
    supply = limit.limit * (1 + draw.even(25, 50) / MINUTE)
    return replace(_row(draw, SILENT, limit, round(supply / mean_size(sizes))), sizes=sizes)


DEAR_SHARE, DEAR_TIMES = 0.01, 100


def rare_dear(draw: Draw) -> Row:
    """Return a row whose hidden bucket counts tokens, where 1 % of the calls cost a hundred times as much."""
    low, rate = draw.whole(50, 200), draw.scale(4, 16)
    sizes = (low, round(low * draw.even(2, 6)))
    mean = mean_size(sizes) * (1 + DEAR_SHARE * (DEAR_TIMES - 1))
    refill = mean * rate
    burst = round(max(60 * refill, 1.2 * DEAR_TIMES * sizes[1]))
    initial = round(refill * draw.even(5, 20))
    limit = Limit(limit=round(60 * refill), unit="tokens", burst=burst, initial=initial)
    row = _row(draw, SILENT, limit, round((initial + refill * draw.even(40, 80)) / mean))
    return replace(row, sizes=sizes, dear=(DEAR_SHARE, DEAR_TIMES))


def per_second(draw: Draw) -> Row:
    """Return a row of n calls a minute, announced or not, of which a second has its part: 0.5 to 2.5 calls.

    A bucket below one call would admit none. Where a second has less than one, one call goes when it has come together.
    """
    each = round(60 * draw.even(0.5, 2.5))
    limit = Limit(limit=each, burst=max(1.0, each / 60))
    facts = _announcing(draw) if draw.chance(0.5) else {}
    return _row(draw, SHIFTING, limit, supplied(limit, draw.even(50, 90)), **facts)


def heavy_knee(draw: Draw) -> Row:
    """Return a row without limits, whose latency has a heavy tail and grows beyond some calls in flight."""
    bend = draw.whole(8, 48)
    latency = Distribution.lognormal(draw.scale(0.3, 1.0), 0.9)
    count = min(2500, round(bend * draw.even(20, 40) / latency.median))
    row = _row(draw, KNEE, Limit(limit=1), count)
    return replace(row, scenario=Scenario(dialect="none", knee=bend, latency=latency))


def silent_growth(draw: Draw) -> Row:
    """Return a row that bounds how fast a client may become faster, and refuses without saying so."""
    growth = round(draw.even(1.5, 3.0), 2)
    limit = Limit(kind="slope", limit=draw.whole(4, 12), window=draw.scale(2, 6), growth=growth)
    return _row(draw, SLOPE, limit, draw.whole(200, 600))


def late_refusal(draw: Draw) -> Row:
    """Return a row whose refusals arrive 10 to 20 s after the attempt, as behind a queue that gives up."""
    limit = Limit(limit=draw.scale(2, 10), window=1.0, burst=draw.whole(5, 40))
    late = Distribution.uniform(10, 20)
    return _row(draw, SILENT, limit, supplied(limit, draw.even(60, 110)), refusal_latency=late)


def backends(draw: Draw, announced: bool) -> Row:
    """Return a row of four backends, of which each request meets one; each has a quarter of the limit."""
    calls, rate = 4 * draw.whole(4, 28), draw.scale(8, 40)
    limit = VariedLimit(limit=calls, window=float(f"{calls / rate:.3g}"), backends=4)
    facts = _announcing(draw) if announced else {}
    return _row(draw, SHIFTING, limit, supplied(limit, draw.even(30, 60)), **facts)


def neighbour(draw: Draw, announced: bool) -> Row:
    """Return a row where another client takes 30 to 80 % of the refill, another part every few seconds."""
    at, shares = 0.0, []
    while at < 90:
        shares.append((round(at, 2), round(1 - draw.even(0.3, 0.8), 3)))
        at += draw.even(4, 12)
    rate = draw.scale(10, 40)
    limit = Limit(limit=round(rate * MINUTE), window=MINUTE, shares=tuple(shares))
    if announced:
        facts = _announcing(draw)
    else:
        limit, facts = limit.replace(burst=draw.whole(5, 30)), {}
    return _row(draw, SHIFTING, limit, supplied(limit, draw.even(40, 70)), **facts)


def always_60(draw: Draw) -> Row:
    """Return a row whose every refusal says `retry-after: 60`, though its bucket or window is back much earlier."""
    if draw.chance(0.5):
        limit = Limit(limit=draw.scale(2, 20), window=1.0, burst=draw.whole(3, 20))
        count = supplied(limit, draw.even(30, 60))
    else:
        seconds = draw.scale(2, 10)
        limit = Limit(kind="fixed", limit=draw.whole(10, 60), window=seconds, offset=round(draw.even(0, seconds), 3))
        count = round(limit.limit * draw.even(5.2, 8.8))
    return _row(draw, SILENT, limit, count, dialect="hint", retry_after="minute")


def refused_count(draw: Draw) -> Row:
    """Return a row with a sliding window in which refused attempts count as well."""
    limit = VariedLimit(kind="rolling", limit=draw.whole(10, 60), window=draw.scale(3, 15), counts_refused=True)
    return _row(draw, SILENT, limit, round(limit.limit * draw.even(5.2, 8.8)), dialect=draw.one("none", "hint"))


def flips_fast_first(draw: Draw) -> Row:
    """Return a row whose bucket changes its rate fourfold, and begins with the fast one."""
    phase = round(draw.even(3, 6), 2)
    limit = Limit(
        limit=draw.scale(10, 40),
        window=1.0,
        burst=draw.whole(2, 12),
        shares=((phase, 0.25),),
        period=2 * phase,
    )
    return _row(draw, CHANGING, limit, supplied(limit, phase * draw.even(5.2, 9)))


def bare_window(draw: Draw, announced: bool) -> Row:
    """Return a row with a fixed window that answers announce, and refusals do not; or nothing does."""
    seconds = draw.scale(5, 20)
    limit = Limit(kind="fixed", limit=draw.whole(10, 100), window=seconds, offset=round(draw.even(0, seconds), 3))
    facts = _announcing(draw) | {"refusals": "none"} if announced else {}
    return _row(draw, WINDOWS if announced else SILENT, limit, round(limit.limit * draw.even(4.2, 6.8)), **facts)


def window_block(draw: Draw) -> Row:
    """Return a row with a hidden fixed window that, once exceeded, refuses everything for longer than a window."""
    seconds = draw.scale(3, 10)
    limit = VariedLimit(
        kind="fixed",
        limit=draw.whole(10, 60),
        window=seconds,
        offset=round(draw.even(0, seconds), 3),
        block=round(seconds * draw.even(1, 3), 2),
    )
    return _row(draw, SILENT, limit, round(limit.limit * draw.even(5.2, 8.8)), dialect=draw.one("none", "hint"))


def slots_steps(draw: Draw) -> Row:
    """Return a row that takes 8 calls at once, then 64, then 8 again."""
    latency = draw.latency(0.5, 1.2)
    first, wide, last = draw.even(8, 15), draw.even(8, 16), draw.even(8, 15)
    sizes = ((round(first, 2), 8.0), (round(first + wide, 2), 1.0))
    limit = VariedLimit(kind="slots", limit=8, status=draw.one(429, 503, 529), sizes=sizes)
    count = round((8 * (first + last) + 64 * wide) / latency.median)
    return _row(draw, CHANGING, limit, count, latency=latency)


HELD_OUT = families(
    (
        Drawn("overloads-3", partial(overloads, share=0.03)),
        Drawn("overloads-10", partial(overloads, share=0.1)),
        Drawn("fast-refill", fast_refill),
        Drawn("token-quota", token_quota),
        Drawn("rare-dear", rare_dear),
        Drawn("per-second", per_second),
        Drawn("heavy-knee", heavy_knee),
        Drawn("silent-growth", silent_growth),
        Drawn("late-refusal", late_refusal),
        Drawn("backends", partial(backends, announced=True)),
        Drawn("backends-hidden", partial(backends, announced=False)),
        Drawn("neighbour", partial(neighbour, announced=True)),
        Drawn("neighbour-hidden", partial(neighbour, announced=False)),
        Drawn("always-60", always_60),
        Drawn("refused-count", refused_count),
        Drawn("flips-fast-first", flips_fast_first),
        Drawn("bare-window", partial(bare_window, announced=True)),
        Drawn("bare-window-hidden", partial(bare_window, announced=False)),
        Drawn("window-block", window_block),
        Drawn("slots-steps", slots_steps),
    )
)
