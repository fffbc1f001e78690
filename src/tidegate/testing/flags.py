"""Scenarios from the numbers that users give on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tidegate.errors import ConfigurationError
from tidegate.testing.admission import CHARGES, Charge
from tidegate.testing.limiters import Unit
from tidegate.testing.scenario import DIALECTS, RETRY_AFTERS, SCOPES, DialectName, RetryAfter, Scenario, Scope
from tidegate.testing.specs import Distribution, Limit, LimitKind, OutageSpan

LIMITS = {
    "rpm": "Limit requests per window.",
    "tpm": "Limit tokens per window.",
    "itpm": "Limit input tokens per window.",
    "otpm": "Limit output tokens per window.",
    "rpd": "Limit requests per day.",
    "slots": "Limit calls in flight.",
    "burst": "Set the capacity of the request bucket (default: the rpm).",
}
"""Help texts of the limits."""

LATENCY = "Answer after this many seconds: 0.5, uniform:A,B or lognormal:MEDIAN,SIGMA."
OUTPUT_TOKENS = "Count this many tokens per answer, in the form of --latency (default: a quarter of its characters)."
OUTAGE = "Fail all calls from second START to END with STATUS (default: 503), or cut connections (drop)."
SCENARIO = "Read the scenario from this JSON file, or from one line of standard input (-); ignore all provider flags."


def from_flags(
    *,
    rpm: float | None = None,
    tpm: float | None = None,
    itpm: float | None = None,
    otpm: float | None = None,
    rpd: float | None = None,
    slots: float | None = None,
    window: float = 60.0,
    algorithm: str = "bucket",
    burst: float | None = None,
    outage: Sequence[str] = (),
    dialect: str = "auto",
    scope: str = "credential+model",
    charge: str = "input",
    latency: str = "0",
    token_pace: float = 0.0,
    output_tokens: str | None = None,
    retry_after: str = "exact",
    headers: bool = True,
    seed: int = 0,
) -> Scenario:
    """Return the scenario of these flags; raise ConfigurationError.

    - `rpm`, `tpm`, `itpm`, `otpm`: requests, tokens, input and output tokens for each `window` (seconds, default a
      minute)
    - `algorithm`: how a window counts: bucket, fixed or rolling
    - `burst`: capacity of the request bucket, if not `rpm`
    - `rpd`, `slots`: requests a day, and calls in flight
    - `outage`: spans as START:END or START:END:STATUS, in seconds; STATUS may be `drop`
    - `latency`, `output_tokens`: a number, uniform:A,B or lognormal:MEDIAN,SIGMA
    """
    if algorithm not in ("bucket", "fixed", "rolling"):
        raise ConfigurationError("algorithm", algorithm, "it must be one of bucket, fixed, rolling")
    limits: list[Limit] = []
    rates: dict[Unit, float | None] = {"requests": rpm, "tokens": tpm, "input_tokens": itpm, "output_tokens": otpm}
    for unit, limit in rates.items():
        if limit is not None:
            kept = burst if unit == "requests" else None
            limits.append(Limit(kind=cast("LimitKind", algorithm), limit=limit, window=window, unit=unit, burst=kept))
    if rpd is not None:
        limits.append(Limit(kind="day", limit=rpd))
    if slots is not None:
        limits.append(Limit(kind="slots", limit=slots))
    return Scenario(
        dialect=cast("DialectName", dialect),
        limiters=tuple(limits),
        scope=cast("Scope", scope),
        charge=cast("Charge", charge),
        outages=tuple(_span(text) for text in outage),
        latency=_distribution("latency", latency),
        token_pace=token_pace,
        output_tokens=None if output_tokens is None else _distribution("output_tokens", output_tokens),
        retry_after=cast("RetryAfter", retry_after),
        headers=headers,
        seed=seed,
    )


def _span(text: str) -> OutageSpan:
    parts = text.split(":")
    try:
        start, end = float(parts[0]), float(parts[1])
        status: Any = 503 if len(parts) < 3 else "drop" if parts[2] == "drop" else int(parts[2])
    except (IndexError, ValueError):
        raise ConfigurationError(
            "outage", text, "it must be START:END or START:END:STATUS, with START and END in seconds"
        ) from None
    try:
        return OutageSpan(start=start, end=end, status=status)
    except ConfigurationError as error:
        raise ConfigurationError("outage", text, f"{error.field}: {error.bound}") from None


def _distribution(field: str, text: str) -> Distribution:
    """Read the text of a flag; raise a `ConfigurationError` that names the flag and not a part of its value."""
    try:
        return Distribution.parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(field, text, error.bound) from None


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(prog="python -m tidegate.testing", description="Simulate an LLM provider.")
    flags.add_argument("--port", type=int, default=0, help="Listen on this port; 0 chooses a free one.")
    flags.add_argument("--scenario", help=SCENARIO)
    flags.add_argument("--until-stdin-closes", action="store_true", help="Stop when standard input ends.")
    for name, text in LIMITS.items():
        flags.add_argument(f"--{name}", type=float, help=text)
    flags.add_argument("--window", type=float, default=60.0, help="Set the length of the rate window in seconds.")
    flags.add_argument("--algorithm", default="bucket", help="Count rates with one of: bucket, fixed, rolling.")
    flags.add_argument("--outage", action="append", default=[], metavar="START:END[:STATUS]", help=OUTAGE)
    flags.add_argument(
        "--dialect", default="auto", help=f"Send the headers and error bodies of one of: {', '.join(DIALECTS)}."
    )
    flags.add_argument("--scope", default="credential+model", help=f"Count limits per one of: {', '.join(SCOPES)}.")
    flags.add_argument("--charge", default="input", help=f"Charge token limits by one of: {', '.join(CHARGES)}.")
    flags.add_argument("--latency", default="0", help=LATENCY)
    flags.add_argument("--token-pace", type=float, default=0.0, help="Add this many seconds per output token.")
    flags.add_argument("--output-tokens", help=OUTPUT_TOKENS)
    flags.add_argument(
        "--retry-after",
        default="exact",
        help=f"Name the wait of refusals in one of these ways: {', '.join(RETRY_AFTERS)}.",
    )
    flags.add_argument("--no-headers", dest="headers", action="store_false", help="Send no rate-limit headers.")
    flags.add_argument("--seed", type=int, default=0, help="Set the seed of all random values.")
    return flags


def scenario_of(flags: argparse.Namespace, first_line: str) -> Scenario:
    """Return the scenario of parsed flags; `first_line` is that of standard input, for `--scenario -`."""
    if flags.scenario is not None:
        return Scenario.from_json(first_line if flags.scenario == "-" else Path(flags.scenario).read_text())
    apart = ("port", "scenario", "until_stdin_closes")
    return from_flags(**{name: value for name, value in vars(flags).items() if name not in apart})
