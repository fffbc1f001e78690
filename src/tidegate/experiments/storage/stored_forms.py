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

from sqlalchemy import ColumnElement, Dialect, Float, Integer, String, Text, literal, literal_column
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

SHOWN_CHARACTERS = 100
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
    return f"{clean[:SHOWN_CHARACTERS]}…{digest(text).hex()}"


def cleaned(text: str) -> str:
    """Return the text without what a database cannot hold: NUL and lone surrogates become U+FFFD."""
    if text.isprintable() or (text.isascii() and "\x00" not in text):
        return text
    return text.replace("\x00", "�").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cleaned_if_any(text: str | None) -> str | None:
    return None if text is None else cleaned(text)


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


SQL = {
    ("now", "sqlite"): "strftime('%Y-%m-%d %H:%M:%f', 'now')",
    ("now", "postgresql"): "clock_timestamp()",
    ("ago", "sqlite"): "strftime('%Y-%m-%d %H:%M:%f', 'now', (-1.0 * {0}) || ' seconds')",
    ("ago", "postgresql"): "(clock_timestamp() - make_interval(secs => CAST({0} AS double precision)))",
    ("since", "sqlite"): "((julianday('now') - julianday({0})) * 86400.0)",
    ("since", "postgresql"): "CAST(extract(epoch FROM clock_timestamp() - {0}) AS double precision)",
    ("size", "sqlite"): "length({0})",
    ("size", "postgresql"): "octet_length({0})",
}
"""Forms of each function on the two databases."""


class DatabaseFunction(FunctionElement[Any]):
    """Function of `SQL` with its arguments; its name is its first clause, so that SQLAlchemy's cache knows it."""

    inherit_cache = True

    def __init__(self, name: str, type_: TypeEngine[Any], *arguments: ColumnElement[Any]) -> None:
        super().__init__(literal_column(name), *arguments)
        self.type = type_


@compiles(DatabaseFunction)
def _sql(element: DatabaseFunction, compiler: SQLCompiler, **kw: Any) -> str:
    name, *arguments = element.clauses
    return SQL[str(name), compiler.dialect.name].format(*(compiler.process(each, **kw) for each in arguments))


def now() -> ColumnElement[datetime]:
    return DatabaseFunction("now", Instant())


def ago(seconds: float) -> ColumnElement[datetime]:
    """Return the instant `seconds` ago; a negative number gives a future one."""
    return DatabaseFunction("ago", Instant(), literal(seconds, Float()))


def since(instant: ColumnElement[Any]) -> ColumnElement[float]:
    return DatabaseFunction("since", Float(), instant)


def text_size(text: ColumnElement[str]) -> ColumnElement[int]:
    """Return the size of a text: characters on SQLite, bytes on PostgreSQL, which knows these without reading it."""
    return DatabaseFunction("size", Integer(), text)
