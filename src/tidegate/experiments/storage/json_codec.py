"""Stored form of JSON and names: canonical for rows, so that equal contents have one digest; results unchanged."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from tidegate.errors import NotStorable

DIGEST_BYTES = 16
"""Bytes of a content's digest. Raising it makes the table and its index larger. Derived from collisions: among 10**9
contents two have the same digest with a probability of 10**-21."""

MAX_DEPTH = 500
"""Levels of lists and objects in a value. Raising it stores values that a deep stack cannot read. Derived from half of
what Python reads at its default recursion limit (Jackson and SQLite read 1000, serde_json 128)."""

MAX_NAME_BYTES = 1000
"""UTF-8 bytes of a name in a key. Raising it may exceed an index entry. Derived from PostgreSQL: two of them fit an
entry, which is a third of a page."""

SHOWN = 100
"""Characters that are kept of a longer name. Raising it makes names longer. Chosen: a person recognises the name, and
with its digest it fits `MAX_NAME_BYTES`."""

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
    """Return the digest that identifies a content."""
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
