"""One thing that was found, and what it comes to."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class Verdict(StrEnum):
    """The result of a finding; the first word of its line after the section."""

    GOVERNED = "governed"
    UNGOVERNED = "ungoverned"
    STRETCHED = "stretched"
    KEPT = "kept"
    SET = "set"
    NOTE = "note"
    TRAP = "trap"


class Finding(NamedTuple):
    """One line of the report.

    `section` is python, stack, sdk, clock, host, setting, trap or script; `place` is FILE:LINE of what was found in a
    script.
    """

    section: str
    verdict: Verdict
    name: str
    text: str
    version: str = ""
    place: str = ""

    def line(self) -> str:
        """As one line of plain text, its fields first, so that it can be searched."""
        where = f"{self.place} " if self.place else ""
        version = f" {self.version}" if self.version else ""
        return f"{self.section} {self.verdict} {where}{self.name}{version}: {self.text}"

    def fields(self) -> dict[str, Any]:
        """As an object of JSON: every field, an empty one too."""
        return {**self._asdict(), "verdict": str(self.verdict)}
