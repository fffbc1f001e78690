"""Calls of this process between two readings of its registries."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.admission.key_table import KeyTable
from tidegate.admission.registry import registry
from tidegate.core.snapshot import KeySnapshot
from tidegate.core.values import Key
from tidegate.transports.governance import Installation

COUNTS = ("calls", "answered", "given_up", "failed_calls", "abandoned_calls", "refused", "absorbed")


class CallTotals(NamedTuple):
    """Counts between two readings, and the keys that were used, the busiest one first."""

    counts: dict[str, int]
    used: tuple[KeySnapshot, ...] = ()

    @property
    def ended(self) -> int:
        return sum(self.counts[name] for name in ("answered", "given_up", "failed_calls", "abandoned_calls"))


def read_keys() -> dict[Key, KeySnapshot]:
    """Return the state of each key of the default registry, and of the registry that `install` was given."""
    tables: list[KeyTable] = [registry()]
    if Installation.binding is not None and Installation.binding.registry is not tables[0]:
        tables.append(Installation.binding.registry)
    return {key: state for table in tables for key, state in table.snapshot().keys.items()}


def totals_since(before: dict[Key, KeySnapshot], now: dict[Key, KeySnapshot]) -> CallTotals:
    grown = {key: {name: _grown(before.get(key), state, name) for name in COUNTS} for key, state in now.items()}
    used = [key for key, counts in grown.items() if any(counts.values())]
    used.sort(key=lambda key: (now[key].waiting, grown[key]["calls"]), reverse=True)
    summed = {name: sum(counts[name] for counts in grown.values()) for name in COUNTS}
    return CallTotals(summed, tuple(now[key] for key in used))


def _grown(before: KeySnapshot | None, now: KeySnapshot, name: str) -> int:
    # A key that the table forgot in between counts from zero again.
    grown: int = getattr(now, name) - (getattr(before, name) if before is not None else 0)
    return max(0, grown)
