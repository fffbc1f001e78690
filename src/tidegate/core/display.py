"""Texts made safe to show to people: on a terminal, in a log, in a message."""

from __future__ import annotations

import json
import re
from typing import Any

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that move the cursor, break a line, change the direction of text, or are invisible."""

BROKEN = re.compile(UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
"""The same characters without line feed and tab."""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with every control character escaped, as `\x1b`; with `lines`, line feeds and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return (BROKEN if lines else UNPRINTABLE).sub(_escaped, text)


def json_line(value: Any) -> str:
    """Return a value as one line of JSON in UTF-8, with every character escaped that a terminal would interpret."""
    return UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], json.dumps(value, ensure_ascii=False))


_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escaped(match: re.Match[str]) -> str:
    if match[0] in _NAMED:
        return _NAMED[match[0]]
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
