"""The database's clock, as SQL: every instant is one of it, or a span of time before one, so no local clock matters.

PostgreSQL stores instants as `timestamptz`, SQLite as UTC text with milliseconds, which sorts by time. PostgreSQL's
`clock_timestamp()` advances while a statement waits for a lock; `now()` is fixed before that wait.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Float, String, Text, literal
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now'"


class Instant(TypeDecorator[datetime]):
    """Instant; in Python an aware `datetime` in UTC."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return TIMESTAMP(timezone=True) if dialect.name == "postgresql" else String()

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.replace(tzinfo=None).isoformat(" ", "milliseconds")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, str):
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        return value.astimezone(UTC)  # type: ignore[no-any-return]


class Now(FunctionElement[datetime]):
    """SQL of `now`."""

    type = Instant()
    inherit_cache = True


class Ago(FunctionElement[datetime]):
    """SQL of `ago`."""

    type = Instant()
    inherit_cache = True


class Since(FunctionElement[float]):
    """SQL of `since`."""

    type = Float()
    inherit_cache = True


@compiles(Now, "sqlite")
def _sqlite_now(element: Now, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{SQLITE_NOW})"


@compiles(Now, "postgresql")
def _postgresql_now(element: Now, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


@compiles(Ago, "sqlite")
def _sqlite_ago(element: Ago, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{SQLITE_NOW}, (-1.0 * {compiler.process(element.clauses, **kw)}) || ' seconds')"


@compiles(Ago, "postgresql")
def _postgresql_ago(element: Ago, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(clock_timestamp() - make_interval(secs => CAST({seconds} AS double precision)))"


@compiles(Since, "sqlite")
def _sqlite_since(element: Since, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday('now') - julianday({compiler.process(element.clauses, **kw)})) * 86400.0)"


@compiles(Since, "postgresql")
def _postgresql_since(element: Since, compiler: SQLCompiler, **kw: Any) -> str:
    instant = compiler.process(element.clauses, **kw)
    return f"CAST(extract(epoch FROM clock_timestamp() - {instant}) AS double precision)"


def now() -> Now:
    """Return the current instant."""
    return Now()


def ago(seconds: float) -> Ago:
    """Return the instant `seconds` ago; a negative number gives a future one."""
    return Ago(literal(seconds, Float()))


def since(instant: ColumnElement[Any]) -> Since:
    """Return the seconds since an instant."""
    return Since(instant)
