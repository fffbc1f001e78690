"""Rows that end in a moment."""

from __future__ import annotations

from dataclasses import replace

from bench.families import HEADERS
from bench.scenarios import LATENCY, Row
from tidegate.testing import Distribution, Fault, Limit, Scenario

QUICK = Scenario(dialect="openai", limiters=(Limit(limit=20, window=1.0),), latency=LATENCY)
SMALL = Row(name="small", family=HEADERS, scenario=QUICK, count=50, callers=16)
STREAMED = replace(
    SMALL,
    scenario=QUICK.replace(token_pace=0.01, output_tokens=Distribution.lognormal(20, 0.5)),
    stream=True,
)
REJECTING = replace(SMALL, scenario=QUICK.replace(faults=(Fault(kind="status", status=400, nth=(3, 30)),)))
