"""Exact sums of scores, equal on both databases: SQL's sum of doubles depends on their order and can fail.

Theory of operation. Every finite double is an integer multiple of a unit, the smallest positive double. Integers are
added without rounding, overflow or underflow; only the mean is rounded, once. SQLite calls our aggregate function for
each score. PostgreSQL splits a double into its bits, and sums the 53-bit integers of each exponent.
"""

from __future__ import annotations

import math
import sqlite3
from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Integer, Numeric, func, literal_column
from sqlalchemy.types import Text

UNIT = 1074
"""A unit is 2 to the power of -1074: the smallest positive double (IEEE 754)."""

NAME = "tidegate_exact_sum"
NOT_FINITE = 2047
"""Exponent of infinities and NaN, which this package never stores."""


class ExactSum:
    """Sum of scores in units, as an aggregate function of SQLite; the result is a text of hexadecimal digits."""

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
    """Connection to SQLite with the aggregate function."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.create_aggregate(NAME, 1, ExactSum)  # type: ignore[arg-type]


def sqlite_sum(score: Column[float]) -> ColumnElement[str]:
    """Return the sum of a column, as SQL for SQLite; `int(…, 16)` gives its units."""
    return getattr(func, NAME)(score, type_=Text)  # type: ignore[no-any-return]


def postgresql_exponent(score: Column[float]) -> ColumnElement[int]:
    """Return the exponent of a score, from 0 to 2047, as SQL for PostgreSQL."""
    return literal_column(f"(({_bits(score)} >> 52) & 2047)", Integer)


def postgresql_sum(score: Column[float]) -> ColumnElement[Any]:
    """Return the sum of the 53-bit integers of scores with one exponent, as SQL for PostgreSQL."""
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
