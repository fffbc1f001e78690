"""What runs came to, and the file that keeps them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.peers.drivers.work import UNFINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to. Durations are in seconds; `failure` says why there is no outcome.

    refused    calls that were refused, without those that met an outage
    requests   all that came to the provider, also those that met an outage
    displaced  places, on average, by which first admissions came out of the order of the calls
    cpu        of the peer's process, all threads, from the first call to the last answer
    at         when it was run
    """

    row: str
    peer: str
    seed: int
    calls: int
    ideal: float = math.nan
    makespan: float = math.nan
    cpu: float = math.nan
    answered: int = 0
    losses: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    refused: int = 0
    displaced: float = math.nan
    failure: str = ""
    at: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Which run it is."""
        return (self.row, self.peer, self.seed)

    @property
    def unfinished(self) -> int:
        """Calls that were still open at the deadline."""
        return self.losses.get(UNFINISHED, 0)

    @property
    def lost(self) -> int:
        """Calls that came to nothing."""
        return self.calls - self.answered - self.unfinished

    @property
    def ratio(self) -> float:
        """Makespan over the oracle's; of a run that did not finish, what it is above."""
        return self.makespan / self.ideal

    @property
    def refused_share(self) -> float:
        """Refusals per call."""
        return self.refused / self.calls

    @property
    def requests_per_answer(self) -> float:
        """Requests for each call that was answered."""
        return self.requests / max(1, self.answered)

    @property
    def cpu_per_call(self) -> float:
        """In seconds."""
        return self.cpu / self.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A peer on a row: medians over its seeds, but for `lost` and `unfinished`, which are the most of any seed."""

    peer: str
    ratio: float
    refused_share: float
    lost: int
    unfinished: int
    requests_per_answer: float
    displaced: float
    cpu_per_call: float
    failure: str

    @classmethod
    def of(cls, peer: str, runs: Sequence[Run]) -> Middle:
        """Over the runs of one peer on one row."""
        shown = ("ratio", "refused_share", "requests_per_answer", "displaced", "cpu_per_call")
        return cls(
            peer=peer,
            lost=max(run.lost for run in runs),
            unfinished=max(run.unfinished for run in runs),
            failure=next((run.failure for run in runs if run.failure), ""),
            **{name: statistics.median(getattr(run, name) for run in runs) for name in shown},
        )


def kept(path: Path) -> list[Run]:
    """The runs of a results file; none where there is no file."""
    if not path.exists():
        return []
    return [Run(**{name: _read(name, value) for name, value in each.items()}) for each in _content(path)]


def keep(path: Path, runs: Iterable[Run], **facts: Any) -> None:
    """Writes a results file."""
    path.parent.mkdir(exist_ok=True)
    plain = [{name: _plain(value) for name, value in asdict(run).items()} for run in runs]
    path.write_text(json.dumps({**facts, "runs": plain}, indent=1, allow_nan=False) + "\n")


def _content(path: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


NUMBERS = {each.name for each in fields(Run) if each.type == "float"}


def _read(name: str, value: Any) -> Any:
    return math.nan if value is None and name in NUMBERS else value


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
