"""The kinds of scenario, and what is accepted of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is accepted of a kind of scenario; medians over the seeds.

    ratio      makespan over the oracle's, at most
    refused    refusals per call, at most, without those in an outage
    lost       calls that came to nothing
    hits       requests that met an outage, at most
    stretched  median latency over that of an unloaded provider, at most
    """

    name: str
    ratio: float
    refused: float
    lost: int = 0
    hits: int | None = None
    stretched: float | None = None


HEADERS = Family(name="headers", ratio=1.03, refused=0.005)
WINDOWS = Family(name="windows", ratio=1.05, refused=0.01)
SHIFTING = Family(name="shifting", ratio=1.05, refused=0.03)
SILENT = Family(name="silent", ratio=1.08, refused=0.02)
CHANGING = Family(name="changing", ratio=1.15, refused=0.08)
SLOPE = Family(name="slope", ratio=1.30, refused=0.08)
"""The client has to find out how fast it may become faster. Of all paces that grow evenly, the best one in hindsight
is at 1.16 with as many refusals (README)."""

SLOW = Family(name="slow", ratio=1.05, refused=0.10)
"""The first header comes after half a minute, and there are few calls: the first round is sent before it."""

OUTAGE = Family(name="outage", ratio=1.10, refused=0.02, hits=20)
KNEE = Family(name="knee", ratio=1.05, refused=0.0, stretched=1.5)
STRAY = Family(name="stray", ratio=5.0, refused=0.0)
"""Random refusals that end. Each one holds the key back for a while, which an oracle that knows better spares."""

RARE = Family(name="rare", ratio=1.07, refused=0.0)
TENTH = Family(name="tenth", ratio=1.17, refused=0.0)
"""Random refusals, 3 % and 10 % of all calls, where nothing is limited. Each one takes as long as an answer, and its
call is sent again: that is 0.03 and 0.11 of the ideal. Messages travel for 0.02 of it."""

UNLIMITED = Family(name="unlimited", ratio=1.05, refused=0.0)

FAMILIES = (HEADERS, WINDOWS, SHIFTING, SILENT, CHANGING, OUTAGE, KNEE, UNLIMITED, STRAY, RARE, TENTH, SLOPE, SLOW)
