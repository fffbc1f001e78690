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
        raise ConfigurationError("algorithm", algorithm, "one of bucket, fixed, rolling")
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
        latency=Distribution.parse(latency),
        token_pace=token_pace,
        output_tokens=None if output_tokens is None else Distribution.parse(output_tokens),
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
        raise ConfigurationError("outage", text, "written as START:END or START:END:STATUS") from None
    return OutageSpan(start=start, end=end, status=status)


def parser() -> argparse.ArgumentParser:
    """Return the parser for the flags of `python -m tidegate.testing`."""
    flags = argparse.ArgumentParser(prog="python -m tidegate.testing", description="Simulate an LLM provider.")
    flags.add_argument("--port", type=int, default=0, help="0: a free one")
    flags.add_argument("--scenario", help="a JSON file, or - for one line of standard input; other flags are ignored")
    flags.add_argument("--until-stdin-closes", action="store_true", help="stop when standard input ends")
    for name in ("rpm", "tpm", "itpm", "otpm", "rpd", "slots", "burst"):
        flags.add_argument(f"--{name}", type=float)
    flags.add_argument("--window", type=float, default=60.0, help="seconds of the `minute` of the rates")
    flags.add_argument("--algorithm", default="bucket", help="bucket, fixed or rolling")
    flags.add_argument("--outage", action="append", default=[], metavar="START:END[:STATUS]")
    flags.add_argument("--dialect", default="auto", help=", ".join(DIALECTS))
    flags.add_argument("--scope", default="credential+model", help=", ".join(SCOPES))
    flags.add_argument("--charge", default="input", help=", ".join(CHARGES))
    flags.add_argument("--latency", default="0", help="seconds: 0.5, uniform:A,B or lognormal:MEDIAN,SIGMA")
    flags.add_argument("--token-pace", type=float, default=0.0, help="seconds for each output token")
    flags.add_argument("--output-tokens", help="in the form of --latency; default: a quarter of the characters")
    flags.add_argument("--retry-after", default="exact", help=", ".join(RETRY_AFTERS))
    flags.add_argument("--no-headers", dest="headers", action="store_false")
    flags.add_argument("--seed", type=int, default=0)
    return flags


def scenario_of(flags: argparse.Namespace, first_line: str) -> Scenario:
    """Return the scenario of parsed flags. `first_line` is that of standard input, for `--scenario -`."""
    if flags.scenario is not None:
        return Scenario.from_json(first_line if flags.scenario == "-" else Path(flags.scenario).read_text())
    apart = ("port", "scenario", "until_stdin_closes")
    return from_flags(**{name: value for name, value in vars(flags).items() if name not in apart})
