"""How much the tests try: a part in `make test`, all of it in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

LONG: Final = "TESTS_LONG" in os.environ
"""Set by `make test-long`."""

SEED: Final = os.environ.get("TESTS_SEED", "")
"""Any other text draws other places from those that `make test` tries a part of."""


def effort(short: int, long: int) -> int:
    """Return how many examples or seeds to try."""
    return long if LONG else short


def some(short: Iterable[T], others: Iterable[T]) -> list[T]:
    """Return the cases to try: `others` are larger or like one of the `short` ones."""
    return [*short, *(others if LONG else ())]
