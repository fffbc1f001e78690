"""English for the phrases of a refusal in another language, so that one set of words reads both. Never raises.

A message is not translated: phrases of `foreign_phrases.toml` are replaced, and other text stays. The file is read at
the first refusal that has letters of such a language.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

_FOREIGN = re.compile(r"[\u3400-\u9fff]")
"""Letters of the languages that the file has phrases of: Chinese."""


@cache
def _phrases() -> tuple[tuple[re.Pattern[str], str], ...]:
    packed = resources.files("tidegate.providers").joinpath("foreign_phrases.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(packed)["phrase"]
    return tuple((re.compile(row["words"]), f". {row['english']}. ") for row in rows)


def in_english(text: str) -> str:
    """Return the text, in lower case, with the English for each known phrase."""
    if _FOREIGN.search(text) is None:
        return text
    for pattern, english in _phrases():
        text = pattern.sub(english, text)
    return text
