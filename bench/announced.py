"""Drawn families whose provider announces its limits: what it charges, how it counts time, how it rounds resets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from bench.drawn import Draw, Drawn, mean_size, round_limit
from bench.families import HEADERS, OUTAGE, SHIFTING, SLOPE, WINDOWS
from bench.scenarios import MINUTE, Row
from tidegate.testing import Distribution, Limit, OutageSpan, Scenario

Like = Literal["openai", "anthropic"]
LIKE: tuple[Like, ...] = ("openai", "anthropic")

ROUNDINGS: dict[Like, tuple[str, ...]] = {
    "openai": ("ms", "ms-up", "seconds", "seconds-up"),
    "anthropic": ("seconds", "seconds-up", "ms", "exact"),
}
"""OpenAI-like resets are durations, Anthropic-like ones instants."""

REAL_MINUTE = 60.0
AMPLE = 1e7


def _provider(draw: Draw, like: Like, *limits: Limit, **facts: Any) -> Scenario:
    facts = {"latency": draw.latency(), "resets": draw.one(*ROUNDINGS[like]), **facts}
    return Scenario(dialect=like, limiters=limits, **facts)


def _period(draw: Draw) -> tuple[float, float, float]:
    """Return a scaled or real minute, calls a second, and the seconds for which calls wait for refill."""
    if draw.chance(0.5):
        return MINUTE, draw.scale(8, 40), MINUTE * draw.even(1.2, 2.5)
    return REAL_MINUTE, draw.scale(3, 10), REAL_MINUTE * draw.even(0.3, 0.8)


BOUNDS: dict[str, Callable[[Draw], tuple[int, ...]]] = {
    "large": lambda draw: (draw.whole(1024, 8192),),
    "small": lambda draw: (draw.whole(16, 128),),
    "two-sizes": lambda draw: (draw.whole(32, 128), draw.whole(1024, 4096)),
}
"""What calls name as the bound on their output."""


def charged(
    draw: Draw,
    *,
    like: Like | None = None,
    bound: str | None = None,
    charge: str = "input+max_tokens",
    cached: bool = False,
    least: bool = False,
    **facts: Any,
) -> Row:
    """Return a row whose token bucket binds and charges as the rule says; what is not named is drawn."""
    dialect: Like = draw.one(*LIKE) if like is None else like
    bounds = BOUNDS[draw.one(*BOUNDS) if bound is None else bound](draw)
    window, rate, waited = _period(draw)
    low = draw.whole(40, 200)
    sizes = (low, round(low * draw.even(2.0, 12.0)))
    output = max(5, round(min(bounds) / draw.even(1.0, 3.0))) if max(bounds) < 1024 else draw.whole(50, 400)
    facts["cached_tokens"] = round(mean_size(sizes) * draw.even(0.2, 0.6)) if cached else 0
    facts["least_tokens"] = round(mean_size(sizes) * draw.even(0.8, 1.5)) if least else 0
    into = max(mean_size(sizes) - facts["cached_tokens"], facts["least_tokens"] * 1.1)
    reserved, produced = sum(bounds) / len(bounds), sum(min(output, bound) for bound in bounds) / len(bounds) * 1.1
    if facts.get("gives_back"):
        # Reservations of the calls in flight are the smaller part of the limit.
        out, charged_at_end = produced + 0.1 * reserved, produced
    else:
        out = charged_at_end = {"input": 0.0, "input+max_tokens": reserved, "produced": produced}[charge]
    limits = [Limit(limit=AMPLE, window=window)]
    if dialect == "anthropic" and charge != "input" and draw.chance(0.6):
        ample = draw.even(1.3, 3.0)
        limits.append(Limit(limit=round_limit(into * rate * window * ample), window=window, unit="input_tokens"))
        limits.append(_bucket(draw, out * rate * window, window, "output_tokens"))
    else:
        unit = "input_tokens" if dialect == "anthropic" and charge == "input" else "tokens"
        limits.append(_bucket(draw, (into + out) * rate * window, window, unit))
    binding = limits[-1]
    supply = (binding.limit if binding.initial is None else binding.initial) + binding.limit * waited / window
    return Row(
        name="",
        family=HEADERS,
        scenario=_provider(
            draw,
            dialect,
            *limits,
            charge=charge,
            output_tokens=Distribution.lognormal(output, round(draw.even(0.2, 0.6), 2)),
            **facts,
        ),
        count=round(supply / (charged_at_end + (0 if binding.unit == "output_tokens" else into))),
        sizes=sizes,
        max_tokens=bounds[0] if len(bounds) == 1 else None,
        bounds=bounds if len(bounds) > 1 else (),
        sdk=dialect,
    )


def _bucket(draw: Draw, amount: float, window: float, unit: Any) -> Limit:
    limit = round_limit(amount)
    initial = round(limit * draw.even(0.2, 0.6)) if draw.chance(0.3) else None
    return Limit(limit=limit, window=window, unit=unit, initial=initial)


def windowed(draw: Draw, kind: Literal["fixed", "rolling"]) -> Row:
    """Return a row with announced windows of requests or tokens, of a scaled or a real minute."""
    like = draw.one(*LIKE)
    window, rate, _ = _period(draw)
    whole = draw.even(2.2, 3.7) if window == MINUTE else draw.even(1.3, 2.6)
    offset = round(draw.even(0.0, window), 3) if kind == "fixed" else 0.0
    low = draw.whole(40, 200)
    sizes, bound, facts = (low, low * 4), draw.whole(64, 512), {}
    binding = Limit(kind=kind, limit=round_limit(rate * window), window=window, offset=offset)
    if draw.chance(0.6):
        charge = draw.one("input", "input+max_tokens")
        tokens = mean_size(sizes) + (bound if charge == "input+max_tokens" else 0)
        limit = round_limit(rate * window * tokens)
        unit: Any = "input_tokens" if like == "anthropic" and charge == "input" else "tokens"
        binding = Limit(kind=kind, limit=limit, window=window, unit=unit, offset=offset)
        facts = {"charge": charge, "output_tokens": Distribution.lognormal(min(40, bound / 2), 0.4)}
    others = (Limit(limit=AMPLE, window=window),) if binding.unit != "requests" else ()
    return Row(
        name="",
        family=WINDOWS,
        scenario=_provider(draw, like, *others, binding, **facts),
        count=round(rate * window * whole),
        sizes=sizes,
        max_tokens=bound,
        sdk=like,
    )


def heavy_tail(draw: Draw) -> Row:
    """Return a row with an announced quota and answers that take 0.9 s, some of them many times as long."""
    like = draw.one(*LIKE)
    window, rate = MINUTE, draw.scale(20, 60)
    latency = Distribution.lognormal(0.9, round(draw.even(0.45, 0.7), 2))
    return Row(
        name="",
        family=HEADERS,
        scenario=_provider(draw, like, Limit(limit=round_limit(rate * window), window=window), latency=latency),
        count=round(rate * window * draw.even(2.0, 3.5)),
        max_tokens=64,
        sdk=like,
    )


def foreign(draw: Draw) -> Row:
    """Return a row whose headers are handed on by a gateway that has a limit of its own and never announces it."""
    like = draw.one(*LIKE)
    rate = draw.scale(8, 40)
    true = Limit(limit=rate, window=1.0, burst=max(2, round(rate * draw.even(0.3, 1.5))), announced=False, name="true")
    handed_on = Limit(limit=draw.one(1000, 4000, 10_000), window=draw.one(MINUTE, REAL_MINUTE))
    tokens = Limit(limit=AMPLE, window=handed_on.window, unit="tokens")
    seconds = min(draw.even(10, 16), handed_on.limit / rate)
    return Row(
        name="",
        family=SHIFTING,
        scenario=_provider(draw, like, handed_on, tokens, true, refusals=draw.one("none", "hint")),
        count=round((true.burst or 0) + rate * seconds),
        max_tokens=64,
        sdk=like,
    )


def outage(draw: Draw) -> Row:
    """Return a row with an announced quota and an outage of some seconds."""
    like = draw.one(*LIKE)
    window, rate = MINUTE, draw.scale(20, 60)
    start = draw.even(2.0, 4.0)
    length = draw.scale(2.0, 12.0)
    span = OutageSpan(start=round(start, 2), end=round(start + length, 2), status=draw.one(500, 503, 529, "drop"))
    limit = Limit(limit=round_limit(rate * window), window=window)
    return Row(
        name="",
        family=OUTAGE,
        scenario=_provider(draw, like, limit, outages=(span,), latency=draw.latency(0.2, 0.6)),
        count=round(rate * window + rate * (start + length + draw.even(3.0, 6.0))),
        max_tokens=64,
        sdk=like,
    )


def fitting(draw: Draw, like: Like) -> Row:
    """Return a row of 90 calls with a bound of 256 against 24,000 output tokens a minute, charged at admission.

    All of it fits the burst, so the plain SDK is never refused: its time is the measure, with its connections.
    """
    size = draw.whole(20, 200)
    limits = [Limit(limit=AMPLE, window=REAL_MINUTE)]
    if like == "anthropic":
        limits.append(Limit(limit=round_limit(200_000), window=REAL_MINUTE, unit="input_tokens"))
        limits.append(Limit(limit=24_000, window=REAL_MINUTE, unit="output_tokens"))
    else:
        limits.append(Limit(limit=24_000 + 90 * size, window=REAL_MINUTE, unit="tokens"))
    return Row(
        name="",
        family=HEADERS,
        scenario=_provider(
            draw,
            like,
            *limits,
            charge="input+max_tokens",
            output_tokens=Distribution.constant(draw.whole(30, 200)),
        ),
        count=90,
        sizes=(size, size),
        max_tokens=256,
        callers=draw.one(8, 16, 32, 64, 128),
        sdk=like,
        against_plain=True,
    )


def growth(draw: Draw) -> Row:
    """Return a row that bounds how fast a client may become faster; an ample quota is announced."""
    slope = Limit(kind="slope", limit=draw.whole(5, 16), window=1.0, growth=round(draw.even(1.3, 2.0), 2))
    return Row(
        name="",
        family=SLOPE,
        scenario=_provider(draw, "openai", Limit(limit=6000, window=MINUTE), slope, retry_after="none"),
        count=draw.whole(400, 700),
    )


SHARED_REQUESTS = {name: {"requests": "account"} for name in ("openai", "compatible")}
"""The setting for a provider whose models share a quota of requests, at its own address and at the bench's."""


def models(draw: Draw) -> Row:
    """Return a row of several models that share a quota of requests, as the setting says."""
    window, rate, waited = _period(draw)
    limit = _bucket(draw, rate * window, window, "requests")
    supply = (limit.limit if limit.initial is None else limit.initial) + limit.limit * waited / window
    return Row(
        name="",
        family=HEADERS,
        scenario=_provider(
            draw, "openai", limit.replace(shared=True), Limit(limit=AMPLE, window=window, unit="tokens")
        ),
        count=round(supply),
        models=draw.whole(2, 10),
        scopes=SHARED_REQUESTS,
    )


ANNOUNCED = (
    *(
        Drawn(f"bound-{bound}-{like}", partial(charged, like=like, bound=bound))
        for like in LIKE
        for bound in BOUNDS
    ),
    Drawn("charges-input", partial(charged, charge="input")),
    Drawn("charges-returned", partial(charged, gives_back=True)),
    Drawn("charges-produced", partial(charged, charge="produced")),
    Drawn("charges-cached-free", partial(charged, charge="input", cached=True)),
    Drawn("charges-minimum", partial(charged, charge="input", least=True)),
    Drawn("announced-fixed", partial(windowed, kind="fixed")),
    Drawn("announced-rolling", partial(windowed, kind="rolling")),
    Drawn("announced-heavy-tail", heavy_tail),
    Drawn("foreign-headers", foreign),
    Drawn("drawn-outage", outage),
    *(Drawn(f"fits-burst-{like}", partial(fitting, like=like)) for like in LIKE),
    Drawn("growth", growth),
    Drawn("models-share", models),
)  # fmt: skip
