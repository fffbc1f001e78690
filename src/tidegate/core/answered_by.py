"""Choice of a fallback that gave an answer, as a result records it."""

from __future__ import annotations

from typing import NamedTuple


class AnsweredBy(NamedTuple):
    """Choice that answered a call: its name, its provider, and its model; an unknown one is empty.

    Scores of answers by one model compare, whatever choice gave them.
    """

    choice: str
    provider: str
    model: str
