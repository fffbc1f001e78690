"""How tidegate stands to the peers on a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.families import UNLIMITED
from bench.peers.catalogue import OURS, PEERS
from bench.peers.rows import row_of
from bench.peers.runs import Middle

LEVEL = 0.02
"""Shares of the makespan within which two are level: what the last latencies and the machine move it by."""

LEVEL_REQUESTS = 0.01
"""Requests per answer within which two are level."""

TOLD = {peer.name: ", which is told the limits," for peer in PEERS if peer.limits}

Standing = Literal["beaten", "level", "ahead", "loses calls", "did not run"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tidegate on one row, against each peer that was there."""

    row: str
    ours: Middle | None
    standings: dict[str, Standing]

    @property
    def complaints(self) -> list[str]:
        """Why it is not the best here; nothing where it is."""
        if self.ours is None or self.ours.failure:
            return ["tidegate did not run"]
        missing = self.ours.lost + self.ours.unfinished
        lost = [f"tidegate loses {missing} calls"] if missing else []
        return lost + [f"{peer}{TOLD.get(peer, '')} is ahead" for peer in self.those("ahead")]

    def those(self, standing: Standing) -> list[str]:
        """The peers that stand so."""
        return [peer for peer, theirs in self.standings.items() if theirs == standing]

    def __str__(self) -> str:
        told = "; ".join(self.complaints) or "tidegate beats every peer that loses no call"
        if self.those("level"):
            told += f", but is level with {', '.join(self.those('level'))}"
        return f"{self.row}: {told}"


def standing(row: str, ours: Middle, theirs: Middle) -> Standing:
    """How a peer stands: by its makespan, and where that is level by its requests; if it loses no call."""
    if theirs.failure:
        return "did not run"
    if theirs.lost:
        return "loses calls"
    level = UNLIMITED.ratio - 1 if row_of(row).family is UNLIMITED else LEVEL
    if abs(ours.ratio - theirs.ratio) > level * theirs.ratio:
        return "beaten" if ours.ratio < theirs.ratio else "ahead"
    if abs(ours.requests_per_answer - theirs.requests_per_answer) > LEVEL_REQUESTS:
        return "beaten" if ours.requests_per_answer < theirs.requests_per_answer else "ahead"
    return "level"


def verdict(row: str, middles: Sequence[Middle]) -> Verdict:
    """The verdict on one row."""
    ours = next((each for each in middles if each.peer == OURS.name), None)
    others = [each for each in middles if each.peer != OURS.name]
    if ours is None:
        return Verdict(row, None, {})
    return Verdict(row, ours, {each.peer: standing(row, ours, each) for each in others})
