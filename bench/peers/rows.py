"""Rows that every peer plays: some of the laboratory's table, and a drawn family, whose numbers each seed draws."""

from __future__ import annotations

from bench.drawntable import named
from bench.scenarios import Row, row_named

DRAWN = ("flips",)
"""Families of `bench.drawntable`."""

NAMES = (
    "request-bound",
    "token-bound",
    "silent-steady",
    "silent-changing",
    *DRAWN,
    "silent-slots",
    "outage",
    "unlimited",
)
"""What every peer can be asked, in the order of the tables."""


def row_of(name: str, seed: int = 0) -> Row:
    """Return the row called `name`, as `seed` draws it; raise KeyError."""
    if name in DRAWN:
        (drawn,) = named([name])
        return drawn.row(seed)
    return row_named(name)
