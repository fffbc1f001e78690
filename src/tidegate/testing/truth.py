"""The ground truth: what really came in, was admitted and refused, as the provider counted it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.testing.limiters import Level, Reason


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls of one key or of all.

    `received` = `admitted` + all of `refused` (by the limiter's name, `too_large`, `outage`). An admitted call is
    in flight until it is `answered` in full, `broken` by a fault, or `abandoned` by its client.
    """

    received: int = 0
    admitted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    answered: int = 0
    broken: int = 0
    abandoned: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    levels: tuple[Level, ...] = ()

    @property
    def refusals(self) -> int:
        """All refused calls."""
        return sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class Truth:
    """A snapshot. Instants are seconds since the start or the last reset.

    `keys` is by `model` and the first digits of a digest of the credential; `order` lists the rows (the request's
    `x-row` header, `user`, `metadata.row` or `metadata.user_id`, else its number `#n`) by first admission;
    `admitted_at` has every admission, `held` the seconds from admission to end of each answered call, as they ended.
    """

    elapsed: float
    total: Counts
    keys: Mapping[str, Counts]
    order: tuple[str, ...]
    admitted_at: tuple[float, ...]
    held: tuple[float, ...] = ()

    def to_json(self) -> bytes:
        """The snapshot as JSON; what is unlimited is null."""
        plain = asdict(self)
        for counts in (plain["total"], *plain["keys"].values()):
            for level in counts["levels"]:
                level["limit"] = _finite(level["limit"])
                level["remaining"] = _finite(level["remaining"])
        return json.dumps(plain).encode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Truth:
        """The snapshot that `to_json` wrote."""
        plain = json.loads(text)
        return cls(
            elapsed=plain["elapsed"],
            total=_counts(plain["total"]),
            keys={name: _counts(counts) for name, counts in plain["keys"].items()},
            order=tuple(plain["order"]),
            admitted_at=tuple(plain["admitted_at"]),
            held=tuple(plain["held"]),
        )


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _counts(plain: dict[str, Any]) -> Counts:
    levels = [
        Level(
            **{
                **level,
                "reason": Reason(level["reason"]),
                "limit": float("inf") if level["limit"] is None else level["limit"],
                "remaining": float("inf") if level["remaining"] is None else level["remaining"],
            }
        )
        for level in plain["levels"]
    ]
    return Counts(**{**plain, "levels": tuple(levels)})


class Tally:
    """Counts that are still moving; not safe for threads."""

    __slots__ = ("abandoned", "admitted", "answered", "broken", "in_flight", "peak_in_flight", "received", "refused")

    def __init__(self) -> None:
        self.received = self.admitted = self.answered = self.broken = self.abandoned = 0
        self.in_flight = self.peak_in_flight = 0
        self.refused: Counter[str] = Counter()

    def admit(self) -> None:
        """One more is admitted and in flight."""
        self.admitted += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def end(self, how: str) -> None:
        """One in flight has ended: `answered`, `broken` or `abandoned`."""
        self.in_flight -= 1
        setattr(self, how, getattr(self, how) + 1)

    def counts(self, levels: tuple[Level, ...] = ()) -> Counts:
        """The counts as they stand."""
        return Counts(
            received=self.received,
            admitted=self.admitted,
            refused=dict(self.refused),
            answered=self.answered,
            broken=self.broken,
            abandoned=self.abandoned,
            in_flight=self.in_flight,
            peak_in_flight=self.peak_in_flight,
            levels=levels,
        )
