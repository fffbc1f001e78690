"""All quota mirrors of one key: which of them binds, and what each attempt was charged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tidegate.core.bucket import DEFAULT_WINDOW, Bucket, Debit
from tidegate.core.vocabulary import Cost, Reading
from tidegate.core.window import Window


class Mirror(Protocol):
    """A local copy of one quota."""

    name: str
    unit: str
    limit: float
    window: float
    scale: float

    @property
    def paces(self) -> bool:
        """Whether the instant of the next free unit is known."""
        ...

    def level(self, now: float) -> float:
        """Units that may be spent at `now`."""
        ...

    def ready_at(self, amount: float, reserve: float, now: float) -> float:
        """The earliest instant at which `amount` fits, and `reserve` with it."""
        ...

    def debit(self, amount: float, reserve: float, order: int, now: float) -> Debit:
        """Charges `amount` and holds `reserve`."""
        ...

    def settle(self, reserve: float, produced: float, order: int, now: float) -> None:
        """Turns a reservation into a charge."""
        ...

    def refund(self, debit: Debit, reserve: float) -> None:
        """Takes back what a refused request was not charged."""
        ...

    def overdrawn(self, now: float, retry_after: float | None) -> None:
        """The provider refused although this copy saw room; `retry_after` is in seconds, where it said one."""
        ...

    def observe(self, reading: Reading, order: int, sent_at: float, now: float, debit: Debit | None) -> None:
        """Re-anchors the copy by one response."""
        ...


NEARLY_EMPTY = 0.05
"""Share of a limit under which a copy may be wrong about the last units: what is in flight is not yet known."""

AMPLE = 0.5
"""Share of every limit above which it does not matter when the next reading comes."""

ROOMY = 0.4
"""Share of the smallest limit that surely fits while quota is ample, whatever unit it is counted in."""

Charge = tuple[Mirror, Debit, float]
"""A mirror, what was charged to it at send, and what is reserved in it until the answer ends."""


class Quotas:
    """The mirrors of one key by name; they come into being with the first reading that names them.

    `ample` says that more than half of each was left after the last debit.
    """

    __slots__ = ("_roomy", "ample", "default_window", "mirrors")

    def __init__(self, default_window: float = DEFAULT_WINDOW) -> None:
        self.default_window = default_window
        self.mirrors: dict[str, Mirror] = {}
        self.ample = False
        self._roomy = 0.0

    def ready_at(self, cost: Cost, now: float) -> tuple[float, str]:
        """The instant at which every quota has room for `cost`, and the name of the last one to have it."""
        if self.ample and max(cost) <= self._roomy:
            return now, ""
        latest, binding = now, ""
        for mirror in self.mirrors.values():
            unit = mirror.unit
            ready = mirror.ready_at(cost.amount(unit), cost.reserve(unit), now)
            if ready > latest:
                latest, binding = ready, mirror.name
        return latest, binding

    def debit(self, cost: Cost, order: int, now: float) -> list[Charge]:
        """Charges an attempt to every quota it counts against."""
        charges: list[Charge] = []
        ample, smallest = bool(self.mirrors), float("inf")
        for mirror in self.mirrors.values():
            amount, reserve = cost.amount(mirror.unit), cost.reserve(mirror.unit)
            if amount or reserve:
                charges.append((mirror, mirror.debit(amount, reserve, order, now), reserve))
            if ample:
                ample = mirror.level(now) > AMPLE * mirror.limit
                smallest = min(smallest, mirror.limit / max(1.0, mirror.scale))
        self.ample, self._roomy = ample, ROOMY * smallest
        return charges

    def observe(
        self, readings: Iterable[Reading], order: int, sent_at: float, now: float, charges: Iterable[Charge]
    ) -> tuple[list[Mirror], float | None]:
        """Takes in the readings of one response; returns the mirrors they made and the scarcest unpaced share left."""
        for _, debit, _ in charges:
            debit.answered = True
        self.ample = False
        made: list[Mirror] = []
        scarcest: float | None = None
        for reading in readings:
            mirror = self.mirrors.get(reading.name)
            if mirror is None:
                if not _measurable(reading):
                    continue
                mirror = (Bucket if reading.refill == "continuous" else Window)(reading, now, self.default_window)
                self.mirrors[reading.name] = mirror
                made.append(mirror)
            mine = next((debit for charged, debit, _ in charges if charged is mirror), None)
            mirror.observe(reading, order, sent_at, now, mine)
            if reading.remaining is not None and not mirror.paces:
                share = reading.remaining / mirror.limit
                scarcest = share if scarcest is None else min(scarcest, share)
        return made, scarcest

    def lacking(self, cost: Cost, readings: Iterable[Reading], now: float) -> str:
        """The quota that a refusal's own readings show too low for `cost`; without any, a mirror nearly as low."""
        told = False
        for reading in readings:
            if reading.remaining is not None and reading.name in self.mirrors:
                told = True
                if reading.remaining < cost.amount(reading.unit) + cost.reserve(reading.unit):
                    return reading.name
        if told:
            return ""
        tightest, least = "", NEARLY_EMPTY
        for mirror in self.mirrors.values():
            amount = cost.amount(mirror.unit) + cost.reserve(mirror.unit)
            share = (mirror.level(now) - amount) / mirror.limit
            if amount > 0.0 and share < least:
                tightest, least = mirror.name, share
        return tightest


def _measurable(reading: Reading) -> bool:
    # A limit without its level (prose) is nothing to stand on; a level without its limit says nothing of the refill,
    # and "0 remaining" of no limit is how some gateways write "unlimited".
    if reading.remaining is None:
        return False
    return reading.limit is not None or (reading.refill == "fixed" and reading.remaining > 0)
