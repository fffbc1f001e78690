"""Regular expressions that are compiled at their first use: most processes read no refusal and no credential."""

from __future__ import annotations

import re
from typing import Any, cast


class _LazyPattern:
    def __init__(self, text: str) -> None:
        self.pattern = text

    def __getattr__(self, name: str) -> Any:
        if name == "pattern" or name.startswith("__"):
            raise AttributeError(name)
        method = getattr(re.compile(self.pattern), name)
        setattr(self, name, method)
        return method


def lazy_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that is compiled when one of its methods is first used."""
    return cast("re.Pattern[str]", _LazyPattern(text))
