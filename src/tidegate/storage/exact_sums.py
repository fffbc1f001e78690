"""Exact sums of scores, the same on both databases: a sum of doubles as SQL makes it depends on their order, and fails.

Theory of operation. Every finite double is a whole number of `UNIT`s, the smallest double there is. Whole numbers are
added without rounding, overflow or underflow; only the mean is rounded, once. SQLite calls a function of ours for each
score. PostgreSQL takes a double apart by its bits, and adds up the 53-bit numbers of each exponent.
"""

from __future__ import annotations

import math
import sqlite3
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Integer, Numeric, func, literal_column
from sqlalchemy.types import Text

UNIT = 1074
"""A unit is 2 to the power of -1074: the least positive double (IEEE 754)."""

NAME = "tidegate_exact_sum"
NOT_FINITE = 2047
"""The exponent of infinities and of what is no number, which are never stored by us."""


class ExactSum:
    """The sum of scores in units, as an aggregate function of SQLite; as text, in hexadecimal digits."""

    def __init__(self) -> None:
        self._units = 0

    def step(self, score: float | None) -> None:
        """Add one score."""
        if score is not None and math.isfinite(score):
            numerator, denominator = float(score).as_integer_ratio()
            self._units += numerator << (UNIT + 1 - denominator.bit_length())

    def finalize(self) -> str:
        """Return the sum."""
        return f"{self._units:x}"


class SummingConnection(sqlite3.Connection):
    """A connection to SQLite that knows the aggregate function."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.create_aggregate(NAME, 1, ExactSum)  # type: ignore[arg-type]


def sqlite_sum(score: Column[float]) -> ColumnElement[str]:
    """Return the sum of a column, as SQL for SQLite; `int(…, 16)` are its units."""
    return getattr(func, NAME)(score, type_=Text)  # type: ignore[no-any-return]


def postgresql_exponent(score: Column[float]) -> ColumnElement[int]:
    """Return the exponent of a score, from 0 to 2047, as SQL for PostgreSQL."""
    return literal_column(f"(({_bits(score)} >> 52) & 2047)", Integer)


def postgresql_sum(score: Column[float]) -> ColumnElement[Any]:
    """Return the sum of the 53-bit numbers of scores with one exponent, as SQL for PostgreSQL."""
    bits = _bits(score)
    number = f"({bits} & {2**52 - 1}) + CASE WHEN ({bits} >> 52) & 2047 > 0 THEN {2**52} ELSE 0 END"
    return func.sum(
        literal_column(f"(CASE WHEN {bits} < 0 THEN -1 ELSE 1 END) * ({number})", BigInteger), type_=Numeric
    )


def units(exponent: int, number: int) -> int:
    """Return a sum of `postgresql_sum` in units."""
    return 0 if exponent == NOT_FINITE else number << max(0, exponent - 1)


def mean(total: int, count: int) -> float:
    """Return the mean of `count` scores whose sum is `total` units, rounded once."""
    return total / (count << UNIT)


def _bits(score: Column[float]) -> str:
    return f"('x' || encode(float8send({score.table.name}.{score.name}), 'hex'))::bit(64)::bigint"
