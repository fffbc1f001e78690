"""Stored forms: JSON (canonical for rows, so that equal contents have one digest), names, and instants.

Every instant is one of the database's clock, as SQL, or a span of time before one, so no local clock matters.
PostgreSQL stores instants as `timestamptz`, SQLite as UTC text with milliseconds, which sorts by time. PostgreSQL's
`clock_timestamp()` advances while a statement waits for a lock; `now()` is fixed before that wait.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Float, String, Text, literal
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from tidegate.errors import NotStorable

DIGEST_BYTES = 16
"""Bytes of a content's digest. Derived from collisions: among 10**9 contents two have the same digest with a
probability of 10**-21."""

MAX_DEPTH = 500
"""Levels of lists and objects in a value. Derived from half of what Python reads at its default recursion limit
(Jackson and SQLite read 1000, serde_json 128)."""

MAX_NAME_BYTES = 1000
"""UTF-8 bytes of a name in a key. Derived from PostgreSQL: two of them fit an entry, which is a third of a page."""

SHOWN = 100
"""Characters that are kept of a longer name. Chosen: a person recognises the name, and with its digest it fits
`MAX_NAME_BYTES`."""

STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def encoded(value: object) -> str:
    """Return the value as JSON text.

    Raise `NotStorable` where JSON cannot express it (NaN, sets, objects, cycles), or it has more than `MAX_DEPTH`
    levels.
    """
    return _dumped(value, sort_keys=False)


def canonical(value: object) -> str:
    """Return the same text for equal contents: keys sorted, no blanks; raise `NotStorable` as `encoded` does."""
    return _dumped(value, sort_keys=True)


def decoded(text: str | None) -> Any:
    """Return the value of a stored text; None for None."""
    return None if text is None else json.loads(text)


def digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def shortened(text: str) -> str:
    """Return the text as a name: unchanged where every index can hold it, else its beginning and its digest."""
    clean = cleaned(text)
    if clean == text and len(text.encode()) <= MAX_NAME_BYTES:
        return text
    return f"{clean[:SHOWN]}…{digest(text).hex()}"


def cleaned(text: str) -> str:
    """Return the text without what a database cannot hold: NUL and lone surrogates become U+FFFD."""
    if text.isprintable() or (text.isascii() and "\x00" not in text):
        return text
    return text.replace("\x00", "�").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dumped(value: object, sort_keys: bool) -> str:
    try:
        text = json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(f"value not storable: it is not JSON: {error}") from error
    if text.count("[") + text.count("{") > MAX_DEPTH and _levels(text) > MAX_DEPTH:
        raise NotStorable(f"value not storable: it has more than {MAX_DEPTH} levels, and might not be read again")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # Lone surrogates: in escaped form they are plain text, and are decoded unchanged.
        return json.dumps(value, sort_keys=sort_keys, allow_nan=False, separators=(",", ":"))
    return text


def _levels(text: str) -> int:
    return max(accumulate(STEPS.get(sign, 0) for sign in STRINGS.sub("", text)), default=0)


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
    return Now()


def ago(seconds: float) -> Ago:
    """Return the instant `seconds` ago; a negative number gives a future one."""
    return Ago(literal(seconds, Float()))


def since(instant: ColumnElement[Any]) -> Since:
    return Since(instant)
