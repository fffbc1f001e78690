"""JSON as it is stored: rows canonical, so that one content has one digest; results as they are."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from tidegate.errors import NotStorable

DIGEST_BYTES = 16
"""128 bits: among 10**9 contents two have the same digest with a chance of 10**-21."""


def encoded(value: object) -> str:
    """The value as JSON text. Raises `NotStorable` where JSON has no word for it (NaN, sets, objects, cycles)."""
    return _dumped(value, sort_keys=False)


def canonical(value: object) -> str:
    """The same text for equal contents: keys sorted, no blanks. Raises `NotStorable` as `encoded` does."""
    return _dumped(value, sort_keys=True)


def decoded(text: str | None) -> Any:
    """The value of a stored text; None where there is none."""
    return None if text is None else json.loads(text)


def digest(text: str) -> bytes:
    """What a content is known by."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def cleaned(text: str) -> str:
    """The text without what a database cannot hold: NUL and lone surrogates become U+FFFD."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "�").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dumped(value: object, sort_keys: bool) -> str:
    try:
        text = json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotStorable(f"not JSON: {error}") from error
    try:
        text.encode()
    except UnicodeEncodeError:
        # Lone surrogates: escaped they are plain text again, and come back as they were.
        return json.dumps(value, sort_keys=sort_keys, allow_nan=False, separators=(",", ":"))
    return text
